"""Samples a second of training the scheduling policies, before and after."""

from markdown_table import sourced_table
from record import load


def training_speed() -> str:
    result = load("training_speed")
    each = result["samples_per_second"]
    lines = [
        [name, f"{samples:,.0f}", f"{samples / each['before']:.1f}"]
        for name, samples in each.items()
    ]
    return sourced_table(result, ["one core", "samples a second", "times before"], lines)
