"""Scheduling and verifying the largest networks."""

from markdown_table import duration, sourced_table
from record import load


def large_networks() -> str:
    result = load("large_networks")
    head = ["network", "servers", "transfers", "bound", "rounds", "schedule", "verify",
            "lower bound", "in all", "processor", "peak memory"]  # fmt: skip
    parts = ("schedule_s", "verify_s", "bound_s", "total_s", "processor_s")
    lines = [
        [
            f"`{row['network']}`", f"{row['servers']:,}", f"{row['transfers']:,}",
            f"{row['bound']:,}", f"{row['rounds']:,}",
            *(duration(row[part]) for part in parts), f"{row['peak_memory_gb']:.1f} GB",
        ]
        for row in result["rows"]
    ]  # fmt: skip
    return sourced_table(result, head, lines)
