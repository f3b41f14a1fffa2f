"""Seconds and gap against servers, for each strategy, on BCube(n, 1) and square tori.

    taskset -c 0 python benchmarks/experiments/strategies_scaling.py

16 to 1,024 servers, all-reduce, seed 0, the verification's time apart. Compiled code is warmed up
first; the median of up to five runs counts where they are short. Seconds are the process's own, so
that others on the machine do not count. The searches run as often as
their defaults say; grown and merged, whose defaults restart for seconds on purpose, run once.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from record import RESULTS, record

import gradweave as gw
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
FACTOR = 3.0


def measure(strategy: Scheduler, network: gw.Topology) -> tuple[float, float, Any]:
    """Median seconds without and of verification, and the schedule."""
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
        made = None
        while len(alone) < 5 and sum(alone) < 2:
            begin = time.process_time()
            made = strategy.schedule(network, seed=SEED)
            alone.append(time.process_time() - begin - verifying[0])
            verified.append(verifying[0])
    finally:
        scheduler.verify = original
    return statistics.median(alone), statistics.median(verified), made


def growth(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How much dearer a transfer is at 1,024 servers than at 64."""
    found = []
    for family in NETWORKS:
        for name in STRATEGIES:
            cost = {
                row["servers"]: (row["schedule_s"] / row["transfers"])
                for row in rows
                if (row["family"], row["strategy"]) == (family, name)
            }
            few, many = (cost[servers] for servers in BETWEEN)
            found.append(
                {
                    "family": family,
                    "strategy": name,
                    "microseconds_at_64": few * 1e6,
                    "microseconds_at_1024": many * 1e6,
                    "factor": many / few,
                    "within_factor": many / few <= FACTOR,
                }
            )
    return found


def draw(rows: list[dict[str, Any]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 7), dpi=160, layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey="row")
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
            axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("seconds to schedule an all-reduce, one core")
    panels[1][0].set_ylabel("rounds above the lower bound, %")
    panels[0][0].legend(frameon=False, fontsize=9)
    figure.savefig(RESULTS / "strategies_scaling.png")


def main() -> None:
    for strategy in STRATEGIES.values():
        for spec in ("bcube:n=2,k=1", "torus:3x3"):
            strategy.schedule(gw.topology.from_spec(spec))
    rows = []
    for family, specs in NETWORKS.items():
        for spec in specs:
            network = gw.topology.from_spec(spec)
            bound = gw.bounds.free_trees(network).rounds
            for name, strategy in STRATEGIES.items():
                schedule_s, verify_s, made = measure(strategy, network)
                rows.append(
                    {
                        "family": family,
                        "network": spec,
                        "servers": network.num_servers,
                        "strategy": name,
                        "transfers": made.num_transfers,
                        "rounds": made.rounds,
                        "bound": bound,
                        "gap": made.rounds / bound - 1,
                        "schedule_s": schedule_s,
                        "verify_s": verify_s,
                    }
                )
                print(rows[-1], flush=True)
    growths = growth(rows)
    record(
        "strategies_scaling",
        "taskset -c 0 python benchmarks/experiments/strategies_scaling.py",
        seeds=[SEED],
        strategies={name: to_spec(strategy) for name, strategy in STRATEGIES.items()},
        growth=growths,
        rows=rows,
    )
    for row in growths:
        print({key: round(x, 2) if isinstance(x, float) else x for key, x in row.items()})
    draw(rows)


if __name__ == "__main__":
    main()
