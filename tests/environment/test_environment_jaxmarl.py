"""The adapter to JaxMARL: what its learners rely on holds at every step."""

import functools
import importlib
import sys

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("jaxmarl")

import jax
import jax.numpy as jnp
from jaxmarl.environments.multi_agent_env import MultiAgentEnv
from jaxmarl.environments.spaces import Discrete, MultiDiscrete

from gradweave.environment.jaxmarl_adapter import TREES, WORKLOADS, JaxMARLScheduling
from gradweave.environment.numbered import every_tree, random_workload
from gradweave.verifier import verify
from tests.environment.networks import instance

pytestmark = pytest.mark.usefixtures("quick_compilation")

INSTANCES = [instance("bcube:n=2,k=1"), instance("ring:5", "fixed all_reduce")]
STEPS = 150
EPISODES = 8


@functools.cache
def environment() -> JaxMARLScheduling:
    return JaxMARLScheduling(INSTANCES)


@functools.cache
def run(env: JaxMARLScheduling):
    """Masked random actions for many steps, over the ends of episodes."""

    def step(carry, key):
        observations, state = carry
        draw, own = jax.random.split(key)
        masks = env.get_avail_actions(state)
        actions = {
            agent: jax.random.categorical(draw, jnp.where(mask, 0.0, -jnp.inf))
            for agent, mask in masks.items()
        }
        after, following, rewards, dones, info = env.step(own, state, actions)
        said = observations, state, masks, actions, rewards, dones, info
        return (after, following), said

    def play(key):
        begin, key = jax.random.split(key)
        return jax.lax.scan(step, env.reset(begin), jax.random.split(key, STEPS))[1]

    return jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), EPISODES))


def test_it_is_an_environment_of_jaxmarl():
    env = environment()
    assert isinstance(env, MultiAgentEnv)
    assert env.agents == [TREES, WORKLOADS]
    assert env.num_agents == 2
    assert env.agent_classes == {TREES: [TREES], WORKLOADS: [WORKLOADS]}


def test_what_is_seen_and_done_lies_in_the_spaces():
    env = environment()
    observations, _, masks, actions, rewards, dones, _ = run(env)
    assert set(rewards) == set(env.agents)
    assert set(dones) == {*env.agents, "__all__"}
    for agent in env.agents:
        space = env.observation_space(agent)
        assert observations[agent].shape == (EPISODES, STEPS, *space.shape)
        assert observations[agent].dtype == space.dtype
        assert space.contains(observations[agent])
        assert jnp.all(jax.vmap(env.action_space(agent).contains)(actions[agent]))
        assert masks[agent].shape == (EPISODES, STEPS, env.action_space(agent).n)
        assert np.array_equal(dones[agent], dones["__all__"])


def test_both_agents_spaces_are_alike():
    """As learners expect that share a network; the agents are told apart by the first entry."""
    env = environment()
    tree_space, workload_space = (env.observation_space(agent) for agent in env.agents)
    assert tree_space.shape == workload_space.shape
    assert env.action_space(TREES).n == env.action_space(WORKLOADS).n
    observations, *_ = run(env)
    assert (observations[TREES][..., 0] == 1).all()
    assert (observations[WORKLOADS][..., 0] == 0).all()


def test_the_agent_whose_turn_it_is_not_can_only_wait():
    observations, _, masks, *_ = run(environment())
    waits = {agent: mask[..., 0] & (mask.sum(-1) == 1) for agent, mask in masks.items()}
    assert all(mask.any(-1).all() for mask in masks.values())
    turns = {agent: np.asarray(seen[..., 1]) for agent, seen in observations.items()}
    assert np.array_equal(turns[TREES] + turns[WORKLOADS], np.ones((EPISODES, STEPS)))
    for agent, other in ((TREES, WORKLOADS), (WORKLOADS, TREES)):
        assert waits[agent][turns[other] == 1].all()
    assert not waits[WORKLOADS][turns[WORKLOADS] == 1].any()


