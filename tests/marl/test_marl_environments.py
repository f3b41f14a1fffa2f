"""Every family's adapter: it plays JaxMARL's own game, whatever that game's dictionaries are."""

import dataclasses
import functools
import importlib.metadata
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("jaxtyping")
pytest.importorskip("jaxmarl")

import itertools

import jax
import jax.numpy as jnp
from jaxmarl.environments.multi_agent_env import MultiAgentEnv

from gradweave.errors import OptionError, SpecError
from gradweave.marl.evaluation import play, random_action
from gradweave.marl.games.environment import Environment
from gradweave.marl.games.environments import FAMILIES, family_of, ids, make, parse
from gradweave.marl.games.families.mabrax import MABRAX
from gradweave.marl.games.family import check_version

STEPS = 30
GAMES = {
    "MPE_simple_spread_v3:max_steps=6": "agent_2",
    "MPE_simple_world_comm_v3:max_steps=5,continuous=true": "leadadversary_0",
    "MPE_simple_v3:max_steps=6": "agent_0",
    "MPE_simple_adversary_v3:max_steps=6": "adversary_0",
    "MPE_simple_push_v3:max_steps=6": "adversary_0",
    "MPE_simple_crypto_v3:max_steps=6": "eve_0",
    "MPE_simple_speaker_listener_v4:max_steps=6": "speaker_0",
    "MPE_simple_reference_v3:max_steps=6": "agent_1",
    "MPE_simple_facmac_v1:max_steps=6": "adversary_2",
    "switch_riddle": "agent_0",
    "coin_game:num_inner_steps=3,num_outer_steps=2": "1",
    "storm:num_inner_steps=6": "1",
    "overcooked:max_steps=6,layout=coord_ring": "agent_1",
    "overcooked_v2:max_steps=6,layout=coord_ring,agent_view_size=1": "agent_1",
    "jaxnav:max_steps=6,side=5,lidar_num_beams=8,continuous=true": "agent_1",
    "hanabi:num_colors=2,num_ranks=2,hand_size=2": "agent_1",
    "SMAX:scenario=3m,max_steps=6": "enemy_2",
    "HeuristicEnemySMAX:scenario=3m,max_steps=6": "ally_2",
    "generator:max_steps=6,machine=own": "two",
    "gradweave:ring:3": "workload_scheduling",
}


@functools.cache
def environment(spec: str) -> Environment:
    return make(spec)


class Shared:
    """Stands before a game that is stepped twice: the second time the first answers are given.

    What it was asked with is kept, so that a test can see that it was the same both times. The game
    is compiled once that way.
    """

    def __init__(self, game: Any) -> None:
        self._game = game
        self.asked: dict[str, list[Any]] = {"step_env": [], "reset": []}
        self._answers: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._game, name)

    def step_env(self, *arguments: Any) -> Any:
        return self._answer("step_env", arguments)

    def reset(self, *arguments: Any) -> Any:
        return self._answer("reset", arguments)

    def _answer(self, name: str, arguments: tuple) -> Any:
        self.asked[name].append(arguments)
        if name not in self._answers:
            self._answers[name] = getattr(self._game, name)(*arguments)
        return self._answers[name]


@functools.cache
def both(spec: str) -> tuple[Any, Any]:
    """The same actions in the adapter and in the game's own `step`."""
    env = environment(spec)
    game: Any = env.game

    def step(carry: Any, key: Any) -> tuple[Any, Any]:
        state, view = carry
        draw, play = jax.random.split(key)
        keys = draw[None]
        action = random_action(env, jax.tree.map(lambda x: x[None], view), keys)[0]
        by_agent = {agent: action[i] for i, agent in enumerate(game.agents)}
        if env.continuous:
            parts = {agent: int(env.mask[i].sum()) for i, agent in enumerate(game.agents)}
            by_agent = {
                agent: env.low[i, : parts[agent]]
                + (by_agent[agent][: parts[agent]] + 1)
                / 2
                * (env.high - env.low)[i, : parts[agent]]
                for i, agent in enumerate(game.agents)
            }
        shared: Any = Shared(game)
        after, view, outcome = dataclasses.replace(env, game=shared).step(play, state, action)
        own_step = MultiAgentEnv.step.__wrapped__  # pyright: ignore[reportFunctionMemberAccess]
        seen, own, reward, done, _ = own_step(shared, play, state, by_agent)
        asked = jax.tree.map(
            lambda x: jax.random.key_data(x) if _is_key(x) else x, tuple(shared.asked.values())
        )
        return (after, view), (
            (view, outcome, action),
            (seen, reward, done["__all__"], own),
            after,
            asked,
        )

    def whole(key: Any) -> Any:
        begin, play = jax.random.split(key)
        state, view = env.reset(begin)
        return view, jax.lax.scan(step, (state, view), jax.random.split(play, STEPS))[1]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        view, made = jax.jit(whole)(jax.random.key(1))
        return jax.tree.map(np.asarray, (view, made))


