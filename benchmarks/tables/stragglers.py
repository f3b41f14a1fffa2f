"""Asynchronous rules beside synchronous updates when some workers are slow."""

from statistics import fmean

from markdown_table import sourced_table
from record import load


def stragglers() -> str:
    result = load("stragglers")
    lines = []
    for row in result["compared"]:
        case = (row["scenario"], row["rule"])
        runs = [run for run in result["rows"] if (run["scenario"], run["rule"]) == case]
        times, bound = row["times_sync"], runs[0]["staleness_bound"]
        most = str(max(run["staleness_most"] for run in runs))
        lines.append(
            [
                f"{row['scenario']}, {row['rule']}",
                f"{fmean(run['gradients_per_s'] for run in runs):.0f}",
                f"{fmean(times):.2f} ({min(times):.2f} to {max(times):.2f})",
                f"{fmean(row['simulated_times_sync']):.2f}",
                f"{fmean(run['staleness_mean'] for run in runs):.1f}",
                most if bound is None else f"{most} of {bound}",
                f"{fmean(run['curve']['loss'][-1] for run in runs):.3f}",
                f"{fmean(run['seconds'] for run in runs):.1f} s",
            ]
        )
    head = ["slowness, rule", "gradients per second", "times sync (range)", "simulated",
            "mean staleness", "largest, of its bound", "loss at the end", "after"]  # fmt: skip
    return sourced_table(result, head, lines)


def stragglers_price() -> str:
    result = load("stragglers")
    rates = sorted({row["rate"] for row in result["prices"]})

    def cell(rule: str, rate: float, key: str) -> str:
        prices = [row for row in result["prices"] if (row["rule"], row["rate"]) == (rule, rate)]
        losses = [row[key] for row in prices]
        return "diverges" if None in losses else f"{fmean(losses):.3f}"

    lines = [
        [
            f"{rule}, {result[f'price_{counted}']} {counted}",
            *(cell(rule, rate, f"loss_after_{counted}") for rate in rates),
        ]
        for counted in ("updates", "gradients")
        for rule in dict.fromkeys(row["rule"] for row in result["prices"])
    ]
    head = ["loss after equal numbers, simulated", *(f"η = {rate:g}" for rate in rates)]
    return sourced_table(result, head, lines)
