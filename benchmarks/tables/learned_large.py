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
            _gap(row, "gap"),
            duration(row["seconds"]) if "seconds" in row else f"not played: {_reckoned(row)}",
            number(row.get("repaired_rounds")),
            _gap(row, "repaired_gap"),
            duration(row["repaired_seconds"]) if "repaired_seconds" in row else "–",
            f"{row['memory_bytes'] / 2**30:.1f} GiB" if "memory_bytes" in row else "–",
        ]
        for row in result["rows"]
    ]
    head = ["network", "servers", "hops", "bound", "best actions", "gap", "time"]
    head += ["repaired", "gap", "time", "memory"]
    return sourced_table(result, head, lines)


def _gap(row: dict[str, Any], name: str) -> str:
    return f"{row[name]:.1%}" if row.get(name) is not None else "–"


def _reckoned(row: dict[str, Any]) -> str:
    return f"about {duration(row['reckoned_s'])} by reckoning"
