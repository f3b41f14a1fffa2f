"""Gaps to the bound on random networks, by strategy."""

from markdown_table import number, sourced_table
from record import load


def random_networks_gap() -> str:
    result = load("random_networks_gap")
    lines = []
    for row in result["strategies"]:
        lines.append(
            [
                row["networks_of"],
                row["strategy"],
                number(row["networks"]),
                *(
                    f"{row[key]:.1%}" if key in row else "–"
                    for key in ("mean_gap", "mean_gap_to_free_trees_bound", "worst_gap")
                ),
                number(row.get("proved_optimal")),
                f"{row['mean_seconds']:.2g} s",
                f"{row['slowest_seconds']:.2g} s",
            ]
        )
    head = ["100 networks", "strategy", "applies to", "mean gap", "to free trees' bound",
            "worst gap", "proved optimal", "mean time", "slowest"]  # fmt: skip
    return sourced_table(result, head, lines)
