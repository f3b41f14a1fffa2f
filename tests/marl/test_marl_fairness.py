"""Worlds of resources, fairness by hierarchy, and gossip of the mean utility."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")
pytest.importorskip("jaxtyping")

import jax
import jax.numpy as jnp

from gradweave.errors import GradweaveError, OptionError
from gradweave.marl.fairness.mean_utility import MeanUtility
from gradweave.marl.fairness.measures import fairness
from gradweave.marl.fairness.settings import FEN, mixing_of
from gradweave.marl.games.environments import make
from gradweave.marl.learners import algorithms, distributions
from gradweave.marl.worlds.job_scheduling import JobScheduling, JobState
from gradweave.marl.worlds.manufacturing_plant import NEEDS, ManufacturingPlant
from gradweave.marl.worlds.matthew_effect import (
    GROWTH,
    MOST_SIZE,
    MatthewEffect,
    MatthewState,
)

STAY, UP, DOWN, LEFT, RIGHT = range(5)
SMALL = {"environments": 2, "rollout": 6, "choice_steps": 3, "hidden": (8,), "minibatches": 2}
WORLDS = ("job_scheduling", "matthew_effect", "manufacturing_plant")


def wandered(world, steps: int, games: int = 16):
    """Arrays and rewards of games whose agents play at random: [steps, games, …]."""

    def step(state, key):
        acting, going = jax.random.split(key)
        action = jax.random.randint(acting, (games, world.agents), 0, 5)
        keys = jax.random.split(going, games)
        after, reward = jax.vmap(world.advance)(keys, state, action)
        return after, (after, reward)

    first = jax.vmap(world.begin)(jax.random.split(jax.random.key(0), games))
    keys = jax.random.split(jax.random.key(1), steps)
    played = jax.jit(lambda first: jax.lax.scan(step, first, keys)[1])(first)
    return jax.tree.map(np.asarray, played)


def test_a_cell_holds_one_agent_and_the_resource_pays_one():
    state, reward = wandered(JobScheduling(), 200)
    cells = np.sort(state.place @ np.array([5, 1]), -1)
    assert (np.diff(cells) > 0).all() and (state.place >= 0).all() and (state.place < 5).all()
    assert reward.sum(-1).max() == 1 and ((state.resource >= 1) & (state.resource <= 3)).all()


def test_a_cell_that_was_held_when_the_step_began_is_not_entered():
    place = jnp.array([[2, 2], [2, 3], [0, 0], [1, 0]])
    state = JobState(place, jnp.array([2, 2]))
    leaves = jnp.array([UP, LEFT, DOWN, UP])
    after, reward = JobScheduling().advance(jax.random.key(0), state, leaves)
    assert after.place.tolist() == [[1, 2], [2, 3], [0, 0], [1, 0]] and reward.sum() == 0
    after, reward = JobScheduling().advance(
        jax.random.key(0), after, jnp.array([STAY, LEFT, RIGHT, STAY])
    )
    assert after.place[1].tolist() == [2, 2] and reward.tolist() == [0, 1, 0, 0]


def test_whoever_eats_grows_and_one_alone_eats_a_ghost():
    state, reward = wandered(MatthewEffect(), 300)
    grown = np.diff(state.size, axis=0)
    at_most = np.where(state.size[:-1] > MOST_SIZE - 3 * GROWTH, 0, reward[1:] * GROWTH)
    assert (grown >= at_most - 1e-6).all() and (grown[reward[1:] == 0] == 0).all()
    assert reward.sum(-1).max() <= 3 and reward.sum() > 0
    assert state.size.max() <= MOST_SIZE + 1e-6


def test_gems_are_kept_or_in_parts_and_the_supply_ends():
    plant = ManufacturingPlant(supply=20)
    state, reward = wandered(plant, 300)
    made = np.floor(reward + 1e-4 - 0.1 * (reward % 1 > 0.05)).cumsum(0)
    kept = state.has.sum(-1) + made * NEEDS.sum(-1)
    assert np.array_equal(kept.sum(-1), state.gathered)
    assert (state.gathered[-1] > 20).all() and (state.gathered[-1] <= 20 + plant.gems).all()
    assert (state.gem[-1] < 0).all()


def test_agents_see_how_far_the_nearest_ghost_is():
    place = jnp.array([[0.5, 0.5], [0.1, 0.9]])
    ghost = jnp.array([[0.2, 0.9], [0.4, 0.55], [0.9, 0.1]])
    seen = MatthewEffect().observe(MatthewState(place, jnp.full(2, 0.03), ghost))
    assert np.allclose(seen[:, 4:] * MOST_SIZE, [[-0.1, 0.05], [0.1, 0.0]], atol=1e-6)


def test_measures_are_those_of_the_paper():
    utility = np.random.default_rng(0).uniform(size=(20, 5)).astype(np.float32)
    found = fairness(jnp.asarray(utility))
    assert np.allclose(found.variation, utility.std(1, ddof=1) / utility.mean(1), atol=1e-5)
    assert np.allclose(found.jain, utility.sum(1) ** 2 / 5 / (utility**2).sum(1), atol=1e-5)
    nothing = fairness(jnp.zeros(4))
    assert float(nothing.variation) == 0 and float(nothing.jain) == 1


@pytest.mark.parametrize("gossip", ["ring", "complete", "ring:8", "mixing=matchings"])
def test_estimates_have_the_mean_of_utilities_and_tend_to_it(gossip: str):
    agents, steps = 8, 200
    rewards = np.random.default_rng(0).random((steps, agents)) < np.linspace(0.1, 0.9, agents)
    utility = jnp.asarray(rewards.cumsum(0) / np.arange(1, steps + 1)[:, None], jnp.float32)
    errors = []
    for exchanges in (1, 4):
        mixing = mixing_of(gossip, agents)
        assert mixing is not None
        consensus = MeanUtility(mixing, exchanges)
        estimates, error = consensus.start(1, agents), 0.0
        after = jax.jit(consensus.after)
        for now in utility:
            estimates = after(estimates, now[None], jnp.zeros(1, bool))
            error = float(jnp.abs(estimates.mean - now.mean()).max())
        assert np.isclose(estimates.mean.mean(), utility[-1].mean(), atol=1e-5)
        errors.append(error)
        sent = 4 * exchanges * ((mixing.weights != 0).sum(2) - 1).mean(1)
        assert np.isclose(estimates.sent_bytes.mean(), sent[0])
    assert errors[1] <= errors[0] + 1e-7 and errors[1] < 1e-3
    begun = consensus.after(estimates, jnp.zeros((1, agents)), jnp.ones(1, bool))
    assert all(not leaf.any() for leaf in jax.tree.leaves(begun))


def fen(env: str, **settings):
    return algorithms.ALGORITHMS["fen"].build(
        make(env), FEN(**(SMALL | settings)), 1, 10, lambda optimizer: optimizer
    )


VARIANTS = [
    ("job_scheduling:max_steps=6", {}),
    ("matthew_effect:max_steps=3", {"gossip": "exact", "objective": "minimum"}),
    ("manufacturing_plant:max_steps=6", {"hierarchy": False, "objective": "own"}),
    ("job_scheduling:max_steps=9", {"hierarchy": False}),
]


@pytest.mark.parametrize(("env", "settings"), VARIANTS)
def test_an_update_of_fen_is_a_learner_again(env: str, settings: dict):
    one = fen(env, **settings)
    state = jax.eval_shape(one.init, jax.random.key(0), 0)
    after, _ = jax.eval_shape(one.update, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    for x, y in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True):
        assert (x.shape, x.dtype, x.weak_type) == (y.shape, y.dtype, y.weak_type)


@pytest.mark.parametrize("hierarchy", [True, False])
def test_what_is_learned_from_is_what_acted(hierarchy: bool):
    """Networks over a choice's steps are those that played them, a step at a time."""
    one = fen("job_scheduling:max_steps=6", hierarchy=hierarchy)
    state = jax.jit(one.init)(jax.random.key(0), 0)
    others = jax.tree.map(  # at first all policies are nearly alike
        lambda x: x + 0.5 * jnp.sin(7.0 * jnp.arange(x.size)).reshape(x.shape), state.parameters
    )
    state = dataclasses.replace(state, parameters=others)
    _, part, _ = jax.jit(one._rollout)(state)
    log_p, _ = jax.jit(one.hierarchy.sub_policy_outputs)(others, part.chosen, part.agent, part.seen)
    taken = distributions.of_action(log_p, part.action)
    np.testing.assert_allclose(taken, part.log_probability, atol=1e-4)
    assert np.std(part.log_probability) > 0.1 and part.chosen.any() == hierarchy


