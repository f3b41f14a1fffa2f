"""Machines: their algebra, formulas, files, and whether a division of a task is right."""

import itertools
import time
from pathlib import Path

import numpy as np
import pytest

from gradweave.automata import (
    Machine,
    automaton,
    check,
    dump,
    load_machine,
    minimised,
    product,
    projection,
    projections,
    read_text,
    replay,
)
from gradweave.automata.decomposition import least
from gradweave.automata.operations import compose, dead, values, view
from gradweave.errors import FileError, GradweaveError, SpecError
from tests.automata.machines import (
    GENERATOR,
    brute_force,
    random_automaton,
    random_division,
    random_machine,
)


@pytest.fixture
def generator(tmp_path: Path):
    path = tmp_path / "generator.yaml"
    path.write_text(GENERATOR)
    return load_machine(path)


def test_the_division_of_the_generator_is_right_only_with_what_is_known(generator):
    agents = projections(generator.machine, generator.agents)
    assert check(generator.machine, agents, generator.causal).valid
    verdict = check(generator.machine, agents)
    assert verdict.counterexample == ("c", "b", "a") and not verdict.team_done
    ends = replay(agents, verdict.counterexample)
    assert all(machine.final[state] for machine, state in zip(agents, ends, strict=True))
    smallest = least(generator.machine, generator.agents, generator.causal)
    assert smallest and smallest.proved and smallest.hidden == (("one", "c"),)
    told = least(generator.machine, {"one": ("a", "c"), "two": ("b",)}, generator.causal)
    assert told and told.proved and len(told.communicated) == 1


def test_the_checker_agrees_with_brute_force():
    rng = np.random.default_rng(0)
    found = {True: 0, False: 0}
    for number in range(60):
        team = random_machine(rng, 4, "abc", 0.6)
        division = random_division(rng, "abc")
        causal = random_automaton(rng, "abc") if number % 2 else None
        agents = [projection(team, events) for events in division]
        verdict = check(team, agents, causal)
        expected = brute_force(team, division, causal, 5)
        if expected is None:
            assert verdict.valid or len(verdict.counterexample or ()) > 5
        else:
            assert verdict.counterexample is not None and len(verdict.counterexample) == len(
                expected
            )
            assert brute_force(team, division, causal, len(expected)) is not None
        found[verdict.valid] += 1
    assert min(found.values()) > 5


def test_minimised_machines_do_the_same_with_fewer_states():
    rng = np.random.default_rng(1)
    smaller = 0
    for _ in range(30):
        machine = random_machine(rng, 6, "ab", 0.7)
        small = minimised(machine)
        smaller += len(small.states) < len(machine.states)
        assert len(minimised(small).states) == len(small.states)
        for trace in itertools.product("ab", repeat=6):
            assert machine.run(trace)[1] == small.run(trace)[1]
    assert smaller


def test_a_product_knows_when_the_task_is_lost(generator):
    whole = product(generator.machine, generator.causal).machine
    lost = {
        whole.states[s].partition("|")[0] for s in np.flatnonzero(dead(whole) & ~whole.forbidden)
    }
    assert lost == {"open", "wasted"}
    assert values(generator.machine)[generator.machine.start] == pytest.approx(0.81)
    blind = view(generator.causal, ["b", "c"])
    assert not blind.forbidden.any() and len(blind.states) == 1
    both = compose(projections(generator.machine, generator.agents))
    assert both.run("acb")[1] == 1.0 and both.run("ab")[1] == 0.0


