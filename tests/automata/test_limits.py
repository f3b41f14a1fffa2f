"""Questions about machines take time in proportion, or say in one line where they stop."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from gradweave.automata import (
    Machine,
    automaton,
    check,
    files,
    minimised,
    operations,
    projection,
    replay,
)
from gradweave.automata import decomposition as dividing
from gradweave.automata.decomposition import least
from gradweave.automata.operations import compose, values, view
from gradweave.errors import FileError, OptionError, SpecError
from tests.growth import FACTOR, refuse_square


def chain(n: int) -> Machine:
    """A task of n events in turn, told by nothing but the last one."""
    moves = {str(i): {"a": (str(i + 1), 0.0)} if i < n else {} for i in range(n + 1)}
    return Machine.of(moves, start="0", final=[str(n)])


def two_chains(n: int) -> Machine:
    """Whose states merge in pairs, one pair after the other, once it is hidden which was taken."""
    moves: dict[str, dict[str, tuple[str, float]]] = {"s": {"x": ("a0", 0.0), "y": ("b0", 0.0)}}
    for i in range(n):
        for side in "ab":
            moves[f"{side}{i}"] = {"t": (f"{side}{i + 1}", 0.0)} if i < n - 1 else {}
    return Machine.of(moves, start="s")


def in_turns(n: int) -> tuple[Machine, dict[str, list[str]]]:
    """Two agents who act in turns, each after a shared event of which neither can be left out."""
    shared = [f"c{i}" for i in range(n)]
    events = list(itertools.chain(*zip(itertools.cycle("ab"), shared, strict=False)))
    moves = {str(i): {event: (str(i + 1), 0.0)} for i, event in enumerate(events)}
    end = str(len(events))
    team = Machine.of(moves | {end: {}}, start="0", final=[end])
    return team, {"one": ["a", *shared], "two": ["b", *shared]}


def all_shared(n: int) -> tuple[Machine, dict[str, list[str]]]:
    team, _ = in_turns(n)
    return team, {"one": list(team.events), "two": list(team.events)}


QUESTIONS: dict[str, tuple[Callable[[int], Any], int]] = {
    "the least equal machine": (lambda n: functools.partial(minimised, chain(n)), 60),
    "values": (lambda n: functools.partial(values, chain(n)), 60),
    "a projection": (lambda n: functools.partial(projection, two_chains(n), ["t"]), 60),
    "a part that sees nothing": (lambda n: functools.partial(projection, chain(n), []), 60),
    "a composition": (lambda n: functools.partial(compose, [chain(n), chain(n)]), 60),
    "a check": (lambda n: functools.partial(check, chain(n), [chain(n)]), 60),
}
"""What is asked of a machine of so many states, or twice as many."""


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_about_a_machine_takes_time_in_proportion(name: str):
    asked, states = QUESTIONS[name]
    refuse_square(asked(states), asked(states * FACTOR))


@pytest.mark.parametrize("division", [in_turns, all_shared])
def test_the_least_set_of_events_is_searched_within_its_limit(division, monkeypatch):
    asked: list[int] = []
    checked, replayed = dividing._checked, replay
    monkeypatch.setattr(dividing, "replay", lambda *given: asked.append(0) or replayed(*given))
    monkeypatch.setattr(dividing, "_checked", lambda *given: asked.append(1) or checked(*given))
    monkeypatch.setattr(dividing, "MOST_TRIED", 200)
    monkeypatch.setattr(dividing, "MOST_FOLLOWED", 50_000)
    for shared in (3, 6, 12, 24):  # pairs to hide: 6, 12, 24, 48, and sets of them 2^48
        asked.clear()
        found = least(*division(shared))
        assert found is not None and (found.proved or not found.hidden)
        assert len(asked) <= 200 * (dividing._KEPT_TRACES + 1)


def test_most_divisions_are_refuted_by_a_trace_that_refuted_another(monkeypatch):
    checked, whole = dividing._checked, []
    monkeypatch.setattr(dividing, "_checked", lambda *given: whole.append(0) or checked(*given))
    found = least(*in_turns(5))
    assert found is not None and found.proved and len(found.hidden) == 1
    assert len(whole) < 30  # of 242


def test_a_search_stops_after_so_many_divisions(monkeypatch):
    team, division = in_turns(3)
    whole = least(team, division)
    assert whole is not None and whole.proved and len(whole.hidden) == 1
    counted = dividing._shrunk([(agent, e) for agent, es in division.items() for e in es])
    place = list(counted).index(whole.hidden) + 1
    monkeypatch.setattr(dividing, "MOST_TRIED", place)
    assert least(team, division) == whole
    monkeypatch.setattr(dividing, "MOST_TRIED", place - 1)
    stopped = least(team, division)
    assert stopped is not None and not stopped.proved and not stopped.hidden
    assert stopped.division == {agent: tuple(events) for agent, events in division.items()}


@pytest.mark.parametrize("owners", ["xy", "xyz"])
def test_what_is_gone_through_is_only_what_leaves_each_event_to_somebody(owners: str):
    have = [(agent, event) for agent in owners for event in ("a", "b", "c")][:-1]
    shared = [pair for pair in have if pair[1] != "c" or len(owners) > 2]
    expected = [
        away
        for number in range(len(shared), -1, -1)
        for away in itertools.combinations(shared, number)
        if {event for _, event in set(have) - set(away)} == set("abc")
    ]
    assert list(dividing._shrunk(have)) == expected


def guessing(n: int) -> Machine:
    """Whose view, where x is hidden, has to keep apart all sets of its n states."""
    moves = {"0": {"a": ("0", 0.0), "b": ("0", 0.0), "x": ("1", 0.0)}, "1": {"a": ("2", 0.0)}}
    moves |= {str(i): dict.fromkeys("ab", (str(i + 1), 0.0)) for i in range(2, n)}
    moves |= {str(n): {"b": ("never", 0.0)}, "never": {}}
    return Machine.of(moves, start="0", forbidden=["never"], events="abx")


def test_sets_of_states_are_refused_beyond_the_limit(monkeypatch):
    assert len(view(guessing(4), ["a", "b"]).states) < 40
    monkeypatch.setattr(operations, "MOST_LOOKED_AT", 20_000)
    with pytest.raises(OptionError, match="more than 20,000 moves; take a smaller automaton"):
        view(guessing(24), ["a", "b"])


def test_formulas_are_refused_beyond_the_limit(monkeypatch):
    monkeypatch.setattr("gradweave.automata.formula.MOST_COMPARED", 20_000)
    text = " & ".join(f"F(a{i} & X F b{i})" for i in range(2))
    assert not automaton(text).forbidden.any()
    with pytest.raises(SpecError, match="takes more than 20,000 terms"):
        automaton(" & ".join(f"F(a{i} & X F b{i})" for i in range(8)))


def cycle(n: int, name: str) -> Machine:
    moves = {str(i): {"a": (str((i + 1) % n), 0.0), "b": (str(i), 0.0)} for i in range(n)}
    moves["0"]["c"] = ("end", 1.0)
    return Machine.of(moves | {"end": {}}, start="0", final=["end"], name=name)


def test_a_check_of_machines_that_are_too_large_together_is_refused(monkeypatch):
    team, known = cycle(31, "team"), chain(30)
    ring = {str(i): {"a": (str((i + 1) % 37), 0.0)} for i in range(37)}
    known = Machine.of(ring, start="0", name="known")
    assert check(team, [team], known).explored > 31 * 37
    monkeypatch.setattr(dividing, "MOST_FOLLOWED", 1_000)
    with pytest.raises(OptionError, match="a check follows more than 1,000 moves"):
        check(team, [team], known)


def test_a_search_goes_on_where_a_division_is_too_large(monkeypatch):
    team, division = all_shared(3)
    whole = least(team, division)
    assert whole is not None and whole.proved and not min(map(len, whole.division.values()))
    checked = dividing._checked

    def refuse_few(team: Machine, agents: Any, causal: Any, most: int) -> Any:
        if not all(agent.events for agent in agents):
            raise OptionError("too large")
        return checked(team, agents, causal, most)

    monkeypatch.setattr(dividing, "_checked", refuse_few)
    found = least(team, division)
    assert found is not None and not found.proved
    assert min(map(len, found.division.values())) == 1


def test_names_of_many_states_stay_short():
    blind = projection(chain(5_000), [])
    assert blind.states == ("0,1,2,3,4,5,6,7,… 5001 in all",)
    assert max(map(len, compose([blind, chain(3)]).states)) < 60


def test_a_file_has_at_most_so_many_formulas():
    most = ["G !a"] * files.MOST_FORMULAS
    known = files._causal(most, ("a", "b"))
    assert known is not None and known.run(("b", "a"))[0] != known.run(("b", "b"))[0]
    with pytest.raises(FileError, match="51 formulas; expected at most 50"):
        files._causal([*most, "G !a"], ("a", "b"))


def test_a_view_may_take_as_many_moves_as_the_limit_says(monkeypatch):
    """Two states, one event hidden: each of two sets takes a look at two states and their moves."""
    hidden = {"0": {"h": ("1", 0.0)}, "1": {}, "never": {}}
    knows = Machine.of(hidden, start="0", forbidden=["never"], events="ah")
    monkeypatch.setattr(operations, "MOST_LOOKED_AT", 2 * (1 + 1) * 2)
    assert view(knows, ["a"]).states == ("0/1",)
    monkeypatch.setattr(operations, "MOST_LOOKED_AT", 2 * (1 + 1) * 2 - 1)
    with pytest.raises(OptionError, match="is more than 7 moves"):
        view(knows, ["a"])


def test_a_file_has_at_most_so_many_states(monkeypatch):
    monkeypatch.setattr(files, "MOST_STATES", 3)
    few = {"start": "0", "moves": {"0": {}, "1": {}}}
    assert len(files._machine(few | {"final": ["2"]}, "m").states) == 3
    with pytest.raises(FileError, match="4 states; a machine has at most 3"):
        files._machine(few | {"final": ["2", "3"]}, "m")
