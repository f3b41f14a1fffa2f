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
from benchmarks.experiment import Rows, grid, run
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


def networks() -> list[gw.Topology]:
    return [*map(gw.topology.from_spec, NETWORKS), *(cluster_network(seed)[1] for seed in SEEDS)]


def warm() -> None:
    for spec in ("ring:4", "mesh:2x3", "jellyfish:reference=J15"):
        network = gw.topology.from_spec(spec)
        gw.solve(network)
        gw.solve(network, schedulers="learned,merged,exact")
        gw.solve(network, objective="seconds", gradient_bytes=GRADIENT_BYTES)


def solve(network: gw.Topology, objective: Any, limit_s: float) -> tuple[float, gw.Solution]:
    size = GRADIENT_BYTES if objective == "seconds" else None
    options = {"objective": objective, "gradient_bytes": size, "time_limit": limit_s}
    return solved(network, clock.now, **options)


def measure(network: gw.Topology, objective: str) -> list[dict[str, Any]]:
    first_s, _ = solve(network, objective, 1e-3)
    rows = []
    for limit_s in LIMITS_S:
        seconds, solution = solve(network, objective, limit_s)
        over_s = max(0.0, seconds - limit_s)
        rows.append(
            {
                **figures(solution, "network", "servers"),
                "limit_s": limit_s,
                "seconds": seconds,
                "over_s": over_s,
                "kept": over_s <= max(SHARE * limit_s, LEAST_S),
                "first_s": first_s,
                **figures(solution, "rounds", "bound", "winner"),
                "last": gw.schedulers.to_spec(solution.attempts[-1].scheduler),
            }
        )
    return rows


if __name__ == "__main__":
    run(
        __doc__,
        Rows(lambda: grid(network=networks(), objective=("rounds", "seconds")), measure),
        warm=warm,
        seeds=list(SEEDS),
        gradient_bytes=GRADIENT_BYTES,
    )
