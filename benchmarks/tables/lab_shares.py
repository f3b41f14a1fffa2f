"""Shares of the gradient on emulated unequal networks, measured beside predicted and gloo."""

from markdown_table import sourced_table
from record import load


def lab_shares() -> str:
    """Every network: each schedule, and the backend's own all-reduce."""
    result = load("lab_shares")
    head = ["network", "bound, ms", "schedule", "pieces", "by events, ms", "shared fairly, ms"]
    head += ["measured, ms", "measured / by events", "times as fast as gloo", "load"]
    lines = []
    for one in result["networks"]:
        (gloo,) = (row["measured_s"] for row in one["rows"] if row["name"] == "gloo")
        for row in one["rows"]:
            predicted = row["predicted_s"] is not None
            lines.append(
                [
                    one["network"],
                    f"{1e3 * one['bound_s']:.0f}",
                    row["name"],
                    str(row["pieces"]) if predicted else "–",
                    f"{1e3 * row['predicted_s']:.0f}" if predicted else "–",
                    f"{1e3 * row['fair_s']:.0f}" if predicted else "–",
                    f"{1e3 * row['measured_s']:.0f}",
                    f"{row['ratio']:.2f}" if predicted else "–",
                    f"{gloo / row['measured_s']:.2f}",
                    f"{one['load']:.2f}",
                ]
            )
    return sourced_table(result, head, lines)
