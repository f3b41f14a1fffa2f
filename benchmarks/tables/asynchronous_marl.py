"""Agents that learn by the asynchronous server beside a slow worker."""

from statistics import fmean
from typing import Any

from markdown_table import sourced_table
from record import load


def asynchronous_marl() -> str:
    result = load("asynchronous_marl")
    cases = dict.fromkeys((row["on"], row["rule"]) for row in result["rows"])
    lines = [_line(result, *case) for case in cases]
    head = ["", "return at the end", "each seed", "seconds", "reaches sync's return after",
            "of sync's time", "after steps", "staleness, most", "mean weight",
            "killed"]  # fmt: skip
    return sourced_table(result, head, lines)


def _line(result: dict[str, Any], on: str, rule: str) -> list[str]:
    def of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row for row in rows if (row["on"], row["rule"]) == (on, rule)]

    rows, reached = of(result["rows"]), of(result["compared"])
    returns, first = [row["return"] for row in rows], rows[0]
    killed = f"{first['replaced']} worker, {first['recovered']} server"
    return [
        f"{on}: {rule}",
        f"{fmean(returns):.2f}",
        ", ".join(f"{one:.2f}" for one in returns),
        f"{first['seconds']:.0f}",
        _mean([row["seconds"] for row in reached], "{:.0f} s"),
        _mean([row["share_of_sync"] for row in reached], "{:.2f}"),
        _mean([row["steps"] for row in reached], "{:,.0f}"),
        f"{first['staleness_mean']:.1f}, {first['staleness_most']}",
        _mean([row["weight"] for row in rows], "{:.3f}") if first["weight"] else "–",
        killed if first["replaced"] or first["recovered"] else "–",
    ]


def _mean(values: list[float | None], shown: str) -> str:
    """Of those that reached it; says how many did not."""
    there = [value for value in values if value is not None]
    if not there:
        return "never"
    missing = len(values) - len(there)
    return shown.format(fmean(there)) + (f" ({missing} of {len(values)} never)" if missing else "")
