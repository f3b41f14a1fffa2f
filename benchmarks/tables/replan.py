"""Schedules repaired after the loss of each link."""

from markdown_table import NETWORKS, sourced_table
from record import load


def replan() -> str:
    result = load("replan")
    head = ["network", "links lost, one at a time", "re-planned at the new bound", "slowest"]
    head.append("transfers kept")
    lines = [
        [
            NETWORKS[row["label"]],
            str(row["links"]),
            str(row["optimal"]),
            f"{1e3 * row['slowest_s']:.0f} ms",
            f"{row['transfers_kept']:.0%}",
        ]
        for row in result["rows"]
    ]
    return sourced_table(result, head, lines)
