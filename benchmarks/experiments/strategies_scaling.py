"""Seconds and gap of each strategy against the number of servers, on BCube(n, 1) and square tori.

    taskset -c 0 python benchmarks/experiments/strategies_scaling.py

16 to 1,024 servers, all-reduce, seed 0, without the time of verification. After compilation; the
median of up to five runs counts where they are short. Seconds are processor time. Searches use
their default number of restarts, except grown and merged, whose defaults restart for seconds: they
run once.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradweave as gw
from benchmarks.experiment import Rows, run
from benchmarks.pictures import Picture, figure_with
from gradweave.schedulers import Grown, Merged, Ring, Scheduler, Symmetric, scheduler, to_spec

SEED = 0
STRATEGIES: dict[str, Scheduler] = {
    "symmetric": Symmetric(),
    "grown": Grown(restarts=1),
    "merged": Merged(tries=1),
    "ring": Ring(),
}
NETWORKS = {
    "BCube(n, 1)": [f"bcube:n={n},k=1" for n in (4, 6, 8, 12, 16, 24, 32)],
    "torus": [f"torus:{n}x{n}" for n in (4, 6, 8, 12, 16, 24, 32)],
}
BETWEEN = (64, 1024)


def timed(strategy: Scheduler, network: gw.Topology) -> tuple[float, float, Any]:
    """Median seconds without verification and of verification, and the schedule."""
    verifying = [0.0]

    def timed_verify(*arguments: Any, **options: Any) -> Any:
        begin = time.process_time()
        verdict = original(*arguments, **options)
        verifying[0] = time.process_time() - begin
        return verdict

    original: Callable[..., Any] = scheduler.verify
    scheduler.verify = timed_verify
    try:
        alone: list[float] = []
        verified: list[float] = []
        schedule = None
        while len(alone) < 5 and sum(alone) < 2:
            begin = time.process_time()
            schedule = strategy.schedule(network, seed=SEED)
            alone.append(time.process_time() - begin - verifying[0])
            verified.append(verifying[0])
    finally:
        scheduler.verify = original
    return statistics.median(alone), statistics.median(verified), schedule


def warm() -> None:
    for strategy in STRATEGIES.values():
        for spec in ("bcube:n=2,k=1", "torus:3x3"):
            strategy.schedule(gw.topology.from_spec(spec))


def measure(network: str, strategy: str, **_: Any) -> dict[str, Any]:
    topology = gw.topology.from_spec(network)
    bound = gw.bounds.free_trees(topology).rounds
    schedule_s, verify_s, schedule = timed(STRATEGIES[strategy], topology)
    return {
        "servers": topology.num_servers,
        "transfers": schedule.num_transfers,
        "rounds": schedule.rounds,
        "bound": bound,
        "gap": schedule.rounds / bound - 1,
        "schedule_s": schedule_s,
        "verify_s": verify_s,
    }


def growth(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Time per transfer at 64 and at 1,024 servers."""
    rows_by_growth = []
    for family in NETWORKS:
        for name in STRATEGIES:
            cost = {
                row["servers"]: (row["schedule_s"] / row["transfers"])
                for row in rows
                if (row["family"], row["strategy"]) == (family, name)
            }
            few, many = (cost[servers] for servers in BETWEEN)
            rows_by_growth.append(
                {
                    "family": family,
                    "strategy": name,
                    "microseconds_at_64": few * 1e6,
                    "microseconds_at_1024": many * 1e6,
                    "factor": many / few,
                }
            )
    return rows_by_growth


def draw(result: dict[str, Any], path: Path) -> None:
    rows = result["rows"]
    figure, panels = figure_with((9, 7), 2, 2, sharex=True, sharey="row")
    colours = dict(zip(STRATEGIES, ("#0b6e4f", "#c8553d", "#3b5b92", "#8a8d91"), strict=True))
    markers = dict(zip(STRATEGIES, "osd^", strict=True))
    for column, family in enumerate(NETWORKS):
        above, below = panels[0][column], panels[1][column]
        for name in STRATEGIES:
            line = [row for row in rows if (row["family"], row["strategy"]) == (family, name)]
            servers = [row["servers"] for row in line]
            style = {
                "marker": markers[name],
                "ms": 9 if name == "symmetric" else 5,
                "color": colours[name],
                "label": name,
            }
            above.loglog(servers, [row["schedule_s"] for row in line], **style)
            below.semilogx(servers, [100 * row["gap"] for row in line], **style)
        above.set_title(family, loc="left", fontsize=11)
        below.set_xlabel("servers")
        below.set_xticks(servers, [f"{count:,}" for count in servers])
        below.set_xticks([], minor=True)
        below.set_yscale("symlog", linthresh=10)
        below.set_yticks([0, 5, 10, 100, 1000], ["0", "5", "10", "100", "1,000"])
        below.set_ylim(-1.5, 1500)
        for axes in (above, below):
            axes.grid(True, which="major", alpha=0.25)
    panels[0][0].set_ylabel("seconds to schedule an all-reduce, one core")
    panels[1][0].set_ylabel("rounds above the lower bound, %")
    panels[0][0].legend(frameon=False, fontsize=9)
    figure.savefig(path)


if __name__ == "__main__":
    cases = [
        {"family": family, "network": spec, "strategy": name}
        for family, specs in NETWORKS.items()
        for spec in specs
        for name in STRATEGIES
    ]
    run(
        __doc__,
        Rows(cases, measure),
        warm=warm,
        finish=lambda rows: {"growth": growth(rows)},
        picture=Picture("strategies_scaling", draw, ("rows",)),
        seeds=[SEED],
        strategies={name: to_spec(strategy) for name, strategy in STRATEGIES.items()},
    )
