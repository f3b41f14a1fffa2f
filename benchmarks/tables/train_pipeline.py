"""Placements trained in the lab, and losses beside those of one process."""

from typing import Any

from markdown_table import source, sourced_table, table
from record import load

OURS, LOSSES = "ours", "losses"
NAMES = {
    "schedule": "our passes and schedules",
    "gloo": "our passes, gloo's all-reduce",
    "pytorch": "PyTorch's 1F1B and DDP",
}


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


def train_pipeline_losses() -> str:
    """Losses of two stages of two pipelines, and of one process."""
    result = load("train_pipeline")
    (row,) = (row for row in result["rows"] if row["network"] == LOSSES)
    alone = row["one_process"]
    lines = [["one process", f"{alone[0]:.6f}", f"{alone[-1]:.6f}", "–"]]
    lines += [_losses(name, row[key]) for key, name in NAMES.items()]
    head = ["trained by", "first loss", f"loss of step {len(alone)}", "largest difference"]
    return f"{table(head, lines)}\n\n{source(result)}"


def _losses(name: str, one: dict[str, Any]) -> list[str]:
    losses = one["losses"]
    return [name, f"{losses[0]:.6f}", f"{losses[-1]:.6f}", f"{one['apart']:.1e}"]


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
