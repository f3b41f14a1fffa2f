"""What a search for seconds has found after 2, 5, 20 and 120 s: networks whose links differ.

    taskset -c 0 python benchmarks/experiments/anytime.py [--resume]

`gradweave.solve` with ``objective="seconds"``, its defaults and that time limit, on the 60 networks
of benchmarks/unequal_networks.py on which choices were made, on 60 on which none was, and on those
of benchmarks/named_networks.py, 256 MB.
Time limits and seconds are processor time of one process, compilation left out; each network has a
process of its own. ``gap`` is over the certified bound.
"""

import argparse
import json
import statistics
import sys
import time
from typing import Any

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.named_networks import NAMED
from benchmarks.processes import printed_json
from benchmarks.record import printed, record, show
from benchmarks.solutions import figures, solved
from benchmarks.unequal_networks import COUNT, GBIT, KINDS, network, unequal_network
from benchmarks.unfinished import Unfinished
from gradweave.common import clock

NAME = "anytime"
LIMITS_S = (2.0, 5.0, 20.0, 120.0)
SIZE = 256e6
SEED = 0


def measure(seed: int, limits_s: list[float]) -> list[dict[str, Any]]:
    """In a process of its own: one network, each limit."""
    kind, topology = network_of(seed)
    links = [(server, 4, 0.01, GBIT / (1 + (server == 0))) for server in range(4)]
    for warm in (network("one slow server", 4, 1, links), "mesh:2x3"):
        gw.solve(warm, objective="seconds", gradient_bytes=1e6)  # compiles
    time.monotonic = time.process_time  # of which time limits are, from here on
    rows = []
    for limit_s in limits_s:
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
                "seed": seed,
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
            rows += [rows[-1] | {"limit_s": longer} for longer in limits_s if longer > limit_s]
            break
    return rows


def network_of(seed: int) -> tuple[str, gw.Topology]:
    """The kind and the network of a seed; those that are named come last."""
    if seed < 2 * COUNT:
        return unequal_network(seed)
    name, make = list(NAMED.items())[seed - 2 * COUNT]
    return name, make()


def run(seeds: list[int], limits_s: list[float], kept: Unfinished) -> list[dict[str, Any]]:
    """Measures what is not kept yet."""
    for seed in seeds:
        if any(row["seed"] == seed for row in kept.rows()):
            continue
        limits = [str(limit) for limit in limits_s]
        command = [sys.executable, __file__, "--one", str(seed), "--limits", *limits]
        for row in printed_json(command):
            kept.add(row)
            show({key: row[key] for key in ("kind", "network", "limit_s", "seconds", "gap")})
    return sorted(kept.rows(), key=lambda row: (row["seed"], row["limit_s"]))


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


def main() -> None:
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument("--seeds", type=int, nargs="*", help="these networks only")
    parser.add_argument("--limits", type=float, nargs="*", default=list(LIMITS_S))
    parser.add_argument("--dry", action="store_true", help="record nothing")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        print(json.dumps(measure(asked.one, asked.limits)))
        return
    seeds = list(range(2 * COUNT + len(NAMED))) if asked.seeds is None else asked.seeds
    kept = Unfinished(NAME, resume=asked.resume)
    rows = run(seeds, asked.limits, kept)
    lines = printed(summaries(rows))
    if not asked.dry:
        record(NAME, seeds=[SEED], gradient_bytes=SIZE, summaries=lines, rows=rows)
        kept.end()


if __name__ == "__main__":
    main()