def _is_key(x: Any) -> bool:
    return jax.dtypes.issubdtype(jnp.result_type(x), jax.dtypes.prng_key)


ALIKE = ("MPE_simple_v3", "MPE_simple_adversary", "MPE_simple_push", "MPE_simple_reference")
"""Games whose family's adapter is tried on others."""


@pytest.mark.parametrize("spec", GAMES)
def test_the_adapter_plays_the_games_own_steps(spec):
    """One test with the shapes and masks at every step: a game is compiled once."""
    check_masks_and_shapes(spec)
    if spec.startswith(ALIKE):
        return
    env = environment(spec)
    begun, ((views, outcome, _), (seen, reward, done, own), after, asked) = both(spec)
    stepped, reset = asked  # the same keys, states and actions; of steps without chance any key
    for first, second in ([x if env.stochastic else x[1:] for x in stepped], reset):
        for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
            np.testing.assert_array_equal(x, y)
    for x, y in zip(jax.tree.leaves(after), jax.tree.leaves(own), strict=True):
        np.testing.assert_array_equal(x, y)
    for i, agent in enumerate(env.game.agents):
        if spec.startswith("storm"):
            around, held = seen["observations"][:, i], seen["inventory"][:, :, i]
            own = np.concatenate([around.reshape(STEPS, -1), held], axis=-1)
            paid = reward[:, i]
        else:
            own, paid = seen[agent].reshape(STEPS, -1), reward[agent]
        length = own.shape[1]
        np.testing.assert_array_equal(views.observation[:, i, :length], own)
        assert not views.observation[:, i, length:].any()
        np.testing.assert_allclose(outcome.reward[:, i], paid, rtol=1e-6)
    np.testing.assert_array_equal(outcome.done, done)
    assert done.any(), "an end of an episode belongs to the test"
    np.testing.assert_array_equal(views.start, done)
    assert begun.start
    # Where none ended, the last view is the next one; where one ended, a new one took its place.
    same = (outcome.last.observation == views.observation).all((1, 2))
    assert same[~done].all()


@pytest.mark.parametrize("spec", ["MPE_simple_spread_v3:max_steps=6", "MPE_simple_tag_v3"])
def test_a_step_without_chance_is_the_same_by_every_key(spec):
    env = environment(spec)
    assert not env.stochastic

    @jax.jit
    def step(key: Any) -> Any:
        state, view = env.reset(jax.random.key(0))
        views = jax.tree.map(lambda x: x[None], view)
        action = random_action(env, views, jax.random.key(0)[None])[0]
        return env.game.step_env(key, state, env._by_agent(action))[1]

    first, second = map(step, jax.random.split(jax.random.key(1)))
    for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(x, y)


def test_noise_in_steps_is_chance():
    noisy = make("MPE_simple_v3")
    assert not noisy.stochastic and environment("switch_riddle").stochastic
    noisy.game.u_noise = np.ones(1)
    assert noisy.reading.stochastic(noisy.game)


