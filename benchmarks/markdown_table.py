"""Markdown tables of recorded results, as the files in `tables/` write them."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.record import ABOUT

NETWORKS = {
    "B3": "BCube(3,1)", "B4": "BCube(4,1)", "B5": "BCube(5,1)",
    "D4": "DCell(4,1)", "D5": "DCell(5,1)", "D6": "DCell(6,1)",
    "J10": "Jellyfish, 10", "J15": "Jellyfish, 15", "J20": "Jellyfish, 20",
}  # fmt: skip
"""Table 2's networks, by label."""
PLANNED_SINCE = "2026-11-24"
"""First whole day on which `solve` had the strategy `planned`."""


def table(head: str, lines: Iterable[str]) -> str:
    """A table whose first column is aligned left, the others right.

    Args:
        head: its cells, with ` | ` between them.
        lines: as the head.
    """
    rule = " | ".join(["---"] + ["---:"] * head.count(" | "))
    return "\n".join(f"| {line} |" for line in (head, rule, *lines))


def sourced_table(
    result: dict[str, Any], head: str, lines: Iterable[str], measured: Any = None
) -> str:
    """A table, and below it where its figures come from: see `source`."""
    return f"{table(head, lines)}\n\n{source(result, measured)}"


def source(
    result: dict[str, Any], measured: Any = None, packages: dict[str, str] | None = None
) -> str:
    """The command, dates, machines and versions of a result; the commit, if it is frozen.

    Args:
        result: as `record` wrote it.
        measured: the rows that are shown, if they are not all. Where they come from several days
            or machines, each is named with how many rows it measured.
        packages: versions by name to state in place of the usual ones.
    """
    sources = result["sources"]
    places = Counter(_places(result if measured is None else measured))
    places = places or Counter([result["source"]])
    shown = [sources[place] for place in places]
    by_machine: dict[str, dict[str, int]] = {}
    for place, count in places.items():
        dates = by_machine.setdefault(_machine(sources[place]["hardware"]), {})
        dates[sources[place]["date"]] = dates.get(sources[place]["date"], 0) + count
    where = []
    for machine, dates in by_machine.items():
        rows = f" ({sum(dates.values())} of {places.total()} rows)" * (len(by_machine) > 1)
        where.append(f"{' and '.join(sorted(dates))}, {machine}{rows}")
    packages = relevant_versions(_versions(shown)) if packages is None else packages
    program = ", ".join(map(" ".join, packages.items()))
    if "frozen" in result:
        program = f"commit {result['frozen']}"
    return f"`{result['command']}`, {'; '.join(where)}; {program}."


def _places(value: Any) -> Iterator[int]:
    """The sources of rows, of those inside a row instead of its own if there are any."""
    if isinstance(value, list):
        for one in value:
            yield from _places(one)
    elif isinstance(value, dict):
        inside = [
            place
            for name, one in value.items()
            if name not in ABOUT and isinstance(one, dict | list)
            for place in _places(one)
        ]
        yield from inside
        if not inside and "source" in value and "sources" not in value:
            yield value["source"]


def _machine(hardware: dict[str, Any]) -> str:
    gpu = f", {hardware['gpu']}" if "gpu" in hardware else ""
    return f"{hardware['cores']} cores of {hardware['cpu']}, {hardware['memory_gib']} GiB{gpu}"


def _versions(sources: list[dict[str, Any]]) -> dict[str, str]:
    """By package; all of them where the sources have different ones."""
    found: dict[str, dict[str, None]] = {}
    for one in sources:
        for name, number in one["versions"].items():
            found.setdefault(name, {})[number] = None
    return {name: " and ".join(numbers) for name, numbers in found.items()}


def before_planned(result: dict[str, Any], measured: Any = None) -> str:
    """A sentence, where rows were measured before `planned` was among `solve`'s strategies."""
    places = Counter(_places(result if measured is None else measured))
    dates = {place: result["sources"][place]["date"] for place in places}
    older = sum(count for place, count in places.items() if dates[place] < PLANNED_SINCE)
    which = "Measured" if older == places.total() else f"{older} of {places.total()} rows: measured"
    return f" {which} before `planned` was one of the strategies of `solve`." if older else ""


def relevant_versions(versions: dict[str, str]) -> dict[str, str]:
    """Of the packages that trainings depend on, or of those that schedulers do."""
    training = ("jax", "jaxmarl", "optax", "brax", "ray")
    trains = any(name in versions for name in training)
    names = ("python", *(training if trains else ("numpy", "numba", "ortools")))
    return {name: versions[name] for name in names if name in versions}


def number(value: float | None) -> str:
    """One decimal where there is a fraction."""
    return "–" if value is None else f"{value:.1f}".removesuffix(".0")


def two(value: float) -> str:
    """Whole from ten on, two digits below."""
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def duration(value: float) -> str:
    """Seconds: whole from ten on, two digits below."""
    return f"{two(value)} s"
