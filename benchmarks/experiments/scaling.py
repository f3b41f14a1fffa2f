"""Time to schedule, simulate and verify against the number of servers: BCube(n, 1), merged trees.

    taskset -c 0 python benchmarks/experiments/scaling.py

After compilation; the median of several runs counts where they are short.
"""

import resource
from pathlib import Path
from typing import Any

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.pictures import Picture, figure_with
from benchmarks.timing import median_time
from gradweave.schedulers import Merged

NETWORKS = tuple(f"bcube:n={n},k=1" for n in (4, 6, 8, 12, 16, 24, 32))
STRATEGY = Merged(tries=1)
SEED = 0


def measure(topology: str) -> dict[str, Any]:
    network = gw.topology.from_spec(topology)
    bound_s, bound = median_time(lambda: gw.bounds.free_trees(network))
    verified_s, schedule = median_time(lambda: STRATEGY.schedule(network, seed=SEED))
    verify_s, verdict = median_time(lambda: gw.verify(schedule))
    rounds_s, _ = median_time(lambda: gw.simulator.seconds(schedule, 100e6, "rounds"))
    events_s, _ = median_time(lambda: gw.simulator.seconds(schedule, 100e6, "events"))
    assert verdict.valid
    return {
        "servers": network.num_servers,
        "transfers": schedule.num_transfers,
        "rounds": schedule.rounds,
        "fixed_tree_bound": gw.bounds.fixed_trees(
            gw.schedules.FlowTrees.shortest_path(network), "all_reduce"
        ).rounds,
        "bound": bound.rounds,
        "schedule_and_verify_s": verified_s,
        "schedule_s": verified_s - verify_s,
        "verify_s": verify_s,
        "simulate_rounds_s": rounds_s,
        "simulate_events_s": events_s,
        "bound_s": bound_s,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def draw(result: dict[str, Any], path: Path) -> None:
    rows = result["rows"]
    figure, axes = figure_with((7, 4.6))
    servers = [row["servers"] for row in rows]
    for column, label, marker in (
        ("schedule_s", "schedule (merged, most loaded first, swaps)", "o"),
        ("verify_s", "verify", "s"),
        ("simulate_rounds_s", "simulate, round by round", "^"),
        ("simulate_events_s", "simulate, event by event", "v"),
        ("bound_s", "lower bound (one flow per server)", "d"),
    ):
        axes.loglog(servers, [row[column] for row in rows], marker=marker, ms=5, label=label)
    axes.set_xticks(servers, [str(count) for count in servers], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_xlabel("servers of BCube(n, 1); transfers grow with their square")
    axes.set_ylabel("seconds on one core")
    axes.grid(True, which="major", alpha=0.25)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)


if __name__ == "__main__":
    run(
        __doc__,
        Rows(grid(topology=NETWORKS), measure),
        warm=lambda: measure("bcube:n=2,k=1"),
        picture=Picture("scaling", draw),
        seeds=[SEED],
        scheduler=gw.schedulers.to_spec(STRATEGY),
    )
