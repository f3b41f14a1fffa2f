"""Time per transfer, and gap, of each strategy as networks grow."""

from markdown_table import sourced_table
from record import load


def strategies_scaling() -> str:
    result = load("strategies_scaling")
    gaps = {
        (row["family"], row["strategy"]): row["gap"]
        for row in result["rows"]
        if row["servers"] == 1024
    }
    lines = [
        [
            row["family"],
            f"`{result['strategies'][row['strategy']]}`",
            f"{row['microseconds_at_64']:.2g} µs",
            f"{row['microseconds_at_1024']:.2g} µs",
            f"{row['factor']:.2g}",
            f"{gaps[row['family'], row['strategy']]:.0%}",
        ]
        for row in result["growth"]
    ]
    head = ["network", "strategy", "a transfer, 64 servers", "1,024 servers", "factor",
            "gap, 1,024 servers"]  # fmt: skip
    return sourced_table(result, head, lines)
