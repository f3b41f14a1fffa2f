"""Best actions of the learned policies on large networks."""

from typing import Any

from markdown_table import duration, number, sourced_table
from record import load


def learned_large() -> str:
    result = load("learned_large")
    lines = [
        [
            f"`{row['network']}`",
            number(row["servers"]),
            f"{row['hops']:,}",
            number(row["bound"]),
            number(row.get("rounds")),
            f"{row['gap']:.1%}" if row.get("gap") is not None else "–",
            duration(row["seconds"]) if "seconds" in row else f"not played: {_reckoned(row)}",
        ]
        for row in result["rows"]
    ]
    head = ["network", "servers", "hops", "bound", "best actions", "gap", "time"]
    return sourced_table(result, head, lines)


def _reckoned(row: dict[str, Any]) -> str:
    return f"about {duration(row['reckoned_s'])} by reckoning"
