"""200 networks as clusters have them, and those once scheduled badly: gap to the bound, and time.

    taskset -c 0 python benchmarks/experiments/cluster_networks_gap.py

Networks of benchmarks/cluster_networks.py, seeds 0 to 199: planes, dual-homed racks, rails,
leaf–spine, fat-trees, dragonflies, sites joined by few links, stars of rings, random regular
graphs.
`gradweave.solve` with its defaults (all-reduce), one core, after compilation. Seconds are processor
time.
"""

from typing import Any

import gradweave as gw
from benchmarks.cluster_networks import KINDS, cluster_network, named_networks
from benchmarks.command_line import parser_of
from benchmarks.record import printed, record
from benchmarks.solutions import figures, solved, spread

COUNT = 200
SEED = 0


def measure(network: gw.Topology) -> dict[str, Any]:
    seconds, solution = solved(network, seed=SEED)
    names = ("network", "servers", "switches", "links", "rounds", "bound", "bound_kind", "gap")
    return figures(solution, *names, "winner") | {"seconds": seconds}


def summary(kind: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    optimal = sum(row["gap"] == 0 for row in rows)
    return {"kind": kind, "networks": len(rows), "proved_optimal": optimal, **spread(rows)}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="networks of the generator")
    parser.add_argument("--dry", action="store_true", help="record nothing")
    asked = parser.parse_args()
    for warm in ("ring:4", "mesh:2x3", "jellyfish:reference=J15"):
        gw.solve(warm)  # compiles
        gw.solve(warm, schedulers="learned,merged,exact")
    named = printed(
        measure(network) | {"least_rounds_of_a_stage": known}
        for network, known in named_networks().values()
    )
    rows = printed(
        {"kind": kind, "seed": seed} | measure(network)
        for seed, (kind, network) in enumerate(map(cluster_network, range(asked.count)))
    )
    of_kinds = [(kind, [row for row in rows if row["kind"] == kind]) for kind in KINDS]
    summaries = [summary(kind, members) for kind, members in of_kinds if members]
    summaries = printed([*summaries, summary("all", rows)])
    if not asked.dry:
        record(
            "cluster_networks_gap",
            seeds=[SEED],
            named=named,
            summaries=summaries,
            networks=rows,
        )


if __name__ == "__main__":
    main()
