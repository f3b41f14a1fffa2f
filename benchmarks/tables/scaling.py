"""Seconds of each step from schedule to bound as networks grow."""

from markdown_table import sourced_table
from record import load


def scaling() -> str:
    result = load("scaling")
    head = ["servers", "transfers", "rounds", "fixed-tree bound", "schedule", "verify",
            "simulate, rounds", "simulate, events", "lower bound"]  # fmt: skip
    columns = ("schedule_s", "verify_s", "simulate_rounds_s", "simulate_events_s", "bound_s")
    lines = [
        [
            f"{row['servers']:,}", f"{row['transfers']:,}", f"{row['rounds']:,}",
            f"{row['fixed_tree_bound']:,}", *(f"{row[column]:.3g} s" for column in columns),
        ]
        for row in result["rows"]
    ]  # fmt: skip
    return sourced_table(result, head, lines)
