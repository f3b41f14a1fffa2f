"""Time against gradient size: ring, halving and doubling, binomial trees, and the portfolio.

    python benchmarks/experiments/time_against_size.py

100 Gbit/s, 10 µs and 1 µs of overhead a message on each link, 1 KB to 1 GB, six networks. Times are
those of the event model: no barriers, as executors run. The textbook strategies have their
defaults; the portfolio with the objective seconds may use smaller pieces and overlap stages, and
includes them among its candidates. Each schedule is compared with its own coarser cuts: the same
strategy with fewer parts of a piece, and with fewer pieces per server (divisors and powers of two),
none of which is faster.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.pictures import Picture, figure_with
from gradweave.schedulers import Binomial, HalvingDoubling, RecursiveDoubling, Ring, to_spec
from gradweave.schedulers.solving.variants import split
from gradweave.schedules.compose import overlap

NETWORKS = tuple(
    f"{family},latency=10us"
    for family in (
        "torus:8x8",
        "bcube:n=4,k=1",
        "mesh:5x5",
        "dcell:n=4,k=1",
        "jellyfish:reference=J10",
        "leaf_spine:leaves=4,spines=2,servers_per_leaf=4,oversubscription=2",
    )
)
MOST_CUTS = 32
"""Coarser cuts of one schedule that are compared with it, evenly among all."""
SIZES = (*(float(f"{digit}e{power}") for power in range(3, 9) for digit in (1, 3)), 1e9)
SEEDS = (0,)
TEXTBOOK = (
    Ring(),
    HalvingDoubling(),
    HalvingDoubling(order="near"),
    RecursiveDoubling(order="near"),
    Binomial(),
)


def coarser_cuts(
    network: gw.topology.Topology, solution: gw.schedulers.Solution, seed: int, size: float
) -> list[float]:
    """Seconds of the schedule's coarser cuts."""
    strategy, options = solution.scheduler, solution.schedule.scheduler.options

    def base(scheduler: gw.schedulers.Scheduler) -> gw.schedules.Schedule:
        made = scheduler.schedule(network, seed=seed)
        return overlap(made) if options.get("overlap") else made

    parts = options.get("parts", 1)
    counts = np.unique(np.linspace(1, parts - 1, min(parts - 1, MOST_CUTS)).astype(int))
    whole = base(strategy) if len(counts) else None
    cuts = [split(whole, count) for count in counts.tolist()]
    pieces = strategy.traits.pieces_per_server if strategy.traits.takes_pieces else 1
    cuts += [
        base(dataclasses.replace(strategy, pieces_per_server=fewer))
        for fewer in range(1, pieces)
        if pieces % fewer == 0 or fewer.bit_count() == 1
    ]
    return [gw.simulator.seconds(cut, size, "events") for cut in cuts]


def networks() -> list[gw.topology.Topology]:
    return [gw.topology.from_spec(spec) for spec in NETWORKS]


def measure(topology: gw.topology.Topology, seed: int, gradient_bytes: float) -> dict[str, Any]:
    textbook = {to_spec(one): one.schedule(topology, seed=seed) for one in TEXTBOOK}
    solution = gw.solve(topology, objective="seconds", gradient_bytes=gradient_bytes, seed=seed)
    timing = solution.timing
    result = {
        "textbook": {
            name: {"seconds": gw.simulator.seconds(schedule, gradient_bytes, "events")}
            for name, schedule in textbook.items()
        },
        "portfolio": {
            "seconds": timing.seconds,
            "scheduler": to_spec(solution.scheduler),
            "options": dict(solution.schedule.scheduler.options),
            "pieces": solution.schedule.pieces,
            "wall_s": solution.wall_s,
        },
        "bound": {"seconds": timing.bound.seconds, "kind": timing.bound.kind},
        "gap": timing.gap,
    }
    coarser = coarser_cuts(topology, solution, seed, gradient_bytes)
    result["coarser_cuts"] = {"tried": len(coarser), "fastest_s": min(coarser, default=None)}
    assert timing.seconds <= min(coarser, default=timing.seconds), "behind its own coarser cut"
    for name, times_s in result["textbook"].items():
        assert timing.seconds <= times_s["seconds"], f"behind {name}"
    return result


def draw(result: dict[str, Any], path: Path) -> None:
    rows = result["rows"]
    figure, grid = figure_with((11, 7.4), 2, 3, sharex=True, sharey=True)
    panels = grid.ravel()
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
        title = name.partition(",latency")[0].replace(",servers", ",\nservers")
        axes.set_title(title, fontsize=9)
        axes.grid(True, which="major", alpha=0.25)
        axes.set_xlim(sizes[0], sizes[-1])
        axes.set_ylim(2e-5, 2)
    for axes in grid[:, 0]:
        axes.set_ylabel("seconds, event model")
    for axes in grid[-1]:
        axes.set_xlabel("gradient, bytes")
    panels[0].legend(frameon=False, fontsize=7)
    figure.savefig(path)


if __name__ == "__main__":
    run(
        __doc__,
        Rows(lambda: grid(topology=networks(), seed=SEEDS, gradient_bytes=SIZES), measure),
        picture=Picture("time_against_size", draw),
        seeds=list(SEEDS),
    )