def test_episodes_reset_by_themselves_and_draw_their_network():
    _, states, _, _, rewards, dones, info = run(environment())
    over = np.asarray(dones["__all__"])
    assert over.sum(1).min() >= 2
    rounds = np.asarray(states.state.round)
    assert (rounds[:, 1:][over[:, :-1]] == 0).all()
    assert (np.asarray(info["rounds"])[over] > 0).all()
    assert set(np.asarray(states.which).ravel().tolist()) == {0, 1}
    for episode in range(EPISODES):
        first = int(np.flatnonzero(over[episode])[0]) + 1
        if not info["truncated"][episode, first - 1, 0]:
            assert np.isclose(rewards[WORKLOADS][episode, :first].sum(), 1, atol=1e-5)
            assert rewards[TREES][episode, first - 1] > 10 - 1


def test_a_finished_episode_is_a_schedule():
    env = JaxMARLScheduling(INSTANCES[1])
    step = jax.jit(env.step_env)
    _, state = env.reset(jax.random.key(0))
    done = False
    while not done:
        # The last one available: it adds trees for as long as there are any.
        masks = env.get_avail_actions(state)
        actions = {agent: mask.shape[0] - 1 - mask[::-1].argmax() for agent, mask in masks.items()}
        _, state, _, dones, info = step(jax.random.key(0), state, actions)
        done = bool(dones["__all__"])
    made = env.schedule(state)
    assert verify(made).valid
    assert made.collective == "all_reduce"
    assert made.rounds == info["rounds"][0]


def test_a_multi_hot_selection_is_a_space_of_twos():
    env = JaxMARLScheduling(INSTANCES[0], selection="multi_hot", alike=False)
    assert isinstance(env.action_space(TREES), MultiDiscrete)
    assert isinstance(env.action_space(WORKLOADS), Discrete)
    key = jax.random.key(0)
    observations, state = env.reset(key)
    for agent in env.agents:
        assert observations[agent].shape == env.observation_space(agent).shape
    assert env.observation_space(TREES).shape != env.observation_space(WORKLOADS).shape
    masks = env.get_avail_actions(state)
    assert masks[TREES].tolist() == [[True, True]] * 4
    trees = jnp.array([1, 0, 1, 0])
    assert env.action_space(TREES).contains(trees)
    _, state, *_ = env.step(key, state, {TREES: trees, WORKLOADS: jnp.asarray(0)})
    assert state.state.selected.tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    ("partner", "agents"),
    [({"tree_policy": every_tree}, [WORKLOADS]), ({"workload_policy": random_workload}, [TREES])],
)
def test_with_a_partner_one_agent_is_left(partner: dict, agents: list[str]):
    env = JaxMARLScheduling(INSTANCES[0], **partner)
    assert env.agents == agents
    key = jax.random.key(0)
    observations, state = jax.eval_shape(env.reset, key)
    masks = jax.eval_shape(env.get_avail_actions, state)
    actions = dict.fromkeys(agents, jnp.asarray(0))
    after, _, rewards, dones, info = jax.eval_shape(env.step, key, state, actions)
    for said in (observations, masks, after, rewards):
        assert list(said) == agents
    assert set(dones) == {*agents, "__all__"}
    assert info["rounds"].shape == (1,)


def test_a_team_shares_the_sum_of_rewards():
    """Two servers: one tree is selected, its workload sent, and with it the first round ends."""
    key, nothing = jax.random.key(0), jnp.asarray(0)

    def play(env: JaxMARLScheduling) -> dict:
        _, state = env.reset(key)
        for tree in (jnp.asarray(1), nothing):
            _, state, *_ = env.step_env(key, state, {TREES: tree, WORKLOADS: nothing})
        workload = env.get_avail_actions(state)[WORKLOADS].argmax()
        return env.step_env(key, state, {TREES: nothing, WORKLOADS: workload})[2]

    alone, team = (
        jax.jit(functools.partial(play, JaxMARLScheduling(instance("complete:2"), team=team)))()
        for team in (False, True)
    )
    assert alone[WORKLOADS] == 0.5
    assert np.isclose(alone[TREES], 1 / 2 + 0.1 / 2 - 2 / 2)
    assert team[TREES] == team[WORKLOADS] == alone[TREES] + alone[WORKLOADS]


def test_without_jaxmarl_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "gradweave.environment.jaxmarl_adapter")
    for module in [name for name in sys.modules if name.partition(".")[0] == "jaxmarl"]:
        monkeypatch.setitem(sys.modules, module, None)
    importlib.import_module("gradweave.environment")
    with pytest.raises(ImportError, match=r"pip install 'gradweave\[marl\]'"):
        importlib.import_module("gradweave.environment.jaxmarl_adapter")