@pytest.mark.parametrize("spec", ["switch_riddle", "coin_game:num_inner_steps=3,num_outer_steps=2"])
def test_games_side_by_side_are_stepped_as_each_alone(spec):
    """Of one, episodes end at different times; of the other, all at once."""
    env = environment(spec)

    def play(step: Any, key: Any) -> Any:
        def on(carry: Any, key: Any) -> Any:
            games, view = carry
            keys = jax.random.split(key, 6)
            action = random_action(env, view, keys)
            games, view, outcome = step(keys, games, action)
            return (games, view), (games, view, outcome)

        begun = jax.vmap(env.reset)(jax.random.split(key, 6))
        return jax.lax.scan(on, begun, jax.random.split(key, STEPS))[1]

    def as_of_seeds(*arguments: Any) -> Any:
        divided = jax.tree.map(lambda x: x.reshape(2, 3, *x.shape[1:]), arguments)
        made = jax.vmap(env.steps)(*divided)
        return jax.tree.map(lambda x: x.reshape(6, *x.shape[2:]), made)

    alone, *others = (
        jax.jit(functools.partial(play, step))(jax.random.key(2))
        for step in (jax.vmap(env.step), env.steps, as_of_seeds)
    )
    for together in others:
        jax.tree.map(np.testing.assert_array_equal, together, alone)
    ends = np.asarray(alone[2].done).sum(1)
    assert (ends == 0).any() and (ends > 0).any()


def check_masks_and_shapes(spec: str) -> None:
    env = environment(spec)
    _, ((views, outcome, action), *_) = both(spec)
    assert GAMES[spec] in env.agents and len(set(env.agents)) == env.num_agents
    assert views.observation.shape == (STEPS, env.num_agents, env.observation)
    assert views.available.shape == (STEPS, env.num_agents, env.actions)
    assert views.world.shape == (STEPS, env.world)
    assert {measure.shape for measure in outcome.measures.values()} <= {(STEPS,)}
    assert views.available.any(-1).all(), "every agent can do something"
    assert not views.available[:, ~env.mask].any(), "nobody can do what does not exist"
    assert np.isfinite(views.observation).all() and np.isfinite(outcome.reward).all()
    assert outcome.truncated[~outcome.done].sum() == 0
    if not env.masked:
        assert (views.available == env.mask).all()
    if not env.continuous:
        legal = np.take_along_axis(views.available[:-1], action[1:, :, None], axis=-1)
        assert legal.all()


@pytest.mark.parametrize(
    ("spec", "truncated"),
    [
        ("MPE_simple_spread_v3:max_steps=6", True),
        ("coin_game:num_inner_steps=3,num_outer_steps=2", True),
        ("storm:num_inner_steps=6", True),
        ("overcooked:max_steps=6,layout=coord_ring", True),
        ("overcooked_v2:max_steps=6,layout=coord_ring,agent_view_size=1", True),
        ("MPE_simple_facmac_v1:max_steps=6", True),
        ("SMAX:scenario=3m,max_steps=6", True),
        ("switch_riddle", False),
        ("hanabi:num_colors=2,num_ranks=2,hand_size=2", False),
        ("gradweave:ring:3", False),
    ],
)
def test_what_time_alone_ended_is_told(spec, truncated):
    _, ((_, outcome, _), *_) = both(spec)
    assert (outcome.truncated[outcome.done] == truncated).all()


def test_time_ends_a_way_where_a_robot_was_under_way():
    spec = "jaxnav:max_steps=6,side=5,lidar_num_beams=8,continuous=true"
    _, ((_, outcome, _), *_) = both(spec)
    env = environment(spec)
    robots = SimpleNamespace(
        goal_reached=jnp.array([True, False, False]), move_term=jnp.array([False, True, False])
    )
    for late, expected in (([True, True, True], True), ([True, True, False], False)):
        info = {"TimeO": jnp.array(late)}
        assert env.reading.truncated(env.game, robots, info, True) == expected
    assert outcome.truncated[outcome.done].any()


