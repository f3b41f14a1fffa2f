"""GANs over gossip where each worker sees one mode: what they cover."""

from typing import Any

from markdown_table import sourced_table
from record import load


def _row(name: str, run: dict[str, Any]) -> list[str]:
    covered = [row["covered"] for row in run["rows"]]
    precision = sorted(row["precision"] for row in run["rows"])
    every = sum(number == run["modes"] for number in covered)
    return [
        name,
        f"{run['modes']} on {run['network']}",
        f"{run['iterations']:,}",
        f"{every} of {len(covered)}",
        f"{min(covered)} to {max(covered)}",
        f"{precision[0]:.2f} to {precision[-1]:.2f}",
        f"{run['bytes'] / 2**20:,.0f}",
    ]


_HEAD = [
    "modes", "iterations", "all covered, seeds", "covered", "precision", "MiB sent by a worker",
]  # fmt: skip


def saddle_gans() -> str:
    result = load("saddle_gans")
    lines = [_row(run["method"], run) for run in result["circle"]]
    return sourced_table(result, ["method", *_HEAD], lines)


def saddle_grid() -> str:
    result = load("saddle_gans")
    lines = [_row(run["what"], run) for run in result["grid"]]
    return sourced_table(result, ["tracked, Adam's steps", *_HEAD], lines)
