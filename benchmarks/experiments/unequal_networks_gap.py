"""60 networks whose links differ, 256 MB and 4 GB: time beside the least possible, and why.

    taskset -c 0 python benchmarks/experiments/unequal_networks_gap.py

Networks of benchmarks/unequal_networks.py: racks with thin trunks, slowed links, random graphs,
wide areas, boxes with network cards, two halves. `gradweave.solve` with ``objective="seconds"`` and
its defaults; beside its time the best of those strategies in the same search whose pieces are of
one size, with as many for each server. Each network in a process of its own, one core; seconds of
the search are processor time, after compilation. What is done is kept in a file beside the results
until all is; ``--resume`` goes on with it.
"""

import argparse
import json
import statistics
import sys
from typing import Any

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.processes import printed_json
from benchmarks.record import printed, record, show
from benchmarks.solutions import figures, solved, spread
from benchmarks.unequal_networks import COUNT, GBIT, by_kind, network, unequal_network
from benchmarks.unfinished import Unfinished

SEED = 0
SIZES = (256e6, 4e9)
LIMIT_S = 120.0
"""Of one search."""


def measure(topology: gw.Topology, size: float, limit_s: float) -> dict[str, Any]:
    seconds, solution = solved(
        topology, objective="seconds", gradient_bytes=size, seed=SEED, time_limit=limit_s
    )
    timing = solution.timing
    assert timing is not None
    least = timing.bound
    equal_s = min(
        one.seconds
        for one in solution.attempts
        if one.seconds is not None and not one.scheduler.traits.own_pieces
    )
    return {
        **figures(solution, "network", "servers", "links", "ms", "least_ms", "gap", "winner"),
        **figures(solution, "pieces", "transfers"),
        "gradient_bytes": size,
        "latency_ms": 1e3 * least.latency_s,
        "bandwidth_ms": 1e3 * least.bandwidth_s,
        "latency_share": least.latency_s / least.seconds,
        "seconds": seconds,
        "limited": solution.wall_s >= limit_s,
        "equal_gap": equal_s / least.seconds - 1,
    }


def measure_both(seed: int, limit_s: float) -> list[dict[str, Any]]:
    """In a process of its own: one network, both sizes."""
    kind, topology = unequal_network(seed)
    links = [(server, 4, 0.01, GBIT / (1 + (server == 0))) for server in range(4)]
    for warm in (network("one slow server", 4, 1, links), "mesh:2x3"):
        gw.solve(warm, objective="seconds", gradient_bytes=1e6)  # compiles
    own = {"seed": seed, "kind": kind}
    return [own | measure(topology, size, limit_s) for size in SIZES]


def run(seeds: list[int], limit_s: float, kept: Unfinished) -> list[dict[str, Any]]:
    """Measures what is not kept yet; names a network that fails."""
    for seed in seeds:
        if any(row["seed"] == seed for row in kept.rows()):
            continue
        command = [sys.executable, __file__, "--one", str(seed), "--limit", str(limit_s)]
        try:
            measured = printed_json(command)
        except SystemExit as failed:
            print(failed, file=sys.stderr, flush=True)
            continue
        for row in measured:
            kept.add(row)
            show(row)
    return sorted(kept.rows(), key=lambda row: (row["seed"], row["gradient_bytes"]))


def summary(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    equal = [row["equal_gap"] for row in rows]
    return {
        "rows": name,
        "count": len(rows),
        "over_3_percent": sum(row["gap"] > 0.03 for row in rows),
        "over_10_percent": sum(row["gap"] > 0.1 for row in rows),
        "mean_equal_gap": statistics.mean(equal),
        "worst_equal_gap": max(equal),
        **spread(rows),
    }


def main() -> None:
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument("--seeds", type=int, nargs="*", help="these networks only")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of one search")
    parser.add_argument("--dry", action="store_true", help="record nothing")
    parser.add_argument("--part", action="store_true", help="record even if some are missing")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        print(json.dumps(measure_both(asked.one, asked.limit)))
        return
    seeds = list(range(COUNT)) if asked.seeds is None else asked.seeds
    kept = Unfinished("unequal_networks_gap", resume=asked.resume)
    rows = run(seeds, asked.limit, kept)
    lines = printed(summary(name, group) for name, group in by_kind(rows))
    missing = sorted(set(range(COUNT)) - {row["seed"] for row in rows})
    if asked.dry or (missing and not asked.part):
        print(f"nothing recorded; missing: {missing}")
        return
    record(
        "unequal_networks_gap",
        seeds=[SEED],
        limit_s=asked.limit,
        missing=missing,
        summaries=lines,
        rows=rows,
    )
    if not missing:
        kept.end()


if __name__ == "__main__":
    main()
