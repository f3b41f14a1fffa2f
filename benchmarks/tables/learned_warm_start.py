"""Processor seconds to a certified optimum, with and without the learned scheduler."""

from statistics import mean, median

from markdown_table import duration, sourced_table
from record import load


def learned_warm_start() -> str:
    result = load("learned_warm_start")
    names = {
        "without": "without `learned`",
        "in its place": "with it in its place, after `grown`",
        "first": "its best actions first",
    }
    by_name = {name: [x for x in result["rows"] if x["variant"] == name] for name in names}
    lines = []
    for name, title in names.items():
        rows = by_name[name]
        spent = [row["seconds"] for row in rows]
        lines.append(
            [
                title,
                f"{sum(row['optimal'] for row in rows)} of {len(rows)}",
                *(duration(of(spent)) for of in (median, mean, max)),
                str(sum(row["scheduler"] == "learned" for row in rows)),
            ]
        )
    head = [
        "the portfolio",
        "certified",
        "processor time: median",
        "mean",
        "slowest",
        "by `learned`",
    ]
    return sourced_table(result, head, lines)
