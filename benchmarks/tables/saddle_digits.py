"""A convolutional GAN on digits: Fréchet distances beside that of a single worker."""

import numpy as np
from markdown_table import sourced_table
from record import load


def saddle_digits() -> str:
    result = load("saddle_digits")
    by_run: dict[tuple[str, float], list[dict]] = {}
    for row in result["rows"]:
        by_run.setdefault((row["run"], row["rate"]), []).append(row)

    def mean(rows: list[dict], what: str) -> float:
        return float(np.mean([row[what] for row in rows]))

    alone = [rows for (run, _), rows in by_run.items() if run == "one worker"]
    most = max(map(len, alone))  # further seeds are of the best rate
    best = min(mean(rows, "frechet") for rows in alone if len(rows) == most)
    lines = [
        [
            run,
            f"{rate:g}",
            str(len(rows)),
            f"{mean(rows, 'frechet'):.2f}",
            f"{mean(rows, 'frechet') / best:.2f}",
            f"{mean(rows, 'precision'):.2f}",
            f"{mean(rows, 'recall'):.2f}",
            f"{rows[0]['bytes'] / 2**20:,.0f}",
        ]
        for (run, rate), rows in sorted(by_run.items(), key=lambda item: item[0][0] != "one worker")
    ]
    head = [
        "workers", "rate", "seeds", "Fréchet distance", "of one worker's best", "precision",
        "recall", "MiB sent by a worker",
    ]  # fmt: skip
    return sourced_table(result, head, lines)
