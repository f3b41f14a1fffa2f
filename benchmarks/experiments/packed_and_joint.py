"""Does the program of any demand equal that of one all-reduce? `joint` beside `packed`.

    taskset -c 0 python benchmarks/experiments/packed_and_joint.py [--resume] [--every N]

Both plan trees by column generation: `packed` for one all-reduce, whose trees to and from a root
are separate columns coupled by the root's share; `joint` for any demand, one column per pair of
trees. Each plans one all-reduce alone, with the same limit of processor time, on the unequal
networks of `anytime.py` at the size of DDP's buckets and at 256 MB. Gaps are over the larger of
both bounds, which hold for both plans.
"""

import statistics
import time
from typing import Any

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.experiments import anytime
from benchmarks.record import record, show
from benchmarks.unfinished import Unfinished
from gradweave.errors import GradweaveError
from gradweave.schedulers import Packed
from gradweave.schedulers.packing.joint import Joint
from gradweave.schedulers.solving.demands import solve_demand
from gradweave.schedulers.solving.portfolio import Group
from gradweave.schedules import Job

NAME = "packed_and_joint"
LIMIT_S = 20.0
SIZES = (25_000_000, 256_000_000)
SEED = 0
STRATEGIES = {"packed": [Group(Packed())], "joint": [Joint(1.0), Joint()]}
"""`packed` tries several weights of residual bandwidth by itself."""


def planned(network: gw.Topology, name: str, size: int, limit_s: float) -> dict[str, Any]:
    """The time of one strategy's schedule, the bound and the seconds of the search."""
    found = solve_demand(
        network,
        Job("all_reduce", size),
        strategies=STRATEGIES[name],
        seed=SEED,
        time_limit=limit_s,
    )
    return {"ms": 1e3 * found.value, "least_ms": 1e3 * found.least, "seconds": found.wall_s}


def row_of(seed: int, size: int) -> dict[str, Any]:
    """Both strategies on one network, each first in turn."""
    kind, network = anytime.network_of(seed)
    row: dict[str, Any] = {"seed": seed, "kind": kind, "network": network.name, "bytes": size}
    found = {}
    for name in sorted(STRATEGIES, reverse=bool(seed % 2)):
        found[name] = planned(network, name, size, LIMIT_S)
    least = max(one["least_ms"] for one in found.values())
    for name, one in found.items():
        row |= {f"{name}_gap": one["ms"] / least - 1, f"{name}_s": one["seconds"]}
    return row


def summary(rows: list[dict[str, Any]], size: int) -> dict[str, Any]:
    """Gaps of both, and how often each is ahead by more than a thousandth."""
    here = [row for row in rows if row["bytes"] == size]
    over = [(1 + row["joint_gap"]) / (1 + row["packed_gap"]) - 1 for row in here]
    gaps = {
        f"{name}_gap": statistics.mean(row[f"{name}_gap"] for row in here) for name in STRATEGIES
    }
    return {
        "bytes": size,
        "networks": len(here),
        **gaps,
        "joint_ahead": sum(one < -1e-3 for one in over),
        "packed_ahead": sum(one > 1e-3 for one in over),
        "joint_over_packed": statistics.mean(over),
        "worst": max(over),
        "best": min(over),
    }


def main() -> None:
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument("--every", type=int, default=1, help="every N-th network only")
    asked = parser.parse_args()
    kept = Unfinished(NAME, resume=asked.resume)
    for name in STRATEGIES:
        planned(anytime.network_of(0)[1], name, 10**6, LIMIT_S)  # compiles
    time.monotonic = time.process_time  # of which time limits are, from here on
    for seed in range(0, 2 * anytime.COUNT + len(anytime.NAMED), asked.every):
        for size in SIZES:
            if any((row["seed"], row["bytes"]) == (seed, size) for row in kept.rows()):
                continue
            try:
                row = row_of(seed, size)
            except GradweaveError as error:
                raise SystemExit(f"network {seed}: {error}") from error
            kept.add(row)
            show(row)
    rows = kept.rows()
    summaries = [summary(rows, size) for size in SIZES]
    for one in summaries:
        show(one)
    record(NAME, seeds=[SEED], limit_s=LIMIT_S, summaries=summaries, rows=rows)
    kept.end()


if __name__ == "__main__":
    main()
