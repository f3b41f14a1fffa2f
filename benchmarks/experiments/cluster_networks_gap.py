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
from benchmarks.experiment import Rows, run
from benchmarks.solutions import figures, solved, spread

COUNT = 200
SEED = 0


def warm() -> None:
    for spec in ("ring:4", "mesh:2x3", "jellyfish:reference=J15"):
        gw.solve(spec)
        gw.solve(spec, schedulers="learned,merged,exact")


def measure(network: gw.Topology, **_: Any) -> dict[str, Any]:
    seconds, solution = solved(network, seed=SEED)
    names = ("network", "servers", "switches", "links", "rounds", "bound", "bound_kind", "gap")
    return figures(solution, *names, "winner") | {"seconds": seconds}


def summary(kind: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    optimal = sum(row["gap"] == 0 for row in rows)
    return {"kind": kind, "networks": len(rows), "proved_optimal": optimal, **spread(rows)}


def summaries(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    of_kinds = [(kind, [row for row in rows if row["kind"] == kind]) for kind in KINDS]
    return [*(summary(kind, members) for kind, members in of_kinds), summary("all", rows)]


if __name__ == "__main__":
    named = [
        {"network": network, "least_rounds_of_a_stage": known}
        for network, known in named_networks().values()
    ]
    drawn = [
        {"kind": kind, "seed": seed, "network": network}
        for seed, (kind, network) in enumerate(map(cluster_network, range(COUNT)))
    ]
    run(
        __doc__,
        Rows(named, measure, "named"),
        Rows(drawn, measure, "networks"),
        warm=warm,
        finish=lambda _, rows: {"summaries": summaries(rows)},
        seeds=[SEED],
    )
