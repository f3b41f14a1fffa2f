"""What each test costs, and which of them `make test` runs.

`make test`, which is `pytest -m quick`, may cost `BUDGET_S`, and each test gets the same share of
that: of a table whose cases cost next to nothing all run, of a dear one a few that show as many
values of its parameters as they can, and of what is dearer still none. Who writes a test has
nothing to do for this: what `costs.tsv` does not know is quick. A test marked `quick` is always so
(one launch of a backend, say), and one marked `slow` never; nor is what drives a browser or starts
a process per server.

`.ci/run` may cost `TURNS_S`: it runs all quick tests and, of the others, the dear ones in turns,
each run a part; which, the hash of the commit says. A test marked `always` is left out of none.

Costs are seconds of processor time, of the worker and of processes that it waited for: they do not
depend on how busy the machine is. `make costs` records them. `.ci/run` measures them as well, where
nothing has been compiled, and refuses a `make test` that costs more than `LIMIT_S`.
"""

import argparse
import json
import math
import resource
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

RECORD = Path(__file__).with_name("costs.tsv")
NEVER = ("slow", "browser")
"""Marks of tests that are not quick; a browser's processes are not waited for, so not measured."""
KNOWN_S = 0.1
"""Tests that cost less, all cases together, are not recorded."""
ALONE = 3
"""How many shares the only case of a test may cost."""
BUDGET_S = 120.0
"""What `make test` may cost by what is recorded: a minute of two cores."""
LIMIT_S = 1200.0
"""What it may cost where nothing has been compiled."""
TURNS_S = 260.0
"""What a run of those that take turns may cost, with what is quick, by what is recorded. Where
nothing has been compiled, all of `.ci/run` takes under 30 minutes of two cores then; installing,
checking and the quick tests take 14 of them."""


@dataclass(frozen=True)
class Cost:
    """Of a test, in seconds of processor time."""

    shared_s: float
    """Its part of what it has in common with others, fixtures of modules or of the session, and
    what its first case costs more than others: an import, a program that all of them need."""
    case_s: float
    """The mean of its cases, without that."""
    cases: int

    @property
    def whole_s(self) -> float:
        return self.shared_s + self.cases * self.case_s

    def worth(self, share_s: float) -> int:
        """How many of its cases are worth running for such a share."""
        if self.shared_s + self.case_s > ALONE * share_s:
            return 0
        return max(1, min(self.cases, int((share_s - self.shared_s) / max(self.case_s, 1e-9))))

    def parts(self, turn_s: float) -> int:
        """In how many parts its cases run, where a turn may cost so much; in one where most of its
        cost is shared, which each part would pay again."""
        if self.shared_s > turn_s / 2:
            return 1
        return math.ceil(self.cases / max(1, int((turn_s - self.shared_s) / self.case_s)))

    def period(self, turn_s: float) -> int:
        """In how many runs each part has its turn once."""
        if self.whole_s <= turn_s:
            return 1
        parts = self.parts(turn_s)
        return max(parts, math.ceil(self._in_parts_s(parts) / turn_s))

    def run_s(self, turn_s: float) -> float:
        """What it costs a run on average."""
        if self.whole_s <= turn_s:
            return self.whole_s
        return self._in_parts_s(self.parts(turn_s)) / self.period(turn_s)

    def _in_parts_s(self, parts: int) -> float:
        return parts * self.shared_s + self.cases * self.case_s


def share(costs: Collection[Cost], budget_s: float = BUDGET_S) -> float:
    """The greatest share of each test with which all together stay within a budget, in seconds."""

    def spent_s(share_s: float) -> float:
        worth = ((cost, cost.worth(share_s)) for cost in costs)
        return sum(cost.shared_s + cases * cost.case_s for cost, cases in worth if cases)

    return greatest(spent_s, budget_s)


def turn(costs: Collection[Cost], budget_s: float = TURNS_S) -> float:
    """What a test may cost a run of those that take turns for all to stay within a budget."""
    return greatest(lambda turn_s: sum(cost.run_s(turn_s) for cost in costs), budget_s)


