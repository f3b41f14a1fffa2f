"""Proofs of the exact scheduler and their seconds: known optima, and 60 random networks.

    python benchmarks/experiments/exact_proofs.py

One worker of CP-SAT, 120 seconds per proof. ``asked`` is the number of rounds to refute.
"""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from command_line import parser_of
from record import record
from timing import timed

import gradweave as gw
from gradweave.schedulers.exact.exact import Exact
from gradweave.schedulers.exact.model import Effort, GatherModel
from gradweave.schedulers.exact.trees import Choice
from gradweave.topology import Topology, from_spec

TIME_LIMIT_S = 120.0
SEED = 0
RANDOM_NETWORKS = 60

FEWEST: list[tuple[str, dict[str, Any]]] = [
    *((spec, {}) for spec in ("mesh:3x3", "mesh:4x4", "mesh:5x5", "ring:8")),
    *((spec, {}) for spec in ("torus:3x3", "torus:4x4", "torus:5x5", "torus:4x4x4")),
    *((f"hypercube:{d}", {}) for d in (3, 4, 5)),
    *(("dgx1v", {"pieces_per_server": c}) for c in (1, 2, 6)),
    *((f"bcube:n={n},k=1", {"trees": trees}) for trees in ("free", "fixed") for n in (3, 4, 5)),
    *((f"dcell:n={n},k=1", {"trees": trees}) for trees in ("free", "fixed") for n in (3, 4, 5, 6)),
    *(
        (f"jellyfish:reference=J{size},seed=0", {"trees": trees})
        for trees in ("free", "fixed", "shortest")
        for size in (10, 15, 20)
    ),
    *((f"bcube:n={n},k=1", {"trees": "shortest"}) for n in (3, 4, 5)),
    *((f"dcell:n={n},k=1", {"trees": "shortest"}) for n in (3, 4, 5)),
]
IMPOSSIBLE = [
    ("mesh:3x3", "free", 3),
    ("mesh:4x4", "free", 7),
    ("ring:8", "free", 3),
    ("hypercube:3", "free", 2),
    ("dgx1v", "free", 1),
    ("bcube:n=3,k=1", "free", 3),
    ("bcube:n=4,k=1", "free", 7),
    ("bcube:n=3,k=1", "fixed", 5),
    ("dcell:n=4,k=1", "shortest", 11),
]
"""Refuted by CP-SAT alone, although the lower bound implies most of them."""


def network(spec: str) -> Topology:
    return gw.topology.dgx1v() if spec == "dgx1v" else from_spec(spec)


def fewest(topology: Topology, options: dict[str, Any]) -> dict[str, Any]:
    scheduler = Exact(**options)
    proof = scheduler.prove(topology, "all_gather", seed=SEED, time_limit=TIME_LIMIT_S)
    return {
        "topology": topology.name,
        "trees": proof.trees,
        "pieces_per_server": scheduler.pieces_per_server,
        "kind": proof.kind,
        "rounds": proof.rounds,
        "impossible_below": proof.impossible_below,
        "because": proof.because,
        "wall_s": round(proof.wall_s, 2),
    }


def impossible(spec: str, trees: Any, rounds: int) -> dict[str, Any]:
    topology = network(spec)

    def solve() -> Any:
        model = GatherModel(Choice.of(topology, topology.servers, trees), rounds)
        return model.solve(Effort(SEED, 1, 1e9, TIME_LIMIT_S))

    wall_s, answer = timed(solve)
    assert not isinstance(answer, list)
    return {
        "topology": topology.name,
        "trees": trees,
        "asked": rounds,
        "kind": "unknown" if answer is None else "infeasible",
        "wall_s": round(wall_s, 2),
    }


def random_network(seed: int) -> Topology:
    """4 to 10 servers and up to 3 switches: a random tree, more links, capacities 1 and 2."""
    rng = np.random.default_rng(seed)
    servers, switches = int(rng.integers(4, 11)), int(rng.integers(0, 4))
    nodes = servers + switches
    order = rng.permutation(nodes)
    ends = [(order[k], order[rng.integers(0, k)]) for k in range(1, nodes)]
    ends += [rng.choice(nodes, 2, replace=False) for _ in range(int(rng.integers(0, nodes)))]
    links = sorted({(min(int(a), int(b)), max(int(a), int(b))) for a, b in ends})
    capacity = rng.integers(1, 3, len(links))
    return Topology.from_links(
        f"random {seed}", servers=servers, switches=switches, links=links, capacity=capacity
    )


def main() -> None:
    parser_of(__doc__).parse_args()
    rows = []
    for spec, options in FEWEST:
        rows.append(fewest(network(spec), options))
        print(rows[-1], flush=True)
    refuted = []
    for question in IMPOSSIBLE:
        refuted.append(impossible(*question))
        print(refuted[-1], flush=True)
    on_random = [fewest(random_network(seed), {}) for seed in range(RANDOM_NETWORKS)]
    record(
        "exact_proofs",
        seeds=[SEED],
        time_limit_s=TIME_LIMIT_S,
        collective="all_gather",
        fewest=rows,
        impossible_by_cp_sat_alone=refuted,
        random_networks={
            "networks": len(on_random),
            "kinds": Counter(row["kind"] for row in on_random),
            "above_the_lower_bound": sum("CP-SAT" in row["because"] for row in on_random),
            "wall_s": round(sum(row["wall_s"] for row in on_random), 2),
        },
    )


if __name__ == "__main__":
    main()
