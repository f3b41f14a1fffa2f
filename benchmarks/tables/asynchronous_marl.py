"""Agents that learn by the asynchronous server beside a slow worker."""

from statistics import fmean
from typing import Any

from markdown_table import sourced_table
from record import load


def asynchronous_marl() -> str:
    result = load("asynchronous_marl")
    rules = list(dict.fromkeys(row["rule"] for row in result["rows"]))
    lines = [_line(result, rule) for rule in rules]
    head = ["", "return at the end", "each seed", "seconds", "reaches sync's return after",
            "of sync's time", "after steps", "staleness, most", "killed, replaced"]  # fmt: skip
    return sourced_table(result, head, lines)


def _line(result: dict[str, Any], rule: str) -> list[str]:
    rows = [row for row in result["rows"] if row["rule"] == rule]
    reached = [row for row in result["compared"] if row["rule"] == rule]
    returns = [row["return"] for row in rows]
    return [
        rule,
        f"{fmean(returns):.2f}",
        ", ".join(f"{one:.2f}" for one in returns),
        f"{fmean(row['seconds'] for row in rows):.0f}",
        _mean([row["seconds"] for row in reached], "{:.0f} s"),
        _mean([row["share_of_sync"] for row in reached], "{:.2f}"),
        _mean([row["steps"] for row in reached], "{:,.0f}"),
        f"{fmean(row['staleness_mean'] for row in rows):.1f}, "
        f"{max(row['staleness_most'] for row in rows)}",
        f"{sum(row['replaced'] for row in rows)} workers, "
        f"{sum(row['recovered'] for row in rows)} servers",
    ]


def _mean(values: list[float | None], shown: str) -> str:
    """Of those that reached it; says how many did not."""
    there = [value for value in values if value is not None]
    if not there:
        return "never"
    missing = len(values) - len(there)
    return shown.format(fmean(there)) + (f" ({missing} of {len(values)} never)" if missing else "")
