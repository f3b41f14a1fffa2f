"""Games and networks of others: recognised, refused in one line, and played as they are."""

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("jaxmarl")

import jax
import jax.numpy as jnp

from gradweave.errors import FileError, GradweaveError, OptionError
from gradweave.marl import checkpoint
from gradweave.marl.evaluation import play, random_action
from gradweave.marl.folder import POLICY, imported, load_trained
from gradweave.marl.games.environment import Environment
from gradweave.marl.games.environments import make
from gradweave.marl.games.own import check_actions
from gradweave.marl.games.parallel import game_errors
from gradweave.marl.learners import algorithms
from gradweave.marl.learners.own_network import Plan, draw_own, named
from gradweave.marl.request import read_request
from tests.marl import own_parts
from tests.marl.own_parts import (
    CELLS,
    CORRIDOR,
    Breaks,
    Corridor,
    Counted,
    Informed,
    Lasting,
    Rooms,
    Steered,
    Stuck,
    Well,
)

HERE = "tests.marl.own_parts"


def game_of(environment: Environment) -> Any:
    return environment.game


def test_a_game_is_read_by_what_it_has():
    environment = make(f"{HERE}:Corridor:agents=3")
    assert environment.id == f"{HERE}:Corridor:agents=3"
    assert (environment.num_agents, environment.actions, environment.shape) == (3, 2, (2, 2))
    assert environment.meaning == "times at the end" and environment.teams == (0, 0, 0)
    assert environment.reading.utility is not None and not environment.masked
    assert game_of(make(Corridor, max_steps=3)).max_steps == 3
    assert make(Corridor(3)).id == f"{HERE}:Corridor"


@pytest.mark.parametrize("options", [{}, {"machine": CORRIDOR}])
def test_a_game_s_own_measures_are_summed_over_an_episode(options: dict[str, str]):
    environment = make(Counted, **options)
    act = functools.partial(random_action, environment)
    keys = jax.random.split(jax.random.key(3), 16)
    returns, lengths, measures = play(
        environment, lambda memory, view, keys: (memory, act(view, keys)), None, keys
    )
    assert set(measures) == {"first", "second"}
    if not options:  # the return is how often; a machine gives others
        np.testing.assert_array_equal(np.stack(list(measures.values()), 1), returns)
    assert (np.asarray(measures["second"]) <= np.asarray(lengths) / (CELLS - 1)).all()
    assert np.asarray(measures["second"]).any()


def test_steps_without_an_action_are_counted_and_end_a_training():
    environment = make(Stuck, max_steps=4)
    act = functools.partial(random_action, environment)
    keys = jax.random.split(jax.random.key(3), 3)
    *_, measures = play(environment, lambda memory, *now: (memory, act(*now)), None, keys)
    assert measures["steps_without_action"].tolist() == [1, 1, 1]
    with pytest.raises(OptionError, match="without any action before 3 steps of the episodes"):
        check_actions(measures)
    check_actions({"steps_without_action": np.zeros(3)})


def test_agents_of_a_world_of_resources_are_no_team():
    environment = make(f"{HERE}:Well:max_steps=6")
    assert environment.teams == (0, 1, 2) and game_of(environment).max_steps == 6
    assert environment.reading.utility is not None


def test_a_machine_hears_a_game_s_own_events():
    environment = make(Corridor, machine=CORRIDOR)
    ahead = jnp.ones(2, jnp.int32)
    step = jax.jit(environment.step)
    state, view = environment.reset(jax.random.key(0))
    guide = environment.guide
    assert guide is not None
    first = guide.read(view.observation)
    rewards, done = [], []
    for number in range(2 * (CELLS - 1)):
        state, _, outcome = step(jax.random.key(number), state, ahead)
        rewards.append(outcome.reward.tolist())
        done.append(bool(outcome.done))
    # Both come to the end together: end0 is heard before end1, and all is done.
    assert rewards[:3] == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]] and done[:3] == [False, False, True]
    assert first.tolist() == guide.machines.start.tolist()


