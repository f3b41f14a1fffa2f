"""How often the portfolio proves its schedule optimal, and in what time."""

from typing import Any

from markdown_table import NETWORKS, duration, number, sourced_table
from record import load


def optimum() -> str:
    result = load("optimum")
    by_label: dict[str, list[dict[str, Any]]] = {}
    for row in result["rows"]:
        by_label.setdefault(row["label"], []).append(row)
    lines = []
    for label, rows in by_label.items():
        seconds = sorted(row["seconds"] for row in rows)
        lines.append(
            [
                NETWORKS[label],
                rows[0]["collective"].replace("_", "-"),
                number(rows[0]["bound"]),
                number(sum(row["rounds"] for row in rows) / len(rows)),
                f"{sum(row['optimal'] for row in rows)} of {len(rows)}",
                duration(seconds[len(seconds) // 2]),
                duration(seconds[-1]),
            ]
        )
    head = ["network", "collective", "bound", "rounds", "proved optimal", "median", "slowest"]
    return sourced_table(result, head, lines)
