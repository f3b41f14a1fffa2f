"""Machines from machines, by hand and by slow code that says the same in another way."""

import itertools

import numpy as np
import pytest

from gradweave.automata import Machine, check, minimised, product, projection
from gradweave.automata.decomposition import _grown, least
from gradweave.automata.machine import NO_MOVE
from gradweave.automata.operations import compose, dead, group_of, values, view
from tests.automata.machines import random_division, random_machine

TASK = Machine.of(
    {"s": {"a": ("t", 0.5)}, "t": {"b": ("end", 2.0)}, "end": {}},
    start="s",
    final=["end"],
    events=["c"],
    name="task",
)
WORLD = Machine.of(
    {"p": {"b": ("q", 0.0)}, "q": {}}, start="p", forbidden=["q"], events=["c"], name="world"
)


def moves(machine: Machine) -> dict[str, dict[str, str]]:
    """State -> event -> state after it."""
    return {
        state: {
            event: machine.states[to]
            for event, to in zip(machine.events, row.tolist(), strict=True)
            if to != NO_MOVE
        }
        for state, row in zip(machine.states, machine.next, strict=True)
    }


def test_a_product_moves_each_that_has_a_move_and_stays_only_where_none_has():
    both = product(TASK, WORLD)
    assert both.machine.events == ("a", "b", "c")
    assert moves(both.machine) == {
        "s|p": {"a": "t|p", "b": "s|q"},
        "t|p": {"b": "end|q"},
        "s|q": {"a": "t|q"},
        "t|q": {"b": "end|q"},
        "end|q": {},
    }
    assert both.machine.states == ("s|p", "t|p", "s|q", "end|q", "t|q")
    assert both.first.tolist() == [0, 1, 0, 2, 1] and both.second.tolist() == [0, 0, 1, 1, 1]
    assert both.machine.reward.tolist() == [
        [0.5, 0, 0], [0, 2, 0], [0.5, 0, 0], [0, 0, 0], [0, 2, 0]
    ]  # fmt: skip
    assert both.machine.final.tolist() == [False, False, False, True, False]
    assert both.machine.forbidden.tolist() == [False, False, True, True, True]


def test_values_are_those_of_the_best_event_that_may_happen():
    machine = Machine.of(
        {
            "far": {"a": ("near", 0.0), "b": ("far", -1.0)},
            "near": {"a": ("end", 2.0), "b": ("never", 50.0)},
            "never": {"a": ("end", 9.0)},
            "loss": {"a": ("end", -3.0)},
            "end": {},
        },
        start="far",
        final=["end"],
        forbidden=["never"],
    )
    assert values(machine, discount=0.5).tolist() == [1.0, 2.0, 9.0, 0.0, 0.0]
    loop = Machine.of({"on": {"a": ("on", 1.0)}}, start="on")
    assert values(loop, discount=0.9)[0] == pytest.approx(10, abs=1e-7)
    huge = Machine.of({"on": {"a": ("on", 1e308)}}, start="on")
    with np.errstate(over="ignore", invalid="ignore"):
        assert not values(huge)[0] < 1e308  # it ends


def test_dead_is_what_is_not_done_and_neither_earns_nor_loses():
    machine = Machine.of(
        {
            "alive": {"a": ("end", 1e-4)},
            "far": {"a": ("farther", 0.0)},
            "farther": {"a": ("alive", 0.0)},
            "unpaid": {"a": ("end", 0.0)},
            "punished": {"a": ("stuck", -2.0)},
            "never done": {"a": ("never done", 0.5)},
            "shut out": {"a": ("never", 1.0), "b": ("circling", 0.0)},
            "circling": {"a": ("shut out", 0.0)},
            "stuck": {},
            "never": {"a": ("end", 1.0)},
            "end": {},
            "end of all": {},
        },
        start="alive",
        final=["end", "end of all"],
        forbidden=["never", "end of all"],
    )
    lost = dict(zip(machine.states, dead(machine).tolist(), strict=True))
    assert lost == {
        "alive": False, "far": False, "farther": False, "unpaid": False, "punished": False,
        "never done": False, "shut out": True, "circling": True, "stuck": True, "never": True,
        "end": False, "end of all": False,
    }  # fmt: skip


