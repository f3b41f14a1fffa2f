"""A convolutional GAN on digits: Fréchet distances beside that of a single worker."""

import numpy as np
from markdown_table import sourced_table
from record import load


def saddle_digits() -> str:
    result = load("saddle_digits")
    runs = list(dict.fromkeys(row["run"] for row in result["rows"]))

    def mean(run: str, what: str) -> float:
        return float(np.mean([row[what] for row in result["rows"] if row["run"] == run]))

    lines = []
    for run in runs:
        each = [row for row in result["rows"] if row["run"] == run]
        distances = sorted(row["frechet"] for row in each)
        lines.append(
            [
                run,
                str(len(each)),
                f"{mean(run, 'frechet'):.1f} ({distances[0]:.1f} to {distances[-1]:.1f})",
                f"{mean(run, 'frechet') / mean(runs[0], 'frechet'):.2f}",
                f"{mean(run, 'precision'):.2f}",
                f"{mean(run, 'recall'):.2f}",
                f"{each[0]['bytes'] / 2**20:,.0f}",
            ]
        )
    head = [
        "workers", "seeds", "Fréchet distance", "of one worker's", "precision", "recall",
        "MiB sent by a worker",
    ]  # fmt: skip
    return sourced_table(result, head, lines)
