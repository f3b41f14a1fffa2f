"""Variants of the training of the scheduling policies."""

from statistics import fmean
from typing import Any

from markdown_table import sourced_table
from record import load


def learning_choices() -> str:
    result = load("learning_choices")
    by_variant: dict[str, list[dict[str, Any]]] = {}
    for row in result["rows"]:
        by_variant.setdefault(row["variant"], []).append(row)
    lines = []
    for name, rows in by_variant.items():
        last = rows[-1]
        lines.append(
            [
                name,
                f"{fmean(rows[0]['over_bound']):.1%}",
                f"{fmean(fmean(row['over_bound']) for row in rows[-5:]):.1%}",
                f"{last['selected']:.0%}",
                f"{last['seconds'] / 60:.1f} min",
            ]
        )
    head = ["variant", "over the bound at the start", "at the end", "trees selected", "time"]
    return sourced_table(result, head, lines)