def test_a_victory_is_what_jaxmarl_counts_as_one():
    env = environment("HeuristicEnemySMAX:scenario=3m,max_steps=6")
    for allies, enemies, reward, done, expected in (
        ([1, 0, 0], [0, 0, 0], 1.1, True, (1, 0)),
        ([0, 0, 0], [0, 1, 0], 0.0, True, (0, 1)),
        ([0, 0, 0], [0, 0, 0], 0.2, True, (0, 0)),
        ([1, 0, 0], [0, 0, 1], 0.2, True, (0, 0)),
        ([0, 1, 0], [0, 0, 1], 0.2, False, (0, 0)),
    ):
        state = SimpleNamespace(unit_alive=jnp.array(allies + enemies, bool))
        rewards = dict.fromkeys(env.agents, jnp.float32(reward))
        told = [
            measure(env.game, state, rewards, {}, jnp.array(done))
            for measure in env.reading.measures.values()
        ]
        assert tuple(map(int, told)) == expected


def test_prey_follow_their_rules_and_are_no_agents():
    spec = "MPE_simple_facmac_v1:max_steps=6"
    env = environment(spec)
    assert env.agents == ("adversary_0", "adversary_1", "adversary_2")
    _, ((_, outcome, _), _, after, _) = both(spec)
    moves = np.abs(np.diff(after.p_pos[:, 3], axis=0)).sum(-1)
    assert moves[~outcome.done[1:]].max() > 0
    assert (outcome.reward == outcome.reward[:, :1]).all()


def test_teams_are_of_those_who_want_the_same():
    def teams(spec: str) -> list[int]:
        return list(environment(spec).teams)

    assert teams("MPE_simple_world_comm_v3") == [0, 0, 0, 0, 1, 1]
    assert teams("MPE_simple_crypto_v3:max_steps=6") == [0, 1, 1]
    assert teams("MPE_simple_speaker_listener_v4:max_steps=6") == [0, 0]
    assert teams("MPE_simple_facmac_v1:max_steps=6") == [0, 0, 0]
    assert teams("SMAX:scenario=3m,max_steps=6") == [0, 0, 0, 1, 1, 1]
    assert teams("HeuristicEnemySMAX:scenario=3m,max_steps=6") == [0, 0, 0]
    assert teams("storm:num_inner_steps=6") == [0, 1]
    assert teams("coin_game:num_inner_steps=3,num_outer_steps=2") == [0, 1]
    assert teams("coin_game:shared_rewards=true") == [0, 0]
    assert teams("gradweave:ring:3") == [0, 0]


@pytest.mark.parametrize("spec", [*GAMES, "coin_game:shared_rewards=true", "job_scheduling"])
def test_what_is_known_of_a_game_without_making_it(spec):
    """By which a training that no learner suits is refused before JAX is imported."""
    env, (id, options) = environment(spec), parse(spec, {})
    family = FAMILIES[family_of(spec)]
    assert family.continuous(options) == env.continuous
    assert family.opposed(id, options) == (len(set(env.teams)) > 1)


@pytest.mark.parametrize("spec", GAMES)
def test_every_game_is_drawn(spec, tmp_path):
    """Its first steps, as they were played."""
    pytest.importorskip("matplotlib")
    Image = pytest.importorskip("PIL.Image")
    from gradweave.marl.games.render import Frame, save_gif

    env = environment(spec)
    _, ((views, outcome, action), _, after, _) = both(spec)
    paid = outcome.reward
    frames = [
        Frame(
            jax.tree.map(lambda x, t=t: x[t], after),
            views.observation[t],
            action[t],
            paid[t],
            paid[:t].sum(0),
        )
        for t in (0, 3)
    ]
    save_gif(env, frames, tmp_path / "game.gif")
    with Image.open(tmp_path / "game.gif") as picture:
        assert picture.n_frames == 2
        drawn = np.asarray(picture.convert("L"))[80:]
    assert len(np.unique(drawn)) > 1, "something below the two lines of text"


def test_only_who_is_in_the_room_has_a_choice():
    """What the others say is done by nobody, so a value of it would be learned from noise."""
    env = environment("switch_riddle")
    _, ((views, *_), *_) = both("switch_riddle")
    in_room = views.observation[..., 0] == 1
    assert (in_room.sum(-1) == 1).all()
    assert views.available[in_room].all()
    assert views.available[~in_room].tolist() == [[True, False, False]] * int((~in_room).sum())
    state, view = env.reset(jax.random.key(0))
    agent = int(view.observation[:, 0].argmax())
    for action in range(3):
        results = [
            env.step(jax.random.key(1), state, jnp.full(3, others).at[agent].set(action))
            for others in range(3)
        ]
        jax.tree.map(np.testing.assert_array_equal, *itertools.pairwise(results))


