"""Trainings killed at random moments, beside the same ones unkilled."""

from markdown_table import sourced_table
from record import load


def killed() -> str:
    result = load("killed")
    lines = [
        [
            f"`gradweave {row['verb']}`",
            str(row["updates"]),
            str(row["kills"]),
            "yes" if row["same"] else "**no**",
        ]
        for row in result["rows"]
    ]
    head = [
        "",
        "updates",
        "kills at random moments",
        "same weights and checkpoint as without kills",
    ]
    return sourced_table(result, head, lines)
