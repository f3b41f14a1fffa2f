"""What a search for seconds has found after 2, 5, 20 and 120 s: networks whose links differ.

    taskset -c 0 python benchmarks/experiments/anytime.py

`gradweave.solve` with ``objective="seconds"``, its defaults and that time limit, on the 60 networks
of benchmarks/unequal_networks.py on which choices were made, on 60 on which none was, and on those
of benchmarks/named_networks.py, 256 MB.
Time limits and seconds are processor time of one process, compilation left out; each network has a
process of its own. ``gap`` is over the certified bound.
"""

import statistics
from typing import Any

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.named_networks import NAMED
from benchmarks.solutions import figures, solved
from benchmarks.unequal_networks import COUNT, GBIT, KINDS, network, unequal_network
from gradweave.common import clock

LIMITS_S = (2.0, 5.0, 20.0, 120.0)
SIZE = 256e6
SEED = 0


def warm() -> None:
    links = [(server, 4, 0.01, GBIT / (1 + (server == 0))) for server in range(4)]
    for one in (network("one slow server", 4, 1, links), "mesh:2x3"):
        gw.solve(one, objective="seconds", gradient_bytes=1e6)


def measure(seed: int) -> list[dict[str, Any]]:
    """One network, each limit."""
    kind, topology = network_of(seed)
    rows = []
    for limit_s in LIMITS_S:
        seconds, solution = solved(
            topology,
            clock.now,
            objective="seconds",
            gradient_bytes=SIZE,
            seed=SEED,
            time_limit=limit_s,
        )
        rows.append(
            {
                "kind": kind,
                **figures(solution, "network", "servers", "ms", "least_ms", "gap", "winner"),
                "limit_s": limit_s,
                "seconds": seconds,
                "stopped": solution.stopped,
                "attempts": [
                    [gw.schedulers.to_spec(one.scheduler), one.seconds, one.wall_s]
                    for one in solution.attempts
                ],
            }
        )
        if solution.stopped != "time":  # longer limits change nothing
            rows += [rows[-1] | {"limit_s": longer} for longer in LIMITS_S if longer > limit_s]
            break
    return rows


def network_of(seed: int) -> tuple[str, gw.Topology]:
    """The kind and the network of a seed; those that are named come last."""
    if seed < 2 * COUNT:
        return unequal_network(seed)
    name, make = list(NAMED.items())[seed - 2 * COUNT]
    return name, make()


def summaries(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean gap at each limit, of each kind and of all, on old and on new networks."""
    made = []
    for place, name in enumerate(("choices were made on", "new", "named")):
        here = [row for row in rows if row["seed"] // COUNT == place]
        for kind in (*KINDS, "all") if place < 2 else NAMED:
            of_kind = [row for row in here if kind in ("all", row["kind"])]
            for limit_s in sorted({row["limit_s"] for row in of_kind}):
                gaps = [row["gap"] for row in of_kind if row["limit_s"] == limit_s]
                made.append(
                    {
                        "networks": name,
                        "kind": kind,
                        "limit_s": limit_s,
                        "count": len(gaps),
                        "mean_gap": statistics.mean(gaps),
                        "median_gap": statistics.median(gaps),
                        "worst_gap": max(gaps),
                    }
                )
    return made


if __name__ == "__main__":
    seeds = range(2 * COUNT + len(NAMED))
    run(
        __doc__,
        Rows(grid(seed=seeds), measure),
        warm=warm,
        alone=True,
        processor_time=True,
        finish=lambda rows: {"summaries": summaries(rows)},
        seeds=[SEED],
        gradient_bytes=SIZE,
    )
