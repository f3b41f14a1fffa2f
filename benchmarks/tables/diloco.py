"""Talking less: losses and bytes of local updates beside synchronous training."""

import statistics

from markdown_table import sourced_table
from record import load


def diloco() -> str:
    """Every method: its loss over the seeds, beside synchronous training, and what it sends."""
    result = load("diloco")
    by_name: dict[str, list[dict]] = {}
    for row in result["rows"]:
        by_name.setdefault(row["name"], []).append(row)
    base = by_name["synchronous"]
    head = ["method", "loss, nats a character", "beside synchronous", "worst seed", "seeds"]
    head += ["bytes, 1 part of", "most in a step, MB"]
    lines = []
    for name, rows in by_name.items():
        losses = {row["seed"]: row["loss"] for row in rows}
        beside = [losses[row["seed"]] / row["loss"] - 1 for row in base if row["seed"] in losses]
        share = base[0]["bytes_a_worker"] / rows[0]["bytes_a_worker"]
        lines.append(
            [
                name,
                f"{statistics.mean(losses.values()):.4f}",
                "–" if name == "synchronous" else f"{statistics.mean(beside):+.2%}",
                "–" if name == "synchronous" else f"{max(beside):+.2%}",
                str(len(losses)),
                f"{share:.0f}",
                f"{rows[0]['peak_bytes_a_step'] / 1e6:.3f}",
            ]
        )
    return sourced_table(result, head, lines)