def test_a_view_follows_what_is_hidden_as_far_as_the_world_allows():
    automaton = Machine.of(
        {
            "0": {"x": ("1", 0.0), "y": ("never", 0.0), "a": ("never", 0.0)},
            "1": {"y": ("2", 0.0), "a": ("3", 0.0)},
            "2": {"a": ("3", 0.0), "c": ("4", 0.0)},
            "3": {"b": ("never", 0.0)},
            "never": {"x": ("beyond", 0.0)},
            "beyond": {"b": ("beyond", 0.0)},
            "4": {},
        },
        start="0",
        forbidden=["never"],
    )
    seen = view(automaton, ["a", "b", "c"])
    # Hidden x and y may have led to 1 and 2, never to `beyond`; after a only 3 is left, from which
    # b never happens; after c it is open whether 0, 1 or 4 is the case, and a may still come.
    start, after_a = seen.states[seen.start], "3"
    assert start == "0/1/2" and len(seen.states) == 4
    assert moves(seen)[start]["a"] == after_a and moves(seen)[start]["b"] == start
    assert seen.forbidden[seen.states.index(moves(seen)[after_a]["b"])]
    assert [s for s, no in zip(seen.states, seen.forbidden, strict=True) if no] == ["never"]
    blind = view(automaton, [])
    assert len(blind.states) == 1 and not blind.forbidden.any()


def naive_groups(machine: Machine, events: list[str]) -> list[int]:
    """States that are one where others' events are hidden: merged until nothing changes."""
    group = list(range(len(machine.states)))
    changed = True
    while changed:
        changed = False
        after: dict[tuple[int, int], int] = {}
        for state, column in np.argwhere(machine.next != NO_MOVE).tolist():
            to = group[machine.next[state, column]]
            heard = machine.events[column] in events
            other = after.setdefault((group[state], column), to) if heard else group[state]
            if other != to:
                group = [min(other, to) if each in (other, to) else each for each in group]
                changed = True
                break
    return group


def test_projections_merge_what_naive_code_merges():
    rng = np.random.default_rng(11)
    for _ in range(60):
        machine = random_machine(rng, 7, "abc", 0.4)
        events = random_division(rng, "abc")[0]
        naive = naive_groups(machine, events)
        group = group_of(machine, events).tolist()
        assert [group.index(each) for each in group] == [naive.index(each) for each in naive]
        names = [machine.states[s] for s in range(7) if naive[s] == naive[0]]
        part = projection(machine, events, "part")
        assert part.states[part.start] == ",".join(names) and len(part.states) == len(set(naive))


def test_rewards_and_marks_of_a_projection():
    team = Machine.of(
        {
            "0": {"x": ("1", 0.0), "a": ("2", -0.75)},
            "1": {"a": ("2", -0.75)},
            "2": {"y": ("3", 0.5), "a": ("end", 4.0)},
            "3": {"b": ("end", -1.0)},
            "end": {},
        },
        start="0",
        final=["end"],
        forbidden=["0", "1", "2"],
    )
    part = projection(team, ["a", "b"], "part")
    assert moves(part) == {"0,1": {"a": "2,3"}, "2,3": {"a": "end", "b": "end"}, "end": {}}
    assert part.reward.tolist() == [[-0.75, 0.0], [4.0, -1.0], [0.0, 0.0]]
    assert part.forbidden.tolist() == [True, False, False]  # where all its states are
    assert part.final.tolist() == [False, False, True] and part.name == "part"
    commas = Machine.of({"0,1": {"x": ("0", 0.0)}, "0": {}, "1": {"a": ("0", 0.0)}}, start="1")
    assert len(set(projection(commas, ["a", "x"]).states)) == 3


