"""Placements trained in the lab: a step measured beside predicted."""

from markdown_table import sourced_table
from record import load

OURS, LOSSES = "ours", "losses"


def train_pipeline() -> str:
    """Measured beside predicted seconds of a step."""
    result = load("train_pipeline")
    rows = [row for row in result["rows"] if row["network"] != LOSSES]
    ours = {row["network"]: row["measured_s"] for row in rows if row["contender"] == OURS}
    lines = []
    for row in rows:
        case = result["cases"][row["network"]]
        lines.append(
            [
                f"{row['network']}, {case['stages']} × {case['data']}",
                row["contender"],
                _seconds(row["predicted_s"]),
                _seconds(row["measured_s"]),
                "–" if row["ratio"] is None else f"{row['ratio']:.2f}",
                f"{_seconds(min(row['steps_s']))} to {_seconds(max(row['steps_s']))}",
                f"{row['measured_s'] / ours[row['network']]:.2f}",
                f"{row['load']:.0f}",
            ]
        )
    head = ["network, stages × pipelines", "training", "predicted, s", "measured, s"]
    head += ["measured / predicted", "steps, s", "times ours", "load before"]
    return sourced_table(result, head, lines)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
