"""Gaps to the bound on networks as clusters have them."""

from markdown_table import duration, number, sourced_table, table
from record import load


def cluster_networks_named() -> str:
    result = load("cluster_networks_gap")
    lines = [
        [
            row["network"],
            number(row["servers"]),
            number(row["bound"] / 2),
            number(row["rounds"] / 2),
            duration(row["seconds"]),
        ]
        for row in result["named"]
    ]
    return table(["network", "servers", "bound of a stage", "rounds of a stage", "search"], lines)


def cluster_networks_gap() -> str:
    result = load("cluster_networks_gap")
    lines = [
        [
            row["kind"],
            number(row["networks"]),
            number(row["proved_optimal"]),
            f"{row['mean_gap']:.2%}",
            f"{row['worst_gap']:.1%}",
            duration(row["mean_seconds"]),
            duration(row["slowest_seconds"]),
        ]
        for row in result["summaries"]
    ]
    head = ["kind", "networks", "proved optimal", "mean gap", "worst gap", "mean search", "slowest"]
    return sourced_table(result, head, lines)
