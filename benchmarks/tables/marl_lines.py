"""Returns of reference policies, and upper bounds."""

from markdown_table import sourced_table
from record import load


def marl_lines() -> str:
    result = load("marl_lines")
    lines = [
        [
            f"`{row['env']}`",
            row["what"],
            f"{row['return']:.3g}" + (f" = {row['exactly']}" if "exactly" in row else ""),
            row["how"],
        ]
        for row in result["rows"]
    ]
    return sourced_table(result, ["", "agents", "return", "source"], lines)
