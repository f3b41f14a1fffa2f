"""Several jobs planned together, beside each planned alone; broadcasts and reduces of any size.

    python benchmarks/experiments/jobs_together.py

Meshes: servers in the order of their ids are rows of tensor or expert parallelism, columns of data
parallelism. Each job moves 100 MB or 1 GB: tp all_reduce, or all_gather and reduce_scatter; dp
all_reduce; ep all_to_all. `gradweave.solve` plans all groups together in 10 s at most. Beside it
the strategy `apart`: each group planned as if it had the network alone, in about 1 s at most, then
all played at once; `solve` tries it last, in the time that is left.

Broadcast and reduce: the root is the first server; `solve` in 3 s at most, and beside it the best
of the textbook's strategies. A bound counts as tight where the bytes alone take a thousand times
as long as the farthest server is away.

Event model, defaults of the families unless named; seconds are of processor time, after
compilation.
"""

import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from gradweave.schedulers import Apart, Solution, solve_demand
from gradweave.schedulers.solving.portfolio import TEXTBOOK
from gradweave.schedules import Job, mesh_jobs
from gradweave.topology import Topology

SEED = 0
TOGETHER_S, ALONE_S, ROOTED_S = 10.0, 1.0, 3.0
TIGHT = 1000

MESHES = {
    "a100:boxes=4": (4, 8),
    "a100:boxes=4,bandwidth=450GB/s,nic=50GB/s,rails=8": (4, 8),
    "leaf_spine:leaves=4,spines=2,servers_per_leaf=8,oversubscription=4": (4, 8),
    "torus:4x4": (4, 4),
    "torus:8x8": (8, 8),
}
"""Networks, the second with the bandwidths of H100's; rows and columns."""
KINDS = {
    "TP×DP": (("row", "all_reduce"), ("column", "all_reduce")),
    "DP×EP": (("column", "all_reduce"), ("row", "all_to_all")),
    "TP×DP×EP": (
        ("row", "all_gather"),
        ("row", "reduce_scatter"),
        ("column", "all_reduce"),
        ("column", "all_to_all"),
    ),
}
"""By name, what the groups along each axis do at once."""
MESH_BYTES = (10**8, 10**9)
ROOTED_ON = (
    "ring:8",
    "torus:4x4",
    "mesh:4x5",
    "hypercube:4",
    "dgx1v",
    "bcube:n=4,k=1",
    "jellyfish:reference=J15",
    "fat_tree:4",
    "leaf_spine:leaves=4,spines=2,servers_per_leaf=4,oversubscription=4",
    "a100:boxes=2",
)
ROOTED_BYTES = tuple(10**power for power in range(3, 10))


def jobs_of(topology: Topology, shape: tuple[int, int], kind: str, size: int) -> list[Job]:
    """All jobs of a mesh."""
    axes: dict[str, int] = dict(zip(("column", "row"), shape, strict=True))
    made = (mesh_jobs(topology, axes, {axis: (name, size)}) for axis, name in KINDS[kind])
    return [job for jobs in made for job in jobs]


def mesh(network: str, kind: str, size: int, **_: Any) -> dict[str, Any]:
    """One mesh, planned together and each group alone."""
    topology = gw.topology.from_spec(network)
    jobs = jobs_of(topology, MESHES[network], kind, size)
    since = time.process_time()
    found = gw.solve(topology, jobs=jobs, seed=SEED, time_limit=TOGETHER_S)
    took = time.process_time() - since
    limit = ALONE_S * len(jobs)
    apart = solve_demand(topology, jobs, strategies=[Apart()], seed=SEED, time_limit=limit)
    alone_s = min(apart.seconds, seconds_by(found, Apart.name) or math.inf)
    return {
        "jobs": len(jobs),
        "servers": topology.num_servers,
        "ms": 1e3 * found.seconds,
        "least_ms": 1e3 * found.bound.seconds,
        "gap": found.gap,
        "winner": found.scheduler.name,
        "seconds": took,
        "alone_ms": 1e3 * alone_s,
        "alone_gap": alone_s / found.bound.seconds - 1,
        "alone_over": alone_s / found.seconds - 1,
    }


def rooted(network: str, kind: str, size: int, **_: Any) -> dict[str, Any]:
    """One broadcast or reduce, and the best of the textbook's."""
    topology = gw.topology.from_spec(network)
    job = Job(kind, size, root=int(topology.servers[0]))
    since = time.process_time()
    found = gw.solve(topology, jobs=job, seed=SEED, time_limit=ROOTED_S)
    took = time.process_time() - since
    known = [seconds_by(found, one.name) for one in TEXTBOOK]
    textbook_s = min((one for one in known if one is not None), default=None)
    bytes_s = float(found.bound.lengths.time)
    return {
        "servers": topology.num_servers,
        "ms": 1e3 * found.seconds,
        "least_ms": 1e3 * found.bound.seconds,
        "gap": found.gap,
        "winner": found.scheduler.name,
        "seconds": took,
        "textbook_gap": None if textbook_s is None else textbook_s / found.bound.seconds - 1,
        "tight": bytes_s >= TIGHT * found.bound.seconds_by("distance"),
    }


def seconds_by(found: Solution, name: str) -> float | None:
    """Of the schedule of one strategy that was tried; None where it found none."""
    return next((one.seconds for one in found.attempts if one.scheduler.name == name), None)


CASES = [
    *grid(part=["mesh"], size=MESH_BYTES, network=MESHES, kind=KINDS),
    *grid(part=["rooted"], kind=("broadcast", "reduce"), network=ROOTED_ON, size=ROOTED_BYTES),
]


def warm() -> None:
    star = gw.topology.from_spec("star:4")
    for job in (Job("all_to_all", 10**6), Job("broadcast", 10**6, root=0), Job("all_reduce", 999)):
        gw.solve(star, jobs=[job, job])


def summary(rows: Sequence[dict[str, Any]], *gaps: str) -> dict[str, float]:
    """Means and worst of gaps."""
    figures = {f"mean_{gap}": statistics.mean(row[gap] for row in rows) for gap in gaps}
    return figures | {f"worst_{gap}": max(row[gap] for row in rows) for gap in gaps}


if __name__ == "__main__":
    run(
        __doc__,
        Rows([case for case in CASES if case["part"] == "mesh"], mesh, "meshes"),
        Rows([case for case in CASES if case["part"] == "rooted"], rooted, "rooted"),
        warm=warm,
        processor_time=True,
        finish=lambda meshes, trees: {
            "meshes_summary": summary(meshes, "gap", "alone_gap", "alone_over"),
            "tight_summary": summary([row for row in trees if row["tight"]], "gap"),
        },
        seeds=[SEED],
    )
