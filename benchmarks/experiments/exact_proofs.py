"""Proofs of the exact scheduler and their seconds: the fewest rounds of all-gathers.

    python benchmarks/experiments/exact_proofs.py

One worker of CP-SAT, 120 seconds per proof.
"""

from typing import Any

import gradweave as gw
from benchmarks.experiment import Rows, run
from gradweave.schedulers.exact.exact import Exact
from gradweave.topology import Topology, from_spec

TIME_LIMIT_S = 120.0
SEED = 0

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


def network(spec: str) -> Topology:
    return gw.topology.gpu_boxes("dgx1v") if spec == "dgx1v" else from_spec(spec)


def fewest(topology: Topology, **options: Any) -> dict[str, Any]:
    scheduler = Exact(**options)
    proof = scheduler.prove(topology, "all_gather", seed=SEED, time_limit=TIME_LIMIT_S)
    return {
        "trees": proof.trees,
        "pieces_per_server": scheduler.pieces_per_server,
        "kind": proof.kind,
        "rounds": proof.rounds,
        "impossible_below": proof.impossible_below,
        "because": proof.because,
        "wall_s": round(proof.wall_s, 2),
    }


if __name__ == "__main__":
    cases = [{"topology": network(spec)} | options for spec, options in FEWEST]
    run(
        __doc__,
        Rows(cases, fewest, "fewest"),
        seeds=[SEED],
        time_limit_s=TIME_LIMIT_S,
        collective="all_gather",
    )
