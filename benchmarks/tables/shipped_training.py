"""The training run of the shipped policies."""

from markdown_table import source
from record import load


def shipped_training() -> str:
    result = load("shipped_training")
    return (
        f"{result['updates']} updates took {result['minutes']:.0f} minutes and "
        f"{result['decisions'] / 1e6:.0f} million sampled workloads, "
        f"{result['decisions_per_second']:,} per second including learning. Over the last 50 "
        f"updates sampled episodes were {result['last_50_over_bound']:.1%} over the bound.\n\n"
        f"{source(result)}"
    )