class NoStep(Corridor):
    def __getattribute__(self, name: str) -> Any:
        if name == "step_env":
            raise AttributeError(name)
        return super().__getattribute__(name)


class LacksAgent(Corridor):
    def seen(self, at):
        return {"0": at[0]}


class ShortReward(Corridor):
    def step_env(self, key, state, actions):
        seen, state, rewards, dones, info = super().step_env(key, state, actions)
        return seen, state, {agent: jnp.zeros(3) for agent in rewards}, dones, info


class Grows(Corridor):
    def step_env(self, key, state, actions):
        seen, state, rewards, dones, info = super().step_env(key, state, actions)
        return seen, state | {"at": jnp.zeros(9)}, rewards, dones, info


class NoEnd(Corridor):
    def step_env(self, key, state, actions):
        seen, state, rewards, _, info = super().step_env(key, state, actions)
        return seen, state, rewards, {}, info


class FewEvents(Corridor):
    def step_env(self, key, state, actions):
        seen, state, rewards, dones, info = super().step_env(key, state, actions)
        return seen, state, rewards, dones, {"events": info["events"][:1]}


class NoMeasure(Counted):
    measures = ("first", "third")


class Raises(Corridor):
    def reset(self, key):
        raise ValueError("no field\nmore")


class OddActions(Corridor):
    def action_space(self, agent):
        return SimpleNamespace(kind="odd")


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no step": (NoStep, {}, "lacks step_env; JaxMARL's interface has agents, reset, step_env"),
    "no agent": (LacksAgent, {}, r"reset\(key\): observations: no entry for agent '1'"),
    "reward": (ShortReward, {}, r"reward of '0': expected shape \(\), got \(3,\)"),
    "state": (Grows, {}, r"state: at has shape \(9,\), after reset\(key\) \(2,\)"),
    "end": (NoEnd, {}, 'dones: expected an entry "__all__"'),
    "events": (FewEvents, {}, r'info\["events"\]: expected shape \(2,\), got \(1,\)'),
    "measures": (NoMeasure, {}, "info: expected 'third' in an entry \"measures\""),
    "raises": (Raises, {}, r"reset\(key\): ValueError: no field$"),
    "actions": (OddActions, {}, r"action_space\('0'\): expected n, .* or low, high"),
    "option": (Corridor, {"agent": 3}, "unknown option 'agent'; did you mean agents"),
    "no game": (7, {}, "expected a game, a class or function that makes one, or a gradweave.marl"),
    "no such event": (
        Corridor,
        {"machine": "start: 0\nfinal: 1\nmoves: {0: {x: 1}}\n"},
        "needs 'x', which never occurs in .*; its events are end0, end1",
    ),
    "no events": (Well, {"machine": CORRIDOR}, "has no events for a machine; name them"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_game_that_lacks_a_part_is_refused_in_one_line(kind: str):
    game, options, said = REFUSED[kind]
    with pytest.raises(OptionError, match=said) as raised:
        make(game, **options)
    assert "\n" not in str(raised.value)


@functools.cache
def rooms(masked: bool) -> Any:
    return make(Rooms(masked) if masked else f"{HERE}:Rooms")


@pytest.mark.parametrize("masked", [False, True])
def test_games_of_pettingzoo_are_played_on_the_host(masked: bool):
    """Beside the same games played by hand; and once more, when the host has forgotten them."""
    environment = rooms(masked)
    assert (environment.actions, environment.masked) == (3, masked)

    def play(key: Any) -> Any:
        def step(carry: Any, key: Any) -> Any:
            states, views = carry
            actions = jax.random.randint(key, (2, 2), 0, jnp.array([2 if masked else 3, 2]))
            # Of who has left only the first action is there.
            actions = jnp.where(views.available[:, :, 1], actions, 0) if masked else actions
            keys = jax.random.split(key, 2)
            states, views, outcome = environment.steps(keys, states, actions)
            return (states, views), (actions, views, outcome, states.seed)

        begun = jax.vmap(environment.reset)(jax.random.split(key, 2))
        return begun[0].seed, jax.lax.scan(step, begun, jax.random.split(key, 12))[1]

    compiled = jax.jit(play)
    first, (actions, views, outcome, seeds) = jax.tree.map(np.asarray, compiled(jax.random.key(1)))
    environment.game._episodes.clear()
    again = jax.tree.map(np.asarray, compiled(jax.random.key(1))[1])
    for one, other in zip(
        jax.tree.leaves((actions, views, outcome)), jax.tree.leaves(again[:3]), strict=True
    ):
        assert np.array_equal(one, other)
    assert outcome.done.any()
    for game in range(2):
        hand = Rooms(masked)
        hand.reset(seed=int(first[game]))
        for step in range(12):
            taken = {a: int(actions[step, game, "ab".index(a)]) for a in hand.agents}
            seen, rewards, left, late, _ = hand.step(taken)
            shown = [seen.get(agent, np.zeros(2)) for agent in "ab"]
            shown = [row["observation"] if isinstance(row, dict) else row for row in shown]
            assert np.allclose(outcome.last.observation[step, game], shown)
            expected = [rewards.get(agent, 0.0) for agent in "ab"]
            assert outcome.reward[step, game].tolist() == expected
            assert bool(outcome.done[step, game]) is (not hand.agents)
            if not hand.agents:
                ended = all(late.values()) and not any(left.values())
                assert bool(outcome.truncated[step, game]) is ended
                hand.reset(seed=int(seeds[step, game]))


def steps_of(environment: Environment, actions: Any) -> list[Any]:
    """The result of each step of one episode: (view before it, outcome)."""
    state, view = environment.reset(jax.random.key(0))
    made = []
    for action in actions:
        before = view
        state, view, outcome = environment.step(jax.random.key(1), state, jnp.array(action))
        made.append((before, outcome))
    return made


def test_an_agent_is_done_when_the_environment_says_so_whoever_it_still_lists():
    made = steps_of(make(Lasting), [[0, 0]] * 5)
    assert [outcome.reward.tolist() for _, outcome in made] == [[1, 1]] * 2 + [[0, 1]] * 3
    assert [bool(outcome.done) for _, outcome in made] == [False] * 4 + [True]
    assert not made[-1][1].truncated
    gone = np.asarray(made[3][0].observation)
    assert not gone[0].any() and gone[1].any()


def test_masks_of_actions_may_stand_in_infos():
    environment = make(Informed)
    assert environment.masked
    made = steps_of(environment, [[0, 0], [1, 1], [1, 1]])
    assert [view.available.astype(int).tolist() for view, _ in made] == [
        [[1, 1, 1], [1, 1, 0]], [[0, 1, 0], [0, 1, 0]], [[1, 1, 1], [1, 1, 0]],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"late": True}, "infos of step have 'action_mask' for 'a', those of reset do not"),
        ({"none": True}, r"action_mask of 'b': expected 2 numbers, .* not 0, got \[0, 0\]"),
    ],
)
def test_masks_that_say_too_little_end_the_game(options: dict[str, bool], said: str):
    environment = make(Informed, **options)
    with pytest.raises(OptionError, match=said), game_errors():
        steps_of(environment, [[1, 1]])


