"""Time against gradient size: ring, halving and doubling, binomial trees, and the portfolio.

    python benchmarks/experiments/time_against_size.py

100 Gbit/s and 10 µs per link, 1 KB to 1 GB, torus 8x8 and BCube(4,1), three seeds. Times are those
of the event model: no barriers, as executors run. The textbook strategies have their defaults; the
portfolio with the objective seconds may use smaller pieces and overlap stages, and includes them
among its candidates.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from record import RESULTS, record

import gradweave as gw
from gradweave.schedulers import Binomial, HalvingDoubling, RecursiveDoubling, Ring, to_spec

NETWORKS = ("torus:8x8,latency=10us", "bcube:n=4,k=1,latency=10us")
SIZES = (*(float(f"{digit}e{power}") for power in range(3, 9) for digit in (1, 3)), 1e9)
SEEDS = (0, 1, 2)
TEXTBOOK = (
    Ring(),
    HalvingDoubling(),
    HalvingDoubling(order="near"),
    RecursiveDoubling(order="near"),
    Binomial(),
)


def times(schedule: gw.schedule.Schedule, gradient_bytes: float) -> dict[str, float]:
    return {
        "seconds": gw.simulate.seconds(schedule, gradient_bytes, "events"),
        "barrier_seconds": gw.simulate.seconds(schedule, gradient_bytes, "rounds"),
    }


def row(
    network: gw.topology.Topology,
    textbook: dict[str, gw.schedule.Schedule],
    seed: int,
    gradient_bytes: float,
) -> dict[str, Any]:
    solution = gw.solve(network, objective="seconds", gradient_bytes=gradient_bytes, seed=seed)
    timing = solution.timing
    result = {
        "topology": network.name,
        "seed": seed,
        "gradient_bytes": gradient_bytes,
        "textbook": {name: times(schedule, gradient_bytes) for name, schedule in textbook.items()},
        "portfolio": {
            "seconds": timing.seconds,
            "barrier_seconds": timing.barrier_seconds,
            "scheduler": to_spec(solution.scheduler),
            "options": dict(solution.schedule.scheduler.options),
            "pieces": solution.schedule.pieces,
            "wall_s": solution.wall_s,
        },
        "bound": {"seconds": timing.bound.seconds, "kind": timing.bound.kind},
        "gap": timing.gap,
        "best_variant_s": {to_spec(one.scheduler): one.seconds for one in solution.attempts},
    }
    for name, times_s in result["textbook"].items():
        assert timing.seconds <= times_s["seconds"], f"behind {name}"
    return result


def draw(rows: list[dict[str, Any]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.8), dpi=160, layout="constrained")
    panels = figure.subplots(1, len(NETWORKS), sharey=True)
    for axes, name in zip(panels, dict.fromkeys(row["topology"] for row in rows), strict=True):
        shown = [row for row in rows if row["topology"] == name and row["seed"] == SEEDS[0]]
        sizes = [row["gradient_bytes"] for row in shown]
        for strategy, marker in zip(shown[0]["textbook"], "osD^v", strict=False):
            times_s = [row["textbook"][strategy]["seconds"] for row in shown]
            axes.loglog(sizes, times_s, marker=marker, ms=4, lw=1, label=strategy.replace("_", " "))
        times_s = [row["portfolio"]["seconds"] for row in shown]
        axes.loglog(sizes, times_s, color="black", lw=2.2, label="portfolio, objective seconds")
        least = [row["bound"]["seconds"] for row in shown]
        axes.fill_between(sizes, least, 1e-6, color="0.88", lw=0, label="no schedule is faster")
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("gradient, bytes")
        axes.grid(True, which="major", alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(sizes[0], sizes[-1])
        axes.set_ylim(2e-5, 2)
    panels[0].set_ylabel("seconds, event model")
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(RESULTS / "time_against_size.png")


def main() -> None:
    rows = []
    for spec in NETWORKS:
        network = gw.topology.from_spec(spec)
        for seed in SEEDS:
            textbook = {to_spec(one): one.schedule(network, seed=seed) for one in TEXTBOOK}
            for gradient_bytes in SIZES:
                rows.append(row(network, textbook, seed, gradient_bytes))
                best = rows[-1]["portfolio"]
                print(f"{spec} {seed} {gradient_bytes:g} {best['scheduler']} {best['seconds']:.3e}")
    record(
        "time_against_size",
        seeds=list(SEEDS),
        rows=rows,
    )
    draw(rows)


if __name__ == "__main__":
    main()
