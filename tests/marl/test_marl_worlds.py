"""Worlds with reward machines: rules, learning in tables, machines beside deep learners."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("jaxtyping")

import jax
import jax.numpy as jnp

from gradweave.automata import check, projections, read_text
from gradweave.errors import GradweaveError, OptionError
from gradweave.marl.games.environments import make
from gradweave.marl.games.guided import Guided, guide_of
from gradweave.marl.games.worlds import WorldGame, guided
from gradweave.marl.learners.counterfactual import doubled
from gradweave.marl.learners.q_learning import Rows
from gradweave.marl.tabular.learning import learn
from gradweave.marl.worlds import catalogue
from gradweave.marl.worlds.world import World
from tests.automata.test_rewards import OFFICE, TRAP

UP, RIGHT, DOWN, LEFT, STAY = range(5)


@pytest.fixture
def no_slip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradweave.marl.tabular.transitions.SLIP", 0.0)


def played(game: WorldGame | Guided, *paths: list[int]) -> tuple[dict, object, list[set[str]]]:
    """All agents' actions, in step; those with shorter paths stay."""
    _, state = game.reset(jax.random.key(0))
    step, happened, rewards = jax.jit(game.step_env), [], {}
    for number in range(max(map(len, paths))):
        actions = {
            agent: jnp.int32(path[number] if number < len(path) else STAY)
            for agent, path in zip(game.agents, paths, strict=True)
        }
        _, state, rewards, dones, info = step(jax.random.key(number), state, actions)
        fired = np.flatnonzero(info["events"])
        happened.append({game.world.rules[rule].event for rule in fired})
        if dones["__all__"]:
            break
    return rewards, state, happened


@pytest.mark.parametrize(("text", "mean"), [(OFFICE, -0.34375), (TRAP, -1.75)])
def test_agents_are_paid_what_the_machine_says_at_random(text: str, mean: float):
    """Four steps; in each, one of the three events or none happens, all equally often."""
    task = read_text(text)
    events = task.machine.events
    machines = guide_of(task, events, [(event, (0,)) for event in events]).machines
    after, worth = np.asarray(machines.next[0]), np.asarray(machines.reward[0])
    value = np.zeros(len(after))
    for _ in range(4):
        value = np.where(machines.ended[0], 0.0, ((worth + value[after]).sum(1) + value) / 4)
    assert value[machines.start[0]] == mean


TO_A = [UP, RIGHT, RIGHT, RIGHT]
A_TO_C = [DOWN] + [LEFT] * 7
TO_B = [STAY] * 12 + [RIGHT] * 6


def test_the_generator_is_done_when_drained_then_unlocked(no_slip: None):
    game = WorldGame(catalogue.generator())
    rewards, _, happened = played(game, TO_A + A_TO_C, TO_B)
    assert rewards == {"one": 1.0, "two": 1.0}
    assert [event for fired in happened for event in sorted(fired)][:2] == ["a", "c"]


def test_open_doors_let_agents_through_from_the_beginning(no_slip: None):
    shut, opened = (WorldGame(catalogue.generator(), doors=doors) for doors in (True, False))
    to_b = [TO_B[0], *TO_B[12:]]
    happened = [set().union(*played(game, [], to_b)[2]) for game in (shut, opened)]
    assert happened == [set(), {"b"}]


def test_who_unlocks_first_can_never_drain_and_a_machine_knows(no_slip: None):
    straight = [LEFT] * 4
    game = WorldGame(catalogue.generator())
    _, state, happened = played(game, straight + [RIGHT] * 6, [])
    assert (
        happened[3] == {"c"} and int(state.cells[0]) % 9 == 3
    )  # in the door, which lets nobody back
    knowing = guided(catalogue.generator(), catalogue.generator().task)
    rewards, state, happened = played(knowing, straight + [STAY] * 5, [])
    assert len(happened) == 4 and set(map(float, rewards.values())) == {0.0}


def test_the_laboratory_carries_both_and_asks_for_the_right_button(no_slip: None):
    game = WorldGame(catalogue.laboratory())
    there = [RIGHT, RIGHT, DOWN, RIGHT], [RIGHT, RIGHT, UP, RIGHT]
    _, state, happened = played(game, *(path + [STAY] * 5 for path in there))
    assert happened[3] == {"c"} and happened[7] in ({"a"}, {"b"})
    assert state.cells.tolist() == [5 * 15 + 10] * 2


