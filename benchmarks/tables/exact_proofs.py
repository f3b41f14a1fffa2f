"""Fewest rounds, and what was proved impossible."""

from markdown_table import sourced_table
from record import load


def exact_proofs() -> str:
    result = load("exact_proofs")
    head = ["network", "trees", "pieces per server", "proved", "rounds", "impossible below", "s"]
    lines = [
        [
            f"`{row['topology']}`",
            row["trees"],
            str(row["pieces_per_server"]),
            row["kind"],
            str(row["rounds"]),
            str(row["impossible_below"]),
            f"{row['wall_s']:.2g}",
        ]
        for row in result["fewest"]
    ]
    return sourced_table(result, head, lines)
