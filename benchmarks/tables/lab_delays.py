"""Measured beside predicted seconds in emulated wide-area networks."""

from typing import Any

from markdown_table import sourced_table
from record import load

LEAST, MOST = 0.9, 1.15
"""Ratios between which a prediction counts as held."""


def lab_delays() -> str:
    """Every cell: measured over predicted."""
    result = load("lab_delays")
    head = ["network", "schedule", "MB", "pieces", "predicted ms", "measured ms"]
    head += ["measured / predicted"]
    lines = [
        [
            row["network"],
            row["name"].replace("_", " "),
            f"{row['gradient_bytes'] / 1e6:g}",
            str(row["pieces"]),
            f"{1e3 * row['predicted_s']:.0f}",
            f"{1e3 * row['measured_s']:.0f}",
            f"{row['ratio']:.2f}" if _held(row) else f"**{row['ratio']:.2f}**",
        ]
        for row in result["rows"]
    ]
    return sourced_table(result, head, lines)


def lab_delays_short() -> str:
    """What was emulated, and how many predictions held."""
    result = load("lab_delays")
    head = ["network", "round trips asked for, ms", "longer by, ms", "throughput, all links loaded"]
    head += [f"predictions within {LEAST} to {MOST}", "of those with at most 64 pieces"]
    lines = []
    for emulated in result["emulated"]:
        asked, found = emulated["asked_round_trip_s"], emulated["round_trip_s"]
        late = [1e3 * (b - a) for a, b in zip(asked, found, strict=True)]
        rows = [row for row in result["rows"] if row["network"] == emulated["network"]]
        coarse = [row for row in rows if row["pieces"] <= 64]
        share = sum(emulated["together_bytes_per_s"]) / sum(emulated["asked_bytes_per_s"])
        lines.append(
            [
                emulated["network"],
                ", ".join(f"{1e3 * value:g}" for value in sorted(set(asked))),
                f"{min(late):.2f} to {max(late):.2f}",
                f"{share:.1%}",
                f"{sum(map(_held, rows))} of {len(rows)}",
                f"{sum(map(_held, coarse))} of {len(coarse)}",
            ]
        )
    return sourced_table(result, head, lines)


def _held(row: dict[str, Any]) -> bool:
    return LEAST <= row["ratio"] <= MOST
