"""Bytes sent by the busiest worker, by aggregation and number of workers."""

from markdown_table import sourced_table
from record import load


def bytes_sent() -> str:
    result = load("bytes_sent")
    workers = sorted({row["workers"] for row in result["rows"]})
    at = {(row["aggregation"], row["workers"]): row["of_the_gradient"] for row in result["rows"]}
    names = dict.fromkeys(row["aggregation"] for row in result["rows"])
    lines = [[name, *(f"{at[name, count]:.3g}" for count in workers)] for name in names]
    head = ["sent by the busiest worker, in gradients", *(f"N = {count}" for count in workers)]
    return sourced_table(result, head, lines)