def test_fen_learns_with_all_its_networks_and_says_how_fair_it_is():
    one = fen("job_scheduling:max_steps=6", epochs=1)
    before = jax.jit(one.init)(jax.random.key(0), 0)
    after, metrics = jax.jit(one.update)(before)
    for name in ("actors", "critics", "controller", "judge"):
        pair = (jax.tree.leaves(getattr(each.parameters, name)) for each in (before, after))
        assert any((x != y).any() for x, y in zip(*pair, strict=True)), name
    said = {name: float(value) for name, value in metrics.figures.items()}
    assert all(np.isfinite(value) for value in said.values())
    assert said["gossip_bytes"] == 8 and int(metrics.episodes) == 2
    shares = np.asarray(metrics.returns) / 12  # of the two episodes' six steps each
    assert np.isclose(said["utilisation"], shares.sum(), atol=1e-6)


REFUSED = {
    "rollout": ({"rollout": 40}, "multiple of choice_steps"),
    "objective": ({"objective": "fairness"}, "objective: expected fair_efficient"),
    "first": ({"first_objective": "alpha"}, "first_objective: expected own or alpha_fair"),
    "first of none": (
        {"first_objective": "alpha_fair", "hierarchy": False},
        "expected own without a hierarchy",
    ),
    "gossip": ({"gossip": "rong"}, "rong"),
    "minibatches": ({"minibatches": 7}, "divisor of the 320 choices"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_settings_that_cannot_be_are_refused(kind: str):
    given, said = REFUSED[kind]
    with pytest.raises(GradweaveError, match=said):
        FEN(**given).check_devices(1)


def test_games_and_networks_that_do_not_fit_are_refused():
    with pytest.raises(OptionError, match="use job_scheduling"):
        fen("switch_riddle")
    with pytest.raises(OptionError, match="divisor of the 7 steps"):
        fen("job_scheduling:max_steps=7")
    with pytest.raises(OptionError, match="5 servers, but there are 4"):
        fen("job_scheduling:max_steps=6", gossip="ring:5")


@pytest.mark.parametrize("name", WORLDS)
def test_every_world_of_resources_is_drawn(name: str, tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("PIL")
    from gradweave.marl.games.render import Frame, save_gif

    environment = make(name)
    state, view = jax.tree.map(np.asarray, environment.reset(jax.random.key(0)))
    nothing = np.zeros(environment.num_agents, np.float32)
    frame = Frame(state, view.observation, nothing.astype(int), nothing, nothing + 1)
    save_gif(environment, [frame, frame], tmp_path / "world.gif")
    assert (tmp_path / "world.gif").stat().st_size > 1000