def greatest(spent_s: Callable[[float], float], budget_s: float) -> float:
    """The greatest allowance of each test with which what is spent stays within a budget."""
    least, most = 0.0, budget_s
    for _ in range(30):
        middle = (least + most) / 2
        least, most = (middle, most) if spent_s(middle) <= budget_s else (least, middle)
    return least


def recorded(path: Path = RECORD) -> dict[str, Cost]:
    """The cost of each test, by its name without parameters."""
    rows = (line.split("\t") for line in path.read_text().splitlines()[1:])
    return {
        name: Cost(float(shared), float(case), int(cases)) for shared, case, cases, name in rows
    }


def function_of(name: str) -> str:
    """A test's name without its parameters."""
    path, _, function = name.partition("::")
    return f"{path}::{function.partition('[')[0]}"


def path_of(name: str) -> Path:
    """The file of a test."""
    return RECORD.parents[1] / name.partition("::")[0]


def spread(indices: Sequence[Mapping[str, int]], count: int) -> list[int]:
    """Positions of some cases of a table, in which as many values as can be are seen.

    Args:
        indices: of each case, by parameter, which of its values it has.
        count: of cases that are wanted.
    """
    if count >= len(indices):
        return list(range(len(indices)))
    golden = 0.618034  # its multiples are spread evenly over the unit interval
    left = sorted(range(len(indices)), key=lambda case: case * golden % 1)
    seen: set[tuple[str, int]] = set()
    chosen: list[int] = []
    while left and len(chosen) < count:
        best = max(left, key=lambda case: len(set(indices[case].items()) - seen))
        seen |= set(indices[best].items())
        left.remove(best)
        chosen.append(best)
    return sorted(chosen)


def mark_quick(items: Iterable[pytest.Item], never: Callable[[Path], bool]) -> None:
    """Adds the mark to what `make test` runs.

    Args:
        items: all tests of the functions that are asked for.
        never: of which files nothing is, but what is marked itself.
    """
    costs = {name: cost for name, cost in recorded().items() if not never(path_of(name))}
    share_s = share(costs.values())
    tables = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        tables[function_of(item.nodeid)].append(item)
    for name, cases in tables.items():
        if never(cases[0].path):
            continue
        able = [case for case in cases if not any(map(case.get_closest_marker, NEVER))]
        wanted = costs[name].worth(share_s) if name in costs else len(able)
        indices = [getattr(getattr(case, "callspec", None), "indices", {}) for case in able]
        for position in spread(indices, wanted):
            able[position].add_marker("quick")


def has_turn(name: str, cost: Cost, case: int, run: int, turn_s: float) -> bool:
    """Whether a run of those that take turns runs a case of a test.

    Args:
        name: of the test, without parameters.
        cost: the test's.
        case: number of the case.
        run: its number.
        turn_s: what a test may cost a run.
    """
    if cost.whole_s <= turn_s:
        return True
    return (run + zlib.crc32(name.encode())) % cost.period(turn_s) == case % cost.parts(turn_s)


def out_of_turn(items: Iterable[pytest.Item], run: int) -> set[pytest.Item]:
    """What a run leaves out; nothing quick.

    Args:
        items: all tests of the functions that are asked for, marked by `mark_quick`.
        run: its number.
    """
    costs, cases = recorded(), defaultdict[str, int](int)
    turn_s = turn(costs.values())
    left_out = set[pytest.Item]()
    for item in items:
        name = function_of(item.nodeid)
        if name in costs and not any(map(item.get_closest_marker, ("quick", "always"))):
            if not has_turn(name, costs[name], cases[name], run, turn_s):
                left_out.add(item)
            cases[name] += 1
    return left_out


class Recorder:
    """A plugin that writes what each test costs, and each fixture that many share."""

    def __init__(self, path: Path) -> None:
        """Args: a file that workers write side by side, a line at a time."""
        self._path, self._inner_s = path, [0.0]
        path.parent.mkdir(parents=True, exist_ok=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        before = spent_s()
        self._inner_s.append(0.0)
        try:
            return (yield)
        finally:
            taken = spent_s() - before
            own = taken - self._inner_s.pop()
            self._inner_s[-1] += taken
            self._write(fixture=_place(fixturedef), cost_s=own)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: Any) -> Generator[None, Any, Any]:
        before, self._inner_s = spent_s(), [0.0]
        try:
            return (yield)
        finally:
            cost_s = spent_s() - before - self._inner_s[0]
            info = getattr(item, "_fixtureinfo", None)  # a doctest has none
            known = [found[-1] for found in info.name2fixturedefs.values()] if info else []
            shared = [_place(fixture) for fixture in known if fixture.scope != "function"]
            quick = item.get_closest_marker("quick") is not None
            self._write(test=item.nodeid, cost_s=cost_s, quick=quick, shared=shared)

    def _write(self, **line: Any) -> None:
        with self._path.open("a") as file:
            file.write(f"{json.dumps(line)}\n")


