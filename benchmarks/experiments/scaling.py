"""Time to schedule, simulate and verify against the number of servers: BCube(n, 1), merged trees.

    python benchmarks/experiments/scaling.py

Run it on one core for comparable figures, such as with ``taskset -c 0``. Compiled code is warmed
up first; the median of several runs counts where they are short.
"""

import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from record import RESULTS, record

import gradweave as gw
from gradweave.schedulers import Merged

SIZES = (4, 6, 8, 12, 16, 24, 32)
STRATEGY = Merged(tries=1)
SEED = 0


def measure(work: Callable[[], Any], budget_s: float = 2.0) -> tuple[float, Any]:
    """Median seconds of up to five runs, as many as fit the budget, and the last result."""
    taken: list[float] = []
    result = None
    while len(taken) < 5 and (not taken or sum(taken) < budget_s):
        begin = time.perf_counter()
        result = work()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken), result


def row(n: int) -> dict[str, Any]:
    network = gw.topology.bcube(n=n, k=1)
    bound_s, bound = measure(lambda: gw.bounds.free_trees(network))
    verified_s, made = measure(lambda: STRATEGY.schedule(network, seed=SEED))
    verify_s, verdict = measure(lambda: gw.verify.verify(made))
    rounds_s, _ = measure(lambda: gw.simulate.seconds(made, 100e6, "rounds"))
    events_s, _ = measure(lambda: gw.simulate.seconds(made, 100e6, "events"))
    assert verdict.valid
    return {
        "topology": network.name,
        "servers": network.num_servers,
        "transfers": made.num_transfers,
        "rounds": made.rounds,
        "fixed_tree_bound": gw.bounds.fixed_trees(
            gw.schedule.FlowTrees.shortest_path(network), "all_reduce"
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


def draw(rows: list[dict[str, Any]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.6), dpi=160, layout="constrained")
    axes = figure.add_subplot()
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
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(RESULTS / "scaling.png")


def main() -> None:
    row(2)  # compiles
    rows = []
    for n in SIZES:
        rows.append(row(n))
        print({key: round(x, 4) if isinstance(x, float) else x for key, x in rows[-1].items()})
    record(
        "scaling",
        "taskset -c 0 python benchmarks/experiments/scaling.py",
        seeds=[SEED],
        scheduler=gw.schedulers.to_spec(STRATEGY),
        rows=rows,
    )
    draw(rows)


if __name__ == "__main__":
    main()
