"""Several jobs planned together, beside each planned alone; broadcasts and reduces of any size.

    python benchmarks/experiments/jobs_together.py [--resume]

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
from benchmarks.command_line import parser_of
from benchmarks.record import record, show
from benchmarks.unfinished import Unfinished
from gradweave.schedulers import Apart, Solution, solve_demand
from gradweave.schedulers.solving.portfolio import TEXTBOOK
from gradweave.schedules import Job, mesh_jobs
from gradweave.topology import Topology

NAME = "jobs_together"
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


def mesh(spec: str, kind: str, size: int) -> dict[str, Any]:
    """One mesh, planned together and each group alone."""
    topology = gw.topology.from_spec(spec)
    jobs = jobs_of(topology, MESHES[spec], kind, size)
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


def rooted(spec: str, name: str, size: int) -> dict[str, Any]:
    """One broadcast or reduce, and the best of the textbook's."""
    topology = gw.topology.from_spec(spec)
    job = Job(name, size, root=int(topology.servers[0]))
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
    *(("mesh", spec, kind, size) for size in MESH_BYTES for spec in MESHES for kind in KINDS),
    *(
        ("rooted", spec, name, size)
        for name in ("broadcast", "reduce")
        for spec in ROOTED_ON
        for size in ROOTED_BYTES
    ),
]


def summary(rows: Sequence[dict[str, Any]], *gaps: str) -> dict[str, float]:
    """Means and worst of gaps."""
    figures = {f"mean_{gap}": statistics.mean(row[gap] for row in rows) for gap in gaps}
    return figures | {f"worst_{gap}": max(row[gap] for row in rows) for gap in gaps}


def main() -> None:
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument("--part", choices=("mesh", "rooted"), help="measure only these")
    asked = parser.parse_args()
    kept = Unfinished(NAME, resume=asked.resume)
    keys = ("part", "network", "kind", "size")
    done = {tuple(row[key] for key in keys) for row in kept.rows()}
    warm = gw.topology.from_spec("star:4")
    for job in (Job("all_to_all", 10**6), Job("broadcast", 10**6, root=0), Job("all_reduce", 999)):
        gw.solve(warm, jobs=[job, job])  # compiles
    time.monotonic = time.process_time  # of which time limits are, from here on
    for case in CASES:
        if case in done or case[0] != (asked.part or case[0]):
            continue
        part, spec, kind, size = case
        figures = mesh(spec, kind, size) if part == "mesh" else rooted(spec, kind, size)
        kept.add(dict(zip(keys, case, strict=True)) | figures)
        show(kept.rows()[-1])
    if asked.part:
        return
    rows = sorted(kept.rows(), key=lambda row: CASES.index(tuple(row[key] for key in keys)))
    meshes = [row for row in rows if row["part"] == "mesh"]
    trees = [row for row in rows if row["part"] == "rooted"]
    record(
        NAME,
        seeds=[SEED],
        meshes_summary=summary(meshes, "gap", "alone_gap", "alone_over"),
        tight_summary=summary([row for row in trees if row["tight"]], "gap"),
        meshes=meshes,
        rooted=trees,
    )
    kept.end()


if __name__ == "__main__":
    main()