def test_continuous_actions_of_pettingzoo_reach_the_game_in_its_own_range():
    environment = make(Steered)
    assert environment.continuous and environment.actions == 2
    made = steps_of(environment, [[[0.5, 0.0], [-7.0, 3.0]], [[9.0, -1.0], [4.0, -3.0]]])
    # a: −2 + 0.75 · 4 and 0.5; b: as they are. Then the nearest within: 2, 0; 4, 0.
    assert [outcome.reward.tolist() for _, outcome in made] == [[1.5, -4.0], [2.0, 4.0]]
    with pytest.raises(OptionError, match=r"expected discrete actions.*use ippo or mappo"):
        algorithms.check_suits("qmix", "Steered", continuous=environment.continuous)


def test_actions_of_an_unbounded_game_have_the_log_density_of_a_normal_distribution():
    environment = make(Steered)
    settings = algorithms.settings("ippo", environment.family, {"hidden": (3,), "log_std": -0.5})
    learner = algorithms.ALGORITHMS["ippo"].build(
        environment, settings, 1, 1, lambda optimizer: optimizer
    )
    parameters = learner.players.draw(jax.random.key(0))
    _, view = jax.vmap(environment.reset)(jax.random.split(jax.random.key(0), 2))
    noise = jax.random.normal(jax.random.key(2), (2, 2, 2))
    _, played = learner.players.step(parameters, learner.memory(parameters, 2), view, noise)
    _, mean = learner.act(parameters, learner.memory(parameters, 2), view, None, greedy=True)
    spread = np.exp(-0.5)
    np.testing.assert_allclose(played.action, mean + spread * noise, rtol=1e-5)
    density = np.exp(-(np.asarray(noise) ** 2) / 2) / (spread * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(played.log_probability, np.log(density).sum(-1), rtol=1e-5)


def test_what_a_game_raises_is_told_by_its_own_last_calls_and_one_line(capsys):
    with pytest.raises(OptionError, match=r"step\(actions\): ValueError: sensor lost") as raised:
        with game_errors():
            jax.block_until_ready(steps_of(make(Breaks), [[0, 0]] * 3))
    (note,) = raised.value.__notes__
    told = note.splitlines()
    assert told[0] == "Traceback (most recent call last):" and len(told) < 12
    assert told[-1] == "ValueError: sensor lost" and "in read_sensor" in note
    assert "gradweave/marl" not in note and capsys.readouterr().err == ""


def test_environments_on_the_host_are_kept_and_not_made_anew():
    environment = rooms(False)
    made = Rooms.made
    compiled = jax.jit(environment.step)
    state, _ = environment.reset(jax.random.key(5))
    for number in range(9):
        state, _, _ = compiled(jax.random.key(number), state, jnp.zeros(2, jnp.int32))
    assert Rooms.made <= made + 3


class Turns(Rooms):
    def agent_iter(self):
        return iter(())


class OddSpace(Rooms):
    def observation_space(self, agent):
        return SimpleNamespace(shape=None)


class Switches(Rooms):
    def action_space(self, agent):  # MultiBinary has an `n`, too
        return SimpleNamespace(n=3, shape=(3,))


class NoSeed(Rooms):
    def reset(self):
        return {}, {}


@pytest.mark.parametrize(
    ("game", "said"),
    [
        (Turns, "take turns .*aec_to_parallel"),
        (OddSpace, "expected Box or Discrete, or Dict"),
        (Switches, "expected Discrete, or Box of floats of one axis"),
        (NoSeed, r"reset\(seed\): TypeError: .*unexpected keyword argument 'seed'"),
    ],
)
def test_environments_of_pettingzoo_that_cannot_be_played_are_refused(game, said: str):
    with pytest.raises(OptionError, match=said):
        make(game)


@pytest.mark.parametrize(
    ("name", "sets"),
    [
        ("equinox", (0, 1)),
        ("linen", (0, 0)),
        ("of_nnx", (0, 0)),
        ("Recurrent", (0, 1)),
        ("Recurrent", (0, 0)),
    ],
)
def test_a_network_of_others_answers_each_agent_by_its_own_module(name: str, sets: tuple):
    """Along steps as one by one; other sets of parameters, other answers."""
    remembers = name == "Recurrent"
    plan = Plan(named(f"{HERE}:{name}"), (2, 2), 3, 2, remembers)

    @jax.jit
    def answers(key: Any) -> Any:
        network = draw_own(plan, sets, key)
        x = jnp.broadcast_to(jax.random.normal(key, (4, 2, 1, 4)), (4, 2, 2, 4))
        start = jnp.zeros((4, 2), bool).at[2, 0].set(True)
        memory = network.start(2)
        along = network.along(memory, x, start)
        after, first = network(memory, x[0], start[0])
        second = network(after, x[1], start[1])[1]
        fresh = network(memory, x[2], start[2])[1]
        return along, jnp.stack([first, second]), fresh

    along, steps, fresh = jax.tree.map(np.asarray, answers(jax.random.key(3)))
    assert along.shape == (4, 2, 2, 3)
    assert np.allclose(along[:2], steps, atol=1e-6)
    assert np.allclose(along[2, 0], fresh[0], atol=1e-6)  # begins anew
    assert remembers is not np.allclose(along[2, 1], fresh[1], atol=1e-6)
    # Only linen's is told who the agent is.
    alike = sets == (0, 0) and name != "linen"
    assert alike is np.allclose(along[..., 0, :], along[..., 1, :], atol=1e-6)


@pytest.mark.parametrize(
    ("spec", "recurrent", "said"),
    [
        ("equinox:extra=1", False, r"expected shape \(3,\), got \(4,\)"),
        ("Recurrent", False, r"has a memory, start\(\): expected recurrent=true"),
        ("equinox", True, r"has no memory, start\(\): expected recurrent=false"),
        ("Rooms", False, "called with shape .*: TypeError"),
        ("CELLS", False, "expected a function of shape, outputs and key"),
        ("nothing", False, "has no nothing"),
    ],
)
def test_networks_that_do_not_fit_are_refused_in_one_line(spec: str, recurrent: bool, said: str):
    with pytest.raises(OptionError, match=said) as raised:
        Plan(named(f"{HERE}:{spec}"), (2, 2), 3, 2, recurrent)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("algorithm", ["ippo", "mappo", "qmix"])
def test_learners_take_networks_of_others(algorithm: str):
    small = {"environments": 2, "rollout": 4, "hidden": (4,)}
    small |= {"batch_size": 2, "epochs": 1} if algorithm == "qmix" else {"minibatches": 1}
    environment = make(Corridor)
    learner = algorithms.ALGORITHMS[algorithm].build(
        environment,
        algorithms.settings(algorithm, environment.family, small),
        *(1, 5, lambda optimizer: optimizer),
        network=own_parts.equinox,
    )
    state = jax.eval_shape(lambda: learner.init(jax.random.key(0), 0))
    after, metrics = jax.eval_shape(learner.update, state)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)
    assert metrics.returns.shape == (2,)


