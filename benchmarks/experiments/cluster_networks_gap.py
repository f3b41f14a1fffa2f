"""200 networks as clusters have them, and those once scheduled badly: gap to the bound, and time.

    taskset -c 0 python benchmarks/experiments/cluster_networks_gap.py

Networks of benchmarks/cluster_networks.py, seeds 0 to 199: planes, dual-homed racks, rails,
leaf–spine, fat-trees, dragonflies, sites joined by few links, stars of rings, random regular
graphs.
`gradweave.solve` with its defaults (all-reduce), one core, after compilation. Seconds are processor
time.
"""

import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from cluster_networks import KINDS, cluster_network, named_networks
from command_line import parser_of
from record import record, show
from timing import timed

import gradweave as gw
from gradweave.schedulers import to_spec

COUNT = 200
SEED = 0


def measure(network: gw.Topology) -> dict[str, Any]:
    seconds, solution = timed(lambda: gw.solve(network, seed=SEED), time.process_time)
    return {
        "network": network.name,
        "servers": network.num_servers,
        "switches": len(network.switches),
        "links": network.num_links,
        "rounds": solution.rounds,
        "bound": solution.bound.rounds,
        "bound_kind": solution.bound.kind,
        "gap": solution.gap,
        "seconds": seconds,
        "winner": to_spec(solution.scheduler),
        "attempts": [
            [one.scheduler.name, one.rounds, round(one.wall_s, 3)] for one in solution.attempts
        ],
    }


def summary(kind: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "kind": kind,
        "networks": len(rows),
        "proved_optimal": sum(row["gap"] == 0 for row in rows),
        "mean_gap": statistics.mean(row["gap"] for row in rows),
        "worst_gap": max(row["gap"] for row in rows),
        "mean_seconds": statistics.mean(row["seconds"] for row in rows),
        "slowest_seconds": max(row["seconds"] for row in rows),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="networks of the generator")
    parser.add_argument("--dry", action="store_true", help="record nothing")
    asked = parser.parse_args()
    for warm in ("ring:4", "mesh:2x3", "jellyfish:reference=J15"):
        gw.solve(warm)  # compiles
        gw.solve(warm, schedulers="learned,merged,exact")
    named = []
    for network, known in named_networks().values():
        named.append(measure(network) | {"least_rounds_of_a_stage": known})
        show(named[-1])
    rows = []
    for seed in range(asked.count):
        kind, network = cluster_network(seed)
        rows.append({"kind": kind, "seed": seed} | measure(network))
        show(rows[-1])
    of_kinds = [(kind, [row for row in rows if row["kind"] == kind]) for kind in KINDS]
    summaries = [summary(kind, members) for kind, members in of_kinds if members]
    summaries.append(summary("all", rows))
    for line in summaries:
        show(line)
    if not asked.dry:
        record(
            "cluster_networks_gap",
            command="taskset -c 0 python benchmarks/experiments/cluster_networks_gap.py",
            seeds=[SEED],
            named=named,
            summaries=summaries,
            networks=rows,
        )


if __name__ == "__main__":
    main()