FORMULAS = {
    "G(c -> N G !a)": lambda t: all("a" not in t[i + 1 :] for i, e in enumerate(t) if e == "c"),
    "F b": lambda t: "b" in t,
    "!a U b": lambda t: "b" in t and "a" not in t[: t.index("b")],
    "X X c": lambda t: t[2:3] == ("c",),
    "G(a -> X (b | c)) & !c": lambda t: (
        t[:1] != ("c",)
        and all(t[i + 1 : i + 2] in (("b",), ("c",)) for i, e in enumerate(t) if e == "a")
    ),
    "a R b": lambda t: all(e == "b" for e in t),
}


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_forbid_exactly_what_cannot_be_mended(text: str):
    machine = automaton(text, "abc")
    holds = {
        trace: FORMULAS[text](trace)
        for length in range(1, 7)
        for trace in itertools.product("abc", repeat=length)
    }
    for trace in (t for t in holds if len(t) <= 3):
        mendable = any(
            holds[trace + rest] for n in range(4) for rest in itertools.product("abc", repeat=n)
        )
        state = machine.states.index(machine.run(trace)[0])
        assert machine.forbidden[state] != mendable, trace


@pytest.mark.parametrize(
    "text",
    ["G(a", "a b", "", "a &", "X", "a & !a & F", "(" * 60 + "a" + ")" * 60, "a ? b", "false"],
)
def test_bad_formulas_are_refused(text: str):
    with pytest.raises(SpecError) as error:
        automaton(text)
    assert "\n" not in str(error.value)


HOSTILE = {
    "unknown state": (
        GENERATOR.replace("c: open", "c: opne"),
        "unknown state 'opne'; did you mean open?",
    ),
    "two moves": (
        GENERATOR.replace("{a: drained, c: open}", "{a: drained, a: open}"),
        "'a' is given twice",
    ),
    "no start": (GENERATOR.replace("start: begin", ""), "start: missing"),
    "unknown start": (GENERATOR.replace("start: begin", "start: beginning"), "unknown state"),
    "a million states": (
        "start: s0\nmoves:\n" + "".join(f"  s{i}: {{a: s{i + 1}}}\n" for i in range(1_000_000)),
        "at most 10,000 states",
    ),
    "too many states": (
        "start: 0\nmoves:\n" + "".join(f"  {i}:\n" for i in range(10_001)),
        "at most 10,000",
    ),
    "moves from the end": (
        GENERATOR.replace("wasted: {}", "done: {b: ready}\n  wasted: {}"),
        "has moves",
    ),
    "an unknown field": (GENERATOR.replace("final:", "finale:"), "did you mean final?"),
    "an event that nobody hears": (GENERATOR.replace("[b, c]", "[b, x]"), "on which nothing moves"),
    "a formula of an event that never happens": (
        GENERATOR.replace("N G !a", "N G !aa"),
        "causal: tells of 'aa', on which nothing moves",
    ),
    "a formula that cannot be": (GENERATOR.replace("G(c -> N G !a)", "G(c ->"), "formula"),
    "a reward that is none": (
        GENERATOR.replace("b: done}", "b: {to: done, reward: much}}"),
        "number",
    ),
    "an alias": ("a: &a [1]\nb: *a\n", "aliases"),
    "a tag": ("start: !!python/object/apply:os.system [true]\n", "not valid YAML"),
    "no mapping": ("[1, 2]", "pairs"),
    "not text": ("\0\xff", "not"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_one_line(kind: str, tmp_path: Path):
    path = tmp_path / "machine.yaml"
    path.write_text(HOSTILE[kind][0], encoding="latin-1")
    begun = time.process_time()
    with pytest.raises(FileError) as error:
        load_machine(path)
    assert HOSTILE[kind][1] in str(error.value) and "\n" not in str(error.value)
    assert str(path) in str(error.value)
    assert time.process_time() - begun < 3


def test_machines_are_written_and_read_again(generator):
    text = dump(generator)
    again = read_text(text)
    assert dump(again) == text
    assert np.array_equal(again.machine.next, generator.machine.next)
    assert again.causal and np.array_equal(again.causal.forbidden, generator.causal.forbidden)


def test_a_machine_too_large_to_build_is_refused():
    ring = {str(i): {"x": (str((i + 1) % 40), 0.0)} for i in range(40)}
    parts = []
    for name in "abcd":
        moves = {k: {name: v["x"]} for k, v in ring.items()}
        parts.append(Machine.of(moves, start="0", name=name))
    with pytest.raises(GradweaveError, match="more than 10,000 states"):
        compose(parts)