def test_what_is_seen_of_the_riddle_is_enough_for_the_best_return():
    """The light is on while one agent has been in the room; whoever comes third, then, tells."""
    env = environment("switch_riddle")

    def act(memory: Any, view: Any, keys: Any) -> Any:
        been, day = memory
        in_room, light = view.observation[..., 0] == 1, view.observation[..., 1] == 1
        comes_first = jnp.where(light, 1, 2)
        action = jnp.where(day == 0, 1, jnp.where(been, 0, comes_first))
        return (been | in_room, day + 1), jnp.where(in_room, action, 0)

    keys = jax.random.split(jax.random.key(0), 512)
    memory = jnp.zeros((512, 3), bool), 0
    returns, lengths, _ = jax.jit(lambda keys: play(env, act, memory, keys))(keys)
    assert returns.min() == 0 and lengths.max() == 6  # nobody tells what is not so
    assert abs(returns.mean() - 20 / 27) < 0.06  # three standard errors


def test_sizes_are_the_games():
    def sizes(spec: str) -> tuple[int, int, int, int]:
        env = environment(spec)
        return env.num_agents, env.observation, env.actions, env.world

    assert sizes("MPE_simple_spread_v3:max_steps=6") == (3, 18, 5, 54)
    assert sizes("MPE_simple_tag_v3") == (4, 16, 5, 16 * 3 + 14)
    assert sizes("MPE_simple_world_comm_v3") == (6, 34, 20, 34 * 4 + 28 * 2)
    comm = environment("MPE_simple_world_comm_v3")
    assert comm.mask.sum(1).tolist() == [20, 5, 5, 5, 5, 5]
    moves = environment("MPE_simple_world_comm_v3:max_steps=5,continuous=true")
    assert moves.mask.sum(1).tolist() == [9, 5, 5, 5, 5, 5] and moves.continuous
    assert (moves.low[moves.mask] == 0).all() and (moves.high[moves.mask] == 1).all()
    assert sizes("MPE_simple_crypto_v3:max_steps=6") == (3, 8, 4, 4 + 8 + 8)
    assert sizes("MPE_simple_reference_v3:max_steps=6") == (2, 21, 50, 42)
    assert sizes("MPE_simple_speaker_listener_v4:max_steps=6") == (2, 11, 5, 14)
    assert environment("MPE_simple_speaker_listener_v4:max_steps=6").mask.sum(1).tolist() == [3, 5]
    hunts = [make(f"MPE_simple_facmac_{number}a_v1") for number in (3, 6, 9)]
    assert [hunt.num_agents for hunt in hunts] == [3, 6, 9]
    assert [hunt.observation for hunt in hunts] == [16, 28, 40]
    assert all(hunt.continuous for hunt in hunts)
    robots = make("jaxnav:side=5,lidar_num_beams=8")
    assert (robots.num_agents, robots.observation, robots.actions) == (2, 8 + 5, 15)
    steered = environment("jaxnav:max_steps=6,side=5,lidar_num_beams=8,continuous=true")
    np.testing.assert_allclose(steered.low[0], [0, -np.pi / 6], rtol=1e-6)
    np.testing.assert_allclose(steered.high[0], [1, np.pi / 6], rtol=1e-6)
    assert environment("overcooked:max_steps=6,layout=coord_ring").observation == 5 * 5 * 26
    assert environment("SMAX:scenario=3m,max_steps=6").num_agents == 6
    assert environment("HeuristicEnemySMAX:scenario=3m,max_steps=6").num_agents == 3


