"""Two opposed teams, by simultaneous updates and by extra-gradient."""

import numpy as np
from markdown_table import sourced_table
from record import load


def saddle_games() -> str:
    result = load("saddle_games")
    ways = [row["way"] for row in result["ways"]]
    sides = [each for each in ("pursuers", "evader") if result["exploited"]]
    lines = []
    for way in ways:
        met = [row for row in result["cross_play"] if row["pursuers"] == way]
        returns = {row["evader"]: row["by_seed_of_pursuers"] for row in met}
        gains = [
            row["gain"]
            for side in sides
            for row in result["exploited"]
            if (row["way"], row["learns"]) == (way, side)
        ]
        shown = [_mean(each) for each in ([returns[other] for other in ways] + gains)]
        lines.append([way, *shown])
    head = [
        "pursuers, by",
        *(f"against evaders by {way}" for way in ways),
        *(f"gain of {side} that learn on" for side in sides),
    ]
    return sourced_table(result, head, lines)


def _mean(values: list[float]) -> str:
    """With its standard error over seeds."""
    each = np.array(values)
    return f"{each.mean():.1f} ± {each.std(ddof=1) / len(each) ** 0.5:.1f}"
