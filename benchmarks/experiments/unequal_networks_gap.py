"""60 networks whose links differ, 256 MB and 4 GB: time beside the least possible, and why.

    taskset -c 0 python benchmarks/experiments/unequal_networks_gap.py

Networks of benchmarks/unequal_networks.py: racks with thin trunks, slowed links, random graphs,
wide areas, boxes with network cards, two halves. `gradweave.solve` with ``objective="seconds"`` and
its defaults, and the same without the strategies whose pieces differ in size. Each network in a
process of its own, one core; seconds of the search are processor time, after compilation. What is
done is kept in a file beside the results until all is, so that the same command goes on where it
was ended; ``--again`` keeps only the searches without shares.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from processes import printed_json
from record import RESULTS, record, show
from timing import timed
from unequal_networks import COUNT, GBIT, KINDS, network, unequal_network

import gradweave as gw
from gradweave.schedulers import to_spec
from gradweave.schedulers.solve.seconds import FOR_SECONDS

SEED = 0
SIZES = (256e6, 4e9)
LIMIT_S = 120.0
"""Of one search."""
SEARCHES = ("best", "equal")
"""With all strategies, and without those whose pieces differ in size."""
FEW_LATENCIES = 0.1
"""Share of the bound up to which latency counts as small."""
KEPT = RESULTS / "unequal_networks_gap.partial.jsonl"


def search(topology: gw.Topology, which: str, size: float, limit_s: float) -> dict[str, Any]:
    alike = [one for one in FOR_SECONDS if not one.own_pieces] if which == "equal" else None
    seconds, solution = timed(
        lambda: gw.solve(
            topology,
            objective="seconds",
            gradient_bytes=size,
            seed=SEED,
            schedulers=alike,
            time_limit=limit_s,
        ),
        time.process_time,
    )
    timing = solution.timing
    assert timing is not None
    return {
        "ms": 1e3 * timing.seconds,
        "least_ms": 1e3 * timing.bound.seconds,
        "latency_ms": 1e3 * timing.bound.latency_s,
        "bandwidth_ms": 1e3 * timing.bound.bandwidth_s,
        "gap": timing.gap,
        "winner": to_spec(solution.scheduler),
        "pieces": solution.schedule.pieces,
        "transfers": solution.schedule.num_transfers,
        "seconds": seconds,
        "limited": solution.wall_s >= limit_s,
    }


def measure(seed: int, which: str, limit_s: float) -> list[dict[str, Any]]:
    """In a process of its own: one network, both sizes."""
    kind, topology = unequal_network(seed)
    links = [(server, 4, 0.01, GBIT / (1 + (server == 0))) for server in range(4)]
    for warm in (network("one slow server", 4, 1, links), "mesh:2x3"):
        gw.solve(warm, objective="seconds", gradient_bytes=1e6)  # compiles
    return [
        {
            "seed": seed,
            "kind": kind,
            "network": topology.name,
            "servers": topology.num_servers,
            "links": topology.num_links,
            "gradient_bytes": size,
            "search": which,
            "commit": commit(),
        }
        | search(topology, which, size, limit_s)
        for size in SIZES
    ]


def commit() -> str:
    """What is measured: searches of one record may come from two commits, see ``--again``."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def kept() -> list[dict[str, Any]]:
    return [json.loads(line) for line in KEPT.read_text().splitlines()] if KEPT.exists() else []


def keep(rows: list[dict[str, Any]]) -> None:
    KEPT.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def run(searches: Sequence[str], seeds: range, limit_s: float) -> None:
    """Measures what is not kept yet; a network that fails is left out and named."""
    for which, seed in itertools.product(searches, seeds):
        rows = kept()
        if any((row["seed"], row["search"]) == (seed, which) for row in rows):
            continue
        command = [sys.executable, __file__, "--one", str(seed), "--search", which]
        try:
            done = printed_json([*command, "--limit", str(limit_s)])
        except SystemExit as failed:
            print(failed, file=sys.stderr, flush=True)
            continue
        keep(rows + done)
        for row in done:
            show(row)


def joined(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each network and size: the best schedule, and beside it that of equal pieces."""
    by_key = {(row["seed"], row["gradient_bytes"], row["search"]): row for row in rows}
    both = []
    for seed, size, which in sorted(by_key):
        if which != "best" or (seed, size, "equal") not in by_key:
            continue
        best, equal = (dict(by_key[seed, size, each]) for each in ("best", "equal"))
        # The better bound of the two is that of both.
        least = max(best["least_ms"], equal["least_ms"])
        del best["search"]
        both.append(
            best
            | {"least_ms": least, "gap": best["ms"] / least - 1}
            | {"equal_ms": equal["ms"], "equal_gap": equal["ms"] / least - 1}
            | {"equal_winner": equal["winner"], "equal_seconds": equal["seconds"]}
            | {"equal_commit": equal["commit"]}
            | {"latency_share": best["latency_ms"] / least}
        )
    return both


def summary(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "rows": name,
        "count": len(rows),
        "mean_gap": statistics.mean(row["gap"] for row in rows),
        "worst_gap": max(row["gap"] for row in rows),
        "over_3_percent": sum(row["gap"] > 0.03 for row in rows),
        "over_10_percent": sum(row["gap"] > 0.1 for row in rows),
        "mean_equal_gap": statistics.mean(row["equal_gap"] for row in rows),
        "worst_equal_gap": max(row["equal_gap"] for row in rows),
        "mean_seconds": statistics.mean(row["seconds"] for row in rows),
        "slowest_seconds": max(row["seconds"] for row in rows),
    }


def summaries(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Where latency is small, by kind and all; and the rest."""
    small = [row for row in rows if row["latency_share"] < FEW_LATENCIES]
    large = [row for row in rows if row["latency_share"] >= FEW_LATENCIES]
    groups = [(kind, [row for row in small if row["kind"] == kind]) for kind in KINDS]
    groups += [("all where latency is small", small), ("latency a tenth or more", large)]
    return [summary(name, group) for name, group in groups if group]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=COUNT, help="networks of the generator")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of one search")
    parser.add_argument("--again", action="store_true", help="search with shares afresh")
    parser.add_argument("--dry", action="store_true", help="record nothing")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--search", choices=SEARCHES, help="this one only, for later")
    asked = parser.parse_args()
    if asked.one is not None:
        print(json.dumps(measure(asked.one, asked.search, asked.limit)))
        return
    if asked.again:
        keep([row for row in kept() if row["search"] == "equal"])
    run([asked.search] if asked.search else SEARCHES, range(asked.count), asked.limit)
    rows = joined(kept())
    lines = summaries(rows)
    for line in lines:
        show(line)
    complete = len(rows) == COUNT * len(SIZES)
    if asked.dry or not complete:
        print(f"{len(rows)} of {COUNT * len(SIZES)} rows, nothing recorded")
        return
    record(
        "unequal_networks_gap",
        command="taskset -c 0 python benchmarks/experiments/unequal_networks_gap.py",
        seeds=[SEED],
        limit_s=asked.limit,
        summaries=lines,
        rows=rows,
    )
    KEPT.unlink()


if __name__ == "__main__":
    main()