def _place(fixturedef: Any) -> str:
    return f"{fixturedef.baseid}::{fixturedef.argname}"


def spent_s() -> float:
    """Processor time of this process, and of those that it has waited for."""
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(who)[:2]) for who in whose)


def measured(path: Path) -> tuple[dict[str, Cost], float]:
    """The cost of each test as a run wrote it, and of all quick ones together."""
    cases, users = defaultdict[str, list[float]](list), defaultdict[str, set[str]](set)
    fixtures, quick_s, quick_fixtures = defaultdict[str, float](float), 0.0, set[str]()
    for line in map(json.loads, path.read_text().splitlines()):
        if "fixture" in line:  # once a worker: the dearest is what one needs
            fixtures[line["fixture"]] = max(fixtures[line["fixture"]], line["cost_s"])
            continue
        name = function_of(line["test"])
        cases[name].append(line["cost_s"])
        for fixture in line["shared"]:
            users[fixture].add(name)
        if line["quick"]:
            quick_s += line["cost_s"]
            quick_fixtures.update(line["shared"])
    quick_s += sum(fixtures[fixture] for fixture in quick_fixtures)
    shared = defaultdict[str, float](float)
    for fixture, names in users.items():
        for name in names:
            shared[name] += fixtures[fixture] / len(names)
    found = dict[str, Cost]()
    for name, costs in cases.items():
        extra_s = first_extra_s(costs)
        mean_s = (sum(costs) - extra_s) / len(costs)
        found[name] = Cost(shared[name] + extra_s, mean_s, len(costs))
    return found, quick_s


def first_extra_s(costs: Sequence[float]) -> float:
    """What the first case of a table cost more than the mean of the others.

    Were it spread over all cases, a table of a hundred would seem to be had for a hundredth of it.
    """
    others = costs[1:]
    return max(0.0, costs[0] - sum(others) / len(others)) if others else 0.0


def exists(name: str) -> bool:
    """Whether a test has not been removed or renamed since."""
    path, (_, _, last) = path_of(name), name.replace("::", ".").rpartition(".")
    module = (path.stem, path.parent.name)  # the name of a doctest of all of it
    return path.exists() and (last in module or last in path.read_text())


def write(costs: Mapping[str, Cost], path: Path = RECORD) -> None:
    """Records those of tests that are not negligible."""
    rows = (
        f"{cost.shared_s:.2f}\t{cost.case_s:.3f}\t{cost.cases}\t{name}"
        for name, cost in sorted(costs.items())
        if cost.whole_s > KNOWN_S
    )
    path.write_text("\n".join(("shared_s\tcase_s\tcases\ttest", *rows, "")))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("measured", type=Path, help="what COSTS=FILE pytest wrote")
    parser.add_argument("--write", action="store_true", help="record it, in tests/costs.tsv")
    arguments = parser.parse_args()
    costs, quick_s = measured(arguments.measured)
    if arguments.write:
        write({name: cost for name, cost in {**recorded(), **costs}.items() if exists(name)})
        return
    print(f"make test: {quick_s:.0f} s of processor time, of {LIMIT_S:.0f} s that it may need")
    if quick_s > LIMIT_S:
        known = recorded()
        unknown = {name: cost for name, cost in costs.items() if name not in known}
        dearest = sorted(unknown, key=lambda name: unknown[name].whole_s, reverse=True)
        for name in dearest[:20]:
            print(f"{unknown[name].whole_s:8.1f} s  {name}: not in tests/costs.tsv")
        sys.exit("record what tests cost: make costs")


if __name__ == "__main__":
    main()