def test_a_file_imports_nothing(tmp_path: Path):
    for line, said in (
        (f'env = "{HERE}:Corridor"', "give --env"),
        ('network = "a:b"', "--network"),
    ):
        (tmp_path / "c.toml").write_text(line + "\n")
        with pytest.raises(OptionError, match=said):
            read_request(tmp_path / "c.toml", {}, ())
    asked = read_request(None, {"env": f"{HERE}:Corridor", "network": "a:b", "steps": 9}, ())
    about = {"config": asked.config.flat()}
    checkpoint.save(tmp_path / POLICY, {"x": jnp.zeros(1)}, about)
    with pytest.raises(OptionError, match="no file may import: give --env"):
        load_trained(tmp_path)
    with pytest.raises(OptionError, match="no file may import: give --network"):
        load_trained(tmp_path, environment=make(Corridor))
    with pytest.raises(OptionError, match=r"--env: expected .*Corridor, got math:tau"):
        imported(tmp_path, "math:tau", None)
    found = imported(tmp_path, f"{HERE}:Corridor", None)
    assert found["environment"].family == f"{HERE}:Corridor"
    with pytest.raises(GradweaveError, match=r"expected .*Corridor, got .*Well"):
        load_trained(tmp_path, environment=make(Well()), network=own_parts.equinox)
    with pytest.raises((FileError, OptionError)):  # of another shape
        load_trained(tmp_path, environment=make(Corridor), network=own_parts.equinox)


def test_fen_takes_no_networks_and_says_which_algorithms_do():
    asked = read_request(None, {"env": f"{HERE}:Well", "algorithm": "fen", "network": "a:b"}, ())
    with pytest.raises(OptionError, match="fen does not take one; use ippo, mappo, iql, vdn, qmix"):
        asked.check()
