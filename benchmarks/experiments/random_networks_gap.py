"""100 random networks: the gap of each strategy to the lower bound.

    taskset -c 0 python benchmarks/experiments/random_networks_gap.py

Two sets of benchmarks/random_networks.py, seeds 0 to 99 each: random networks, every fifth with
links whose two directions differ; and well-connected ones, which are harder, since no single
server's links are the bottleneck. All-reduce, one core, after compilation. All gaps on a network
are to one lower bound: that of free trees, or a higher one that the portfolio's exact search
proved.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.pictures import Picture, figure_with
from benchmarks.random_networks import random_network, well_connected_network
from benchmarks.solutions import figures, solved
from benchmarks.timing import timed
from gradweave.errors import NoScheduleError
from gradweave.schedulers import Grown, Merged, Ring, Scheduler, Symmetric, to_spec

COUNT = 100
SEED = 0
STRATEGIES: dict[str, Scheduler] = {
    "symmetric": Symmetric(),
    "grown": Grown(),
    "merged": Merged(),
    "ring": Ring(),
}
SETS: dict[str, Callable[[int], gw.Topology]] = {
    "random": lambda seed: random_network(seed, unlike_directions=seed % 5 == 4),
    "well connected": well_connected_network,
}
NAMES = ("portfolio", "grown", "symmetric", "merged", "ring")
"""In table and picture."""


def rounds_of(strategy: Scheduler, network: gw.Topology) -> int | None:
    """None where the strategy does not apply."""
    try:
        return strategy.schedule(network, seed=SEED).rounds
    except NoScheduleError:
        return None


def warm() -> None:
    for spec in ("ring:4", "mesh:2x3", "jellyfish:reference=J15"):
        for strategy in STRATEGIES.values():
            rounds_of(strategy, gw.topology.from_spec(spec))


def measure(networks_of: str, seed: int) -> dict[str, Any]:
    network = SETS[networks_of](seed)
    seconds, solution = solved(network, time.perf_counter, seed=SEED)
    portfolio = {"rounds": solution.rounds, "seconds": seconds}
    results: dict[str, dict[str, Any]] = {"portfolio": portfolio}
    for name, strategy in STRATEGIES.items():
        seconds, rounds = timed(partial(rounds_of, strategy, network))
        results[name] = {"rounds": rounds, "seconds": seconds}
    bound = gw.bounds.free_trees(network).rounds
    return {
        **figures(solution, "network", "servers", "switches", "links"),
        "bound": bound,
        "proved": max(bound, solution.rounds_bound.rounds),
        "winner": to_spec(solution.scheduler),
        **results,
    }


def summary(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    solved = [row for row in rows if row[name]["rounds"] is not None]
    seconds = [row[name]["seconds"] for row in rows]
    result = {
        "strategy": name,
        "networks": len(solved),
        "mean_seconds": statistics.mean(seconds),
        "slowest_seconds": max(seconds),
    }
    if not solved:  # it applies to none
        return result
    gaps = [row[name]["rounds"] / row["proved"] - 1 for row in solved]
    return {
        **result,
        "mean_gap": statistics.mean(gaps),
        "mean_gap_to_free_trees_bound": statistics.mean(
            row[name]["rounds"] / row["bound"] - 1 for row in solved
        ),
        "worst_gap": max(gaps),
        "worst_network": solved[gaps.index(max(gaps))]["network"],
        "proved_optimal": sum(gap == 0 for gap in gaps),
    }


def finish(rows: list[dict[str, Any]]) -> dict[str, Any]:
    of_kinds = {kind: [row for row in rows if row["networks_of"] == kind] for kind in SETS}
    summaries = [
        {"networks_of": kind, **summary(name, members)}
        for kind, members in of_kinds.items()
        for name in NAMES
    ]
    return {"strategies": summaries, "rows": of_kinds}


def draw(result: dict[str, Any], path: Path) -> None:
    rows, names = result["rows"], NAMES
    figure, panels = figure_with((9, 4), 1, 2, sharex=True, sharey=True)
    colours = ("#e0b13a", "#c8553d", "#0b6e4f", "#3b5b92", "#8a8d91")
    for axes, (kind, measured) in zip(panels, rows.items(), strict=True):
        for name, colour in zip(names, colours, strict=True):
            shown = [row for row in measured if row[name]["rounds"] is not None]
            if not shown:
                continue
            gaps = sorted(100 * (row[name]["rounds"] / row["proved"] - 1) for row in shown)
            label = name if len(shown) == COUNT else f"{name} ({len(shown)} networks)"
            width = 5 if name == "portfolio" else 1.6
            line = [*gaps, 2000], [*range(1, len(gaps) + 1), len(gaps)]
            axes.step(
                [gaps[0], *line[0]],
                [0, *line[1]],
                where="post",
                color=colour,
                label=label,
                lw=width,
            )
        axes.set_title(f"{COUNT} {kind} networks", loc="left", fontsize=10)
        axes.set_xscale("symlog", linthresh=10)
        axes.set_xticks([0, 5, 10, 50, 100, 500], ["0", "5", "10", "50", "100", "500"])
        axes.set_xlabel("rounds above what is proved necessary, %")
        axes.set_ylim(0, 102)
        axes.set_xlim(-1, 2000)
        axes.grid(True, alpha=0.25)
    panels[0].set_ylabel("networks with no larger gap")
    figure.legend(
        *panels[1].get_legend_handles_labels(),
        frameon=False,
        fontsize=9,
        loc="outside lower center",
        ncols=len(names),
    )
    figure.savefig(path)


if __name__ == "__main__":
    run(
        __doc__,
        Rows(grid(networks_of=SETS, seed=range(COUNT)), measure),
        warm=warm,
        finish=finish,
        picture=Picture("random_networks_gap", draw, ("rows",)),
        seeds=[SEED],
        networks=f"seeds 0 to {COUNT - 1} of each set",
    )
