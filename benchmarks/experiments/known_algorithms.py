"""What people know beside plans, by size: NCCL's ring and tree, halving–doubling, Bine trees.

    python benchmarks/experiments/known_algorithms.py

Seven networks, 1 KiB to 1 GiB, times by the event model with the links' own costs. NCCL's ring has
a channel for each server of a box, and enters each box at another one; its tree is a chain inside
a box and two binary trees between boxes, on as many channels. Each algorithm may be cut into parts
and its stages may overlap, as `gradweave.solve` does it; `solve` itself has 10 s for each size.
"""

import itertools
from pathlib import Path
from typing import Any

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.pictures import Picture
from gradweave.report import compare_seconds
from gradweave.report.chart import sweep_chart
from gradweave.report.comparison import Case
from gradweave.schedulers.spec import from_spec
from gradweave.topology.groups import members_of_groups

NETWORKS = {
    "a100:boxes=2": "two A100 boxes",
    "a100:boxes=4": "four A100 boxes",
    "leaf-spine:leaves=4,spines=2,servers_per_leaf=4,oversubscription=2": "leaf–spine 4×2×4, 2:1",
    "star:8": "star of 8",
    "torus:4x4": "torus 4×4",
    "bcube:n=4,k=1": "BCube(4,1)",
    "dragonfly:groups=5,routers_per_group=4,servers_per_router=1,global_links=1": "dragonfly of 20",
}
SIZES = tuple(1 << shift for shift in range(10, 31, 4))
TIME_LIMIT_S = 10.0
SEED = 0


def algorithms(network: gw.Topology) -> dict[str, str | None]:
    """By name their specifications; None for all that `solve` tries."""
    channels = min(members_of_groups(network).shape[1], 16)
    ring = f"ring:order=boxes,cycles={channels}" if channels > 1 else "ring"
    return {
        "NCCL's ring": ring,
        "NCCL's tree": "double_tree:chains=true",
        "halving–doubling": "halving_doubling",
        "Bine tree": "binomial:partners=bine",
        "solve": None,
    }


def measure(topology: str, gradient_bytes: int) -> list[dict[str, Any]]:
    """A row for each algorithm."""
    case = Case(NETWORKS[topology], topology)
    rows = []
    for name, one in algorithms(case.network(0)).items():
        scheduler = None if one is None else from_spec(one)
        (row,) = compare_seconds([case], [scheduler], gradient_bytes, time_limit=TIME_LIMIT_S)
        rows.append(row.as_object() | {"spec": row.scheduler, "scheduler": name})
    return rows


def winners(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Which algorithm of those known is best at each size, and how much solve's schedule gains."""
    made = []
    for spec, size in itertools.product(NETWORKS, SIZES):
        here = {
            row["scheduler"]: row["seconds_mean"]
            for row in rows
            if (row["topology"], row["gradient_bytes"]) == (spec, size)
        }
        ours = here.pop("solve", None)
        known = {name: taken for name, taken in here.items() if taken is not None}
        if ours is None or not known:
            continue
        best = min(known, key=lambda name: known[name])
        made.append(
            {
                "network": NETWORKS[spec],
                "gradient_bytes": size,
                "best_known": best,
                "best_known_ms": 1e3 * known[best],
                "solve_ms": 1e3 * ours,
                "times_as_fast": known[best] / ours,
            }
        )
    return made


def draw(result: dict[str, Any], path: Path) -> None:
    sweep_chart(result["rows"], path)


if __name__ == "__main__":
    run(
        __doc__,
        Rows(grid(topology=NETWORKS, gradient_bytes=SIZES), measure),
        finish=lambda rows: {"winners": winners(rows)},
        picture=Picture("known_algorithms", draw, parts=("rows",)),
        seeds=[SEED],
        time_limit_s=TIME_LIMIT_S,
    )
