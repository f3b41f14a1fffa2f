"""Markdown tables of recorded results, as the files in `tables/` write them."""

from collections.abc import Iterable
from typing import Any

NETWORKS = {
    "B3": "BCube(3,1)", "B4": "BCube(4,1)", "B5": "BCube(5,1)",
    "D4": "DCell(4,1)", "D5": "DCell(5,1)", "D6": "DCell(6,1)",
    "J10": "Jellyfish, 10", "J15": "Jellyfish, 15", "J20": "Jellyfish, 20",
}  # fmt: skip
"""Table 2's networks, by label."""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table whose first column is aligned left, the others right."""
    head = list(head)
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def sourced_table(
    result: dict[str, Any], head: Iterable[str], rows: Iterable[Iterable[str]]
) -> str:
    """A table, and below it where its figures come from."""
    return f"{table(head, rows)}\n\n{source(result)}"


def source(result: dict[str, Any], packages: dict[str, str] | None = None) -> str:
    """The command, date, machine and versions of a result.

    Args:
        result: as `record` wrote it.
        packages: versions by name to state in place of the usual ones.
    """
    hardware = result["hardware"]
    packages = relevant_versions(result["versions"]) if packages is None else packages
    return (
        f"`{result['command']}`, {result['date']}, {hardware['cores']} cores of {hardware['cpu']}, "
        f"{hardware['memory_gib']} GiB; {', '.join(map(' '.join, packages.items()))}."
    )


def relevant_versions(versions: dict[str, str]) -> dict[str, str]:
    """Of the packages that trainings depend on, or of those that schedulers do."""
    training = ("jax", "jaxmarl", "optax", "brax", "ray")
    trains = any(name in versions for name in training)
    names = ("python", *(training if trains else ("numpy", "numba", "ortools")))
    return {name: versions[name] for name in names if name in versions}


def number(value: float | None) -> str:
    """One decimal where there is a fraction."""
    return "–" if value is None else f"{value:.1f}".removesuffix(".0")


def duration(value: float) -> str:
    """Whole from ten seconds on, two digits below."""
    return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"
