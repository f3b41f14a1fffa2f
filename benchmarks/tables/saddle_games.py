"""Two opposed teams, by simultaneous updates and by extra-gradient."""

import numpy as np
from markdown_table import sourced_table
from record import load


def saddle_games() -> str:
    result = load("saddle_games")
    ways = [row["way"] for row in result["ways"]]
    lines = []
    for way in ways:
        against = {
            row["evader"]: row["return"][0]
            for row in result["cross_play"]
            if row["pursuers"] == way
        }
        gains = [
            np.array(row["gain"])
            for learns in ("pursuers", "evader")
            for row in result["exploited"]
            if (row["way"], row["learns"]) == (way, learns)
        ]
        shown = [f"{each.mean():.1f} ± {each.std(ddof=1) / len(each) ** 0.5:.1f}" for each in gains]
        lines.append([way, *(f"{against[other]:.1f}" for other in ways), *shown])
    head = [
        "pursuers, by", *(f"touches of evaders by {way}, ×10" for way in ways),
        "gain of pursuers that go on", "gain of the evader that goes on",
    ]  # fmt: skip
    return sourced_table(result, head, lines)
