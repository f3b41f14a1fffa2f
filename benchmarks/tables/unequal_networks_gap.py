"""Gaps to the least time on networks whose links differ, and the largest of them."""

from collections import Counter
from typing import Any

from markdown_table import before_planned, duration, number, sourced_table, table
from record import load

OVER = 0.03
"""Gap from which a network is listed by itself."""
SIZES = {256e6: "256 MB", 4e9: "4 GB"}


def unequal_networks_gap() -> str:
    """By kind, where latency is small, and the rest."""
    result = load("unequal_networks_gap")
    lines = [
        [
            row["rows"],
            number(row["count"]),
            f"{row['mean_gap']:.1%}",
            f"{row['worst_gap']:.1%}",
            number(row["over_3_percent"]),
            number(row["over_10_percent"]),
            f"{row['mean_equal_gap']:.1%}",
            f"{row['worst_equal_gap']:.1%}",
            duration(row["mean_seconds"]),
            duration(row["slowest_seconds"]),
        ]
        for row in result["summaries"]
    ]
    head = ["kind", "cases", "mean gap", "worst gap", "over 3%", "over 10%"]
    head += ["equal pieces: mean gap", "worst", "mean search", "slowest"]
    rows = result["rows"]
    return f"{sourced_table(result, head, lines, rows)}{_measured(result)}"


def _measured(result: dict[str, Any]) -> str:
    """How many networks there are, of which commits, and how many searches their limit ended."""
    sources = result["sources"]
    networks = {row["seed"]: sources[row["source"]]["commit"][:7] for row in result["rows"]}
    commits = Counter(networks.values()).most_common()
    text = f"{before_planned(result, result['rows'])}\n\n"
    text += f"{len(networks)} of the {len(networks) + len(result['missing'])} networks: "
    text += ", ".join(f"{count} at commit {commit}" for commit, count in commits)
    limited = sum(row["limited"] for row in result["rows"])
    ended = "1 search was" if limited == 1 else f"{limited} searches were"
    end = f"; {ended} ended by the limit of {result['limit_s']:g} s that pass"
    return text + end * bool(limited) + "."


def unequal_networks_far() -> str:
    """Every case above `OVER`, the farthest first."""
    rows = [row for row in load("unequal_networks_gap")["rows"] if row["gap"] > OVER]
    rows.sort(key=lambda row: -row["gap"])
    head = ["network", "gradient", "time, ms", "bound: bandwidth, ms", "bound: latency, ms"]
    head += ["gap", "with equal pieces", "by", "search"]
    return table(head, map(_cells, rows))


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["network"],
        SIZES[row["gradient_bytes"]],
        f"{row['ms']:.4g}",
        f"{row['bandwidth_ms']:.4g}",
        f"{row['latency_ms']:.3g}",
        f"{row['gap']:.1%}",
        f"{row['equal_gap']:.1%}",
        row["winner"].split(":")[0],
        f"{duration(row['seconds'])}{', ended by its limit' * row['limited']}",
    ]