def test_help_for_learning_is_apart_from_the_reward():
    _, ((_, outcome, _), *_) = both("overcooked:max_steps=6,layout=coord_ring")
    assert outcome.shaped.shape == outcome.reward.shape
    _, ((_, other, _), *_) = both("switch_riddle")
    assert not other.shaped.any() and other.reward.any()


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("chess", r"environment: expected one of MPE_simple_spread_v3, .*, got 'chess'"),
        (
            "MPE_simple_spread_v3:num_agent=4",
            r"unknown option 'num_agent'; did you mean num_agents\? it takes",
        ),
        ("MPE_simple_spread_v3:num_agents", "expected name=value once each, got 'num_agents'"),
        ("switch_riddle:num_agents=2", "switch_riddle: refused its options"),
        ("overcooked:layout=diner", "layout: expected one of cramped_room, .* got 'diner'"),
        ("SMAX:scenario=1x1", "scenario: expected one of 3m, "),
        ("storm:freeze_penalty=0", "freeze_penalty: expected 1 or more steps, got 0"),
        ("overcooked_v2:layout=diner", "layout: expected one of cramped_room, .* got 'diner'"),
        ("MPE_simple_push_v3:num_obs=3", "unknown option 'num_obs'; .*it takes continuous, max_"),
        ("MPE_simple_facmac_3a_v1:max_steps=3", "unknown option 'max_steps'; it takes none"),
        ("MPE_simple_crypto_v3:num_agents=4", "unknown option 'num_agents'"),
    ],
)
def test_what_there_is_not_is_refused(spec, reason):
    with pytest.raises(OptionError, match=reason) as raised:
        make(spec)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("installed", ["0.1.0", "0.2.0", "0.10rc1"])
def test_a_jaxmarl_of_another_interface_is_refused(installed, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: installed)
    if installed == "0.1.0":
        with pytest.raises(
            OptionError, match=r"^storm: expected JaxMARL 0\.2 or later.* got 0\.1\.0"
        ):
            make("storm")
    else:
        check_version("storm")


def test_a_network_that_there_is_not_is_refused():
    with pytest.raises(SpecError, match="unknown family of networks"):
        make("gradweave:nocube:n=3")


def test_a_game_that_prints_while_it_is_traced_is_quiet(capsys):
    game = make("jaxnav:side=5,lidar_num_beams=8").game
    seen = jax.eval_shape(game.reset, jax.random.key(0))
    actions = {agent: jnp.int32(0) for agent in game.agents}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jax.eval_shape(game.step_env, jax.random.key(0), seen[1], actions)
    assert capsys.readouterr().out == ""


def test_without_brax_its_games_say_what_to_install():
    if any("brax" in name for name in sys.modules):
        pytest.skip("Brax is there")
    with pytest.raises(OptionError, match="requires brax, which is not installed"):
        make(MABRAX[0])


def test_every_id_is_of_one_family():
    assert len(ids()) == len(set(ids()))
    assert {family_of(id) for id in ids()} == set(FAMILIES)
    assert all(family.meaning for family in FAMILIES.values())


def test_two_agents_who_meet_in_storm_are_paid_by_the_matrix():
    """JaxMARL freezes them and pays nothing."""
    env = environment("storm:num_inner_steps=6")
    step = jax.jit(env.game.step_env)
    _, state = env.game.reset(jax.random.key(0))
    facing = state.replace(
        grid=jnp.zeros_like(state.grid).at[3, 3].set(1).at[3, 4].set(2),
        agent_positions=jnp.array([[3, 3, 0], [3, 4, 2]], state.agent_positions.dtype),
    )

    def paid(held: list[list[float]], actions: tuple[int, int] = (3, 3)) -> list[float]:
        state = facing.replace(agent_inventories=jnp.array(held))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return step(jax.random.key(1), state, dict(enumerate(actions)))[2].tolist()

    # A coin of the first kind is to cooperate: 3 each; who defects gets 5 from who does not.
    assert paid([[2.0, 0.0], [0.0, 3.0]]) == [0, 5]
    assert paid([[0.0, 1.0], [0.0, 3.0]]) == [1, 1]
    assert paid([[1.0, 1.0], [1.0, 0.0]]) == [4, 1.5]
    assert paid([[2.0, 0.0], [0.0, 3.0]], (3, 4)) == [0, 0]
    assert paid([[2.0, 0.0], [0.0, 0.0]]) == [0, 0]
