"""A convolutional GAN on digits: Fréchet distances beside that of a single worker."""

import numpy as np
from markdown_table import sourced_table
from record import load

DIVERGED = 100.0
"""Fréchet distance above which a run has diverged: an untrained generator's is below."""


def saddle_digits() -> str:
    result = load("saddle_digits")
    by_run: dict[tuple[str, float], list[dict]] = {}
    for row in sorted(result["rows"], key=lambda row: row["seed"]):
        by_run.setdefault((row["run"], row["rate"]), []).append(row)

    def mean(rows: list[dict], what: str) -> float:
        return float(np.mean([row[what] for row in rows]))

    alone = [rows for (run, _), rows in by_run.items() if run == "one worker"]
    most = max(map(len, alone))  # of the best rates there are more seeds
    best = min(mean(rows, "frechet") for rows in alone if len(rows) == most)
    lines = []
    for (run, rate), rows in sorted(by_run.items(), key=_order):
        diverged = any(row["frechet"] > DIVERGED for row in rows)
        each = (f"{row['frechet']:.2f}" for row in rows if row["frechet"] <= DIVERGED)
        lines.append(
            [
                run,
                f"{rate:g}",
                ", ".join([*each, *["diverged"] * diverged]),
                "–" if diverged else f"{mean(rows, 'frechet') / best:.2f}",
                f"{mean(rows, 'precision'):.2f}",
                f"{mean(rows, 'recall'):.2f}",
                f"{rows[0]['bytes'] / 2**20:,.0f}",
            ]
        )
    head = [
        "workers", "rate", "Fréchet distance, by seed", "mean, of one worker's best", "precision",
        "recall", "MiB sent by a worker",
    ]  # fmt: skip
    return sourced_table(result, head, lines)


def _order(item: tuple[tuple[str, float], list[dict]]) -> tuple[bool, str, float]:
    (run, rate), _ = item
    return run != "one worker", run, rate
