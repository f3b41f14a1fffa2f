"""Schedules re-planned after the loss of each link, and after links got slower."""

from markdown_table import NETWORKS, duration, sourced_table
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


def replan_slowed() -> str:
    result = load("replan")
    head = ["network, link at half", "least, ms", "as before, ms", "re-planned, ms", "gap", "by"]
    head += ["search", "first search", "`packed` alone, ms", "its search"]
    lines = [
        [
            f"`{row['network']}`, {row['slowed'][0]}–{row['slowed'][1]}",
            f"{row['bound_ms']:.4g}",
            f"{row['unrepaired_ms']:.4g}",
            f"{row['replanned_ms']:.4g}",
            f"{row['replanned_ms'] / row['bound_ms'] - 1:.1%}",
            row["by"],
            duration(row["replan_s"]),
            duration(row["first_s"]),
            f"{row['packed_ms']:.4g}",
            duration(row["packed_s"]),
        ]
        for row in result["slowed"]
    ]
    return sourced_table(result, head, lines)


def replan_under_way() -> str:
    result = load("replan")
    head = ["network, link at half", "intact, ms", "as before, ms", "re-planned, ms"]
    head += ["planned anew", "search", "half at either pace, ms"]
    head += ["of all strategies: intact, ms", "as before, ms", "re-planned, ms"]
    lines = [
        [
            f"`{row['network']}`, {row['slowed'][0]}–{row['slowed'][1]}",
            *_times(row["packed"]),
            f"{row['packed']['replanned_share']:.0%}",
            duration(row["packed"]["search_s"]),
            f"{row['half_at_either_ms']:.4g}",
            *_times(row["solved"]),
        ]
        for row in result["under_way"]
    ]
    return sourced_table(result, head, lines)


def _times(row: dict) -> list[str]:
    return [f"{row[key]:.4g}" for key in ("intact_ms", "as_before_ms", "replanned_ms")]
