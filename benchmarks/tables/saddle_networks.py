"""Saddle points over gossip: iterations, bytes and seconds to an accuracy, by network."""

from typing import Any

from markdown_table import sourced_table
from record import load


def _row(row: dict[str, Any], goal: str) -> list[str]:
    bits = "" if row["bits"] == 32 else f", {row['bits']} bits"
    first = [f"{row['method']}{bits}", row["average"]]
    found = row["reached"][goal]
    networks = row["seconds_per_communication"]
    if found is None:
        return [*first, "not reached", *([""] * (1 + len(networks)))]
    sent = found["iterations"] * row["bytes_per_iteration"] / 2**20
    seconds = [f"{found['seconds'][name]:.3g}" for name in networks]
    return [*first, f"{found['iterations']:,}", f"{sent:.3g}", *seconds]


def _table(place: int) -> str:
    result = load("saddle_networks")
    goal = str(result["goals"][place])
    head = [
        f"to ‖z̄ − z*‖² ≤ {float(goal):.0e}", "average", "iterations", "MiB of a worker",
        *(f"s, {name}" for name in result["networks"]),
    ]  # fmt: skip
    return sourced_table(result, head, [_row(row, goal) for row in result["rows"]])


def saddle_near() -> str:
    """To the accuracy that the published method reaches, too."""
    return _table(0)


def saddle_far() -> str:
    """To one that it does not."""
    return _table(1)