def test_a_composition_waits_for_all_who_hear_an_event():
    one = Machine.of(
        {"0": {"a": ("1", -0.5)}, "1": {"b": ("2", 1.0)}, "2": {}}, start="0", final="2"
    )
    two = Machine.of(
        {"0": {"b": ("1", 1.0), "c": ("x", -2.0)}, "1": {}, "x": {}},
        start="0", final=["1"], forbidden=["x"],
    )  # fmt: skip
    both = compose([one, two], "both")
    assert moves(both) == {
        "0 0": {"a": "1 0", "c": "0 x"},
        "1 0": {"b": "2 1", "c": "1 x"},
        "0 x": {"a": "1 x"},
        "2 1": {},
        "1 x": {},
    }
    assert both.run("b") == ("0 0", 0.0) and both.run("acb") == ("1 x", -2.5)
    assert both.run("ab") == ("2 1", 0.5) and both.reward.sum() == -0.5 - 2 - 2 + 1 - 0.5
    assert [s for s, no in zip(both.states, both.forbidden, strict=True) if no] == ["0 x", "1 x"]


def behaviour(machine: Machine, state: int, length: int) -> tuple:
    """All that traces of a length tell of a state."""
    marks = bool(machine.final[state]), bool(machine.forbidden[state])
    if not length:
        return marks
    told = []
    for column in range(len(machine.events)):
        to = int(machine.next[state, column])
        reward = float(machine.reward[state, column])
        told.append(None if to == NO_MOVE else (reward, behaviour(machine, to, length - 1)))
    return (*marks, *told)


def test_the_least_equal_machine_has_a_state_for_each_behaviour():
    rng = np.random.default_rng(12)
    for number in range(25):
        machine = random_machine(rng, 5, "ab", 0.7)
        if number % 2:
            marked = rng.random(5) < 0.3
            machine = machine.replace(forbidden=marked)
        reached, todo = {machine.start}, [machine.start]
        for state in todo:
            new = set(machine.next[state].tolist()) - reached - {NO_MOVE}
            reached |= new
            todo += new
        expected = {behaviour(machine, state, 6) for state in reached}
        small = minimised(machine)
        found = {behaviour(small, state, 6) for state in range(len(small.states))}
        assert found == expected and len(small.states) == len(expected)
        assert behaviour(small, small.start, 6) == behaviour(machine, machine.start, 6)


def test_the_least_that_has_to_be_told_is_the_first_of_the_fewest():
    have = [("x", "a"), ("y", "b")]
    more = [("x", "b"), ("x", "c"), ("y", "a"), ("y", "c")]
    assert list(_grown(have, ["x", "y"], "abc")) == [
        told for number in (1, 2, 3, 4) for told in itertools.combinations(more, number)
    ]
    # Three events in turn, each by another: whoever acts has to see what came before.
    team = Machine.of(
        {"0": {"a": ("1", 0.0)}, "1": {"b": ("2", 0.0)}, "2": {"c": ("3", 1.0)}, "3": {}},
        start="0",
        final=["3"],
    )
    alone = {"x": ("a",), "y": ("b",), "z": ("c",)}
    found = least(team, alone)
    smallest = [
        told
        for told in _grown([(who, e) for who, es in alone.items() for e in es], "xyz", "abc")
        if check(team, [projection(team, told_to(alone, told, who)) for who in "xyz"]).valid
    ]
    assert found is not None and found.proved and found.hidden == ()
    assert (
        found.communicated == smallest[0]
        and len(found.communicated) == min(map(len, smallest)) == 2
    )
    assert found.division == {who: tuple(told_to(alone, found.communicated, who)) for who in "xyz"}


def told_to(alone: dict[str, tuple[str, ...]], told: tuple, who: str) -> list[str]:
    return sorted({*alone[who], *(event for agent, event in told if agent == who)})


def test_nothing_is_the_least_where_no_telling_helps():
    moves = {"0": {"a": ("1", 0.0), "b": ("end", 1.0)}, "1": {"b": ("0", 0.0)}, "end": {}}
    team = Machine.of(moves, start="0", final=["end"])
    never = projection(team, [], "nobody")
    assert check(team, [team]).valid and not check(team, [never]).valid
    assert least(team, {}) is None
