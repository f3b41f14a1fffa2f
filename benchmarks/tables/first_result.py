"""Processor time of the first commands after installation."""

from markdown_table import sourced_table
from record import load


def first_result() -> str:
    result = load("first_result")
    lines = [
        [
            f"`{row['command']}`",
            *(f"{row['least_cpu_s'][cache]:.1f} s" for cache in ("cold", "warm")),
        ]
        for row in result["rows"]
    ]
    runs = len(result["rows"][0]["runs"])
    head = [f"processor time, minimum of {runs}", "first run", "later runs"]
    return sourced_table(result, head, lines)
