"""How well a time limit is kept: networks × limits × objectives.

    python benchmarks/experiments/time_limits.py

`gradweave.solve` with its defaults (all-reduce) and a time limit, on networks on which it would
take longer, or nearly. Seconds that pass, without those of compiling, for the whole call, with the
bound and the verifier; nothing else may run beside. A limit counts as kept within a tenth of it or
0.3 s, whichever is more; `first_s` is the time of the shortest possible search, which makes one
schedule and its bound.
"""

from typing import Any

import gradweave as gw
from benchmarks.cluster_networks import cluster_network
from benchmarks.command_line import parser_of
from benchmarks.record import record, show
from benchmarks.solutions import figures, solved
from gradweave.common import clock

NETWORKS = (
    "jellyfish:switches=100,degree=8,servers_per_switch=2",
    "jellyfish:switches=48,degree=6,servers_per_switch=1",
    "jellyfish:switches=256,degree=8,servers_per_switch=1",
    "fat_tree:8",
    "dragonfly:groups=9,routers_per_group=4,servers_per_router=2,global_links=2",
    "leaf_spine:leaves=6,spines=3,servers_per_leaf=6,oversubscription=3",
    "leaf_spine:leaves=16,spines=4,servers_per_leaf=8,oversubscription=2",
    "torus:16x16",
    "mesh:9x11",
    "a100:boxes=4",
)
SEEDS = (37, 87)
"""Of the generator of cluster networks."""
LIMITS_S = (1.0, 2.0, 5.0)
GRADIENT_BYTES = 64e6
SHARE, LEAST_S = 0.1, 0.3


def networks(only: list[str]) -> list[gw.Topology]:
    made = [gw.topology.from_spec(spec) for spec in only or NETWORKS]
    return made if only else made + [cluster_network(seed)[1] for seed in SEEDS]


def solve(network: gw.Topology, objective: Any, limit_s: float) -> tuple[float, gw.Solution]:
    size = GRADIENT_BYTES if objective == "seconds" else None
    options = {"objective": objective, "gradient_bytes": size, "time_limit": limit_s}
    return solved(network, clock.now, **options)


def measure(network: gw.Topology, objective: str, limits_s: list[float]) -> list[dict[str, Any]]:
    first_s, _ = solve(network, objective, 1e-3)
    rows = []
    for limit_s in limits_s:
        seconds, solution = solve(network, objective, limit_s)
        over_s = max(0.0, seconds - limit_s)
        rows.append(
            {
                **figures(solution, "network", "servers"),
                "objective": objective,
                "limit_s": limit_s,
                "seconds": seconds,
                "over_s": over_s,
                "kept": over_s <= max(SHARE * limit_s, LEAST_S),
                "first_s": first_s,
                **figures(solution, "rounds", "bound", "winner"),
                "last": gw.schedulers.to_spec(solution.attempts[-1].scheduler),
            }
        )
        show(rows[-1])
    return rows


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--network", action="append", help="only these", default=[])
    parser.add_argument("--objective", action="append", choices=gw.schedulers.OBJECTIVES)
    parser.add_argument("--limit", action="append", type=float)
    parser.add_argument("--dry", action="store_true", help="record nothing")
    asked = parser.parse_args()
    for warm in ("ring:4", "mesh:2x3", "jellyfish:reference=J15"):
        network = gw.topology.from_spec(warm)
        gw.solve(network)  # compiles
        gw.solve(network, schedulers="learned,merged,exact")
        gw.solve(network, objective="seconds", gradient_bytes=GRADIENT_BYTES)
    rows = []
    for network in networks(asked.network):
        for objective in asked.objective or ("rounds", "seconds"):
            rows += measure(network, objective, asked.limit or list(LIMITS_S))
    if not asked.dry:
        record("time_limits", seeds=list(SEEDS), gradient_bytes=GRADIENT_BYTES, rows=rows)


if __name__ == "__main__":
    main()