@pytest.mark.parametrize("name", ["generator", "laboratory", "buttons", "rendezvous"])
def test_every_world_is_divided_rightly(name: str):
    world = catalogue.world(name)
    task = world.task
    agents = projections(task.machine, task.agents)
    assert check(task.machine, agents, task.causal).valid
    game = WorldGame(world)
    seen, state = game.reset(jax.random.key(0))
    assert set(seen) == set(world.agents)
    actions = {agent: jnp.int32(STAY) for agent in world.agents}
    after = jax.eval_shape(game.step, jax.random.key(1), state, actions)[1]
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)


def learned(world: World, causal: bool, **options: object) -> np.ndarray:
    return learn(world, steps=6_000, trials=4, causal=causal, **options)[0].taken  # type: ignore[arg-type]


def test_causal_knowledge_makes_learning_quicker():
    knowing = learned(catalogue.generator(), True)
    without = learned(catalogue.generator(), False)
    assert np.median(knowing[-3:]) < 40
    assert np.median(knowing[2:5]) < np.median(without[2:5])


def test_averaging_needs_whole_groups():
    with pytest.raises(OptionError, match="multiple of 4"):
        learn(catalogue.generator(), steps=1000, trials=6, weights=np.full((4, 4), 0.25))


def test_one_learner_for_many_agents_is_refused_before_it_is_built():
    with pytest.raises(OptionError, match="use a learner per agent"):
        learn(catalogue.rendezvous(4), steps=1000, trials=1, central=True)


def test_rows_are_doubled_as_if_the_machines_had_been_elsewhere():
    environment = make("generator:machine=own,max_steps=50")
    guide = environment.guide
    assert guide is not None
    agents, width, events = 2, environment.observation, len(guide.order)
    seen = guide.written(jnp.zeros((3, 5, agents, width)), jnp.zeros((3, 5, agents), jnp.int32))
    fired = jnp.zeros((3, 4, events), bool).at[:, 0, 0].set(True).at[:, 2, 2].set(True)  # a, c
    rows = Rows(
        memory=None,
        observation=seen,
        available=None,
        world=None,
        start=jnp.zeros((3, 5), bool),
        action=jnp.zeros((3, 4, agents), jnp.int32),
        reward=jnp.zeros((3, 4, agents)),
        done=jnp.zeros((3, 4), bool),
        events=fired,
    )
    both = doubled(guide, rows, jax.random.key(0))
    assert both.observation.shape[0] == 6 and np.array_equal(both.observation[:3], seen)
    known = np.asarray(guide.read(both.observation[3:]))
    machines = guide.machines
    for row, agent in np.ndindex(3, agents):
        state = known[row, 0, agent]
        assert not machines.ended[agent, state]
        after = machines.next[agent, state, 0] if machines.hears[agent, 0] else state
        assert known[row, 1, agent] == after == known[row, 2, agent]
        ended = bool(machines.ended[agent, after])
        gained = 0.0 if ended else float(machines.reward[agent, after, guide.order[2]])
        assert both.reward[3 + row, 2, agent] == gained


HOSTILE = {
    "another world's event": (
        "start: 0\nfinal: 1\nmoves: {0: {x: 1}}\n",
        "never occurs in generator",
    ),
    "other agents": (
        "start: 0\nfinal: 1\nmoves: {0: {a: 1}}\nagents: {one: [a], two: [a], three: [a]}\n",
        "has 3 agents",
    ),
    "no machine": ("[]\n", "pairs"),
    "a door that stays shut": (
        "start: 0\nfinal: 1\nmoves: {0: {a: 1}}\nagents: {one: [a], two: []}\n",
        "agent two of generator waits at a door that opens with c, .* generator:doors=open",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_machines_that_do_not_fit_are_refused(kind: str):
    text, said = HOSTILE[kind]
    with pytest.raises(GradweaveError, match=said):
        make("generator", machine=text)


def test_a_request_keeps_the_machine_and_refuses_games_without_events(tmp_path):
    from gradweave.marl.request import read_request

    file = tmp_path / "task.yaml"
    file.write_text("start: 0\nfinal: 1\nmoves: {0: {a: 1}}\nagents: {one: [a], two: []}\n")
    open_doors = {"env": "generator:doors=open", "algorithm": "iql"}
    asked = read_request(None, open_doors, (), str(file))
    file.unlink()
    kept = make(asked.config.env, **asked.config.options)
    assert kept.guide is not None and kept.observation == 81 + kept.guide.states
    assert kept.id == "generator:doors=open,machine=given"
    with pytest.raises(OptionError, match="no events"):
        read_request(None, {"env": "switch_riddle"}, (), "own")
    assert dataclasses.asdict(asked.config)["options"]["machine"].startswith("name: task")
