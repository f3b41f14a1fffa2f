"""Two to four jobs of different sizes by each objective: plans, bounds, and what else one might do.

    taskset -c 0 python benchmarks/experiments/job_objectives.py

Boxes, a leaf–spine and a torus as in `jobs_together.py`, of 16 servers each, whose rows and columns
are a mesh. Two jobs: an all-reduce of 100 MB and an all-to-all of 25 MB among all servers. Three:
also an all-gather of 50 MB among the first half of the columns. Four: all-reduces among a quarter
of the columns each, of 25, 50, 100 and 200 MB. Weights are 1, 2, 3 and 4. Two and four are ready at
once; of three, and again of four, each is ready later than the one before by a quarter of the least
makespan.

`gradweave.solve` makes each objective small in 4 s at most. Beside it: what the plan for the
makespan comes to by that objective; and the jobs one after the other, those that are ready in the
order of what they take for their weight, each as it is planned alone in half a second at most.

Event model, defaults of the families; seconds are of processor time, after compilation.
"""

import statistics
import time
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.experiment import Rows, run
from gradweave.schedulers import Solution
from gradweave.schedules import Job
from gradweave.schedules.objective import JOB_OBJECTIVES
from gradweave.topology import Topology

NAME = "job_objectives"
SEED = 0
LIMIT_S, ALONE_S = 4.0, 0.5
MESHES = {
    "a100:boxes=2": (2, 8),
    "leaf_spine:leaves=4,spines=2,servers_per_leaf=4,oversubscription=4": (4, 4),
    "torus:4x4": (4, 4),
}
SIZE = 10**8
LATER = 0.25
CASES = [
    {"network": spec, "count": count, "late": late}
    for spec in MESHES
    for count, late in ((2, False), (3, True), (4, False), (4, True))
]


def jobs_of(topology: Topology, shape: tuple[int, int], count: int, late_s: float) -> list[Job]:
    """So many jobs, each ready later than the one before."""
    servers = topology.servers.reshape(shape)
    everyone, half = topology.servers.tolist(), servers[:, : shape[1] // 2].ravel().tolist()
    groups = np.split(servers, 4, axis=1)
    if count == 4:
        asked = [
            ("all_reduce", SIZE * 2**k // 4, one.ravel().tolist()) for k, one in enumerate(groups)
        ]
    else:
        asked = [("all_reduce", SIZE, everyone), ("all_to_all", SIZE // 4, everyone)]
        asked += [("all_gather", SIZE // 2, half)] * (count - 2)
    return [
        Job(name, size, group, ready_at=k * late_s, weight=k + 1)
        for k, (name, size, group) in enumerate(asked)
    ]


def in_turn(jobs: list[Job], alone: list[float], weights: np.ndarray) -> np.ndarray:
    """[jobs] when each ends, one after the other: of those ready, the shortest for its weight."""
    ends, now, left = np.zeros(len(jobs)), 0.0, list(range(len(jobs)))
    while left:
        now = max(now, min(jobs[job].ready_at for job in left))
        here = [job for job in left if jobs[job].ready_at <= now]
        first = min(here, key=lambda job: alone[job] / weights[job])
        now += alone[first]
        ends[first] = now
        left.remove(first)
    return ends


def solved(topology: Topology, jobs: list[Job], objective: str) -> tuple[Solution, float]:
    """The plan, and the processor time that it took."""
    since = time.process_time()
    found = gw.solve(topology, jobs=jobs, objective=objective, seed=SEED, time_limit=LIMIT_S)  # pyright: ignore
    return found, time.process_time() - since


def warm() -> None:
    star = gw.topology.from_spec("star:4")
    for objective in JOB_OBJECTIVES:
        solved(star, [Job("all_to_all", 10**6), Job("all_reduce", 999)], objective)


def measure(network: str, count: int, late: bool) -> list[dict[str, Any]]:
    """Objectives of some jobs."""
    topology, shape = gw.topology.from_spec(network), MESHES[network]
    jobs = jobs_of(topology, shape, count, 0.0)
    if late:
        least = gw.bounds.demand_bound(topology, gw.schedules.demand_of(topology, jobs)).seconds
        jobs = jobs_of(topology, shape, count, LATER * least)
    one, weight = np.ones(count), np.array([job.weight for job in jobs])
    alone = [
        gw.solve(topology, jobs=job, seed=SEED, time_limit=ALONE_S).seconds - job.ready_at
        for job in jobs
    ]
    rows, makespan = [], None
    for objective in JOB_OBJECTIVES:  # the makespan first
        found, took = solved(topology, jobs, objective)
        makespan, judge = makespan or found, found.judge
        turns = in_turn(jobs, alone, weight if objective == "weighted" else one)
        rows.append(
            {
                "objective": objective,
                "value": found.value,
                "least": found.least,
                "gap": found.gap,
                "winner": found.scheduler.name,
                "ends_ms": [1e3 * end for end in found.job_seconds.tolist()],
                "makespan_gap": judge.value(makespan.job_seconds) / found.least - 1,
                "in_turn_gap": judge.value(turns) / found.least - 1,
                "seconds": took,
            }
        )
    return rows


def summary(objective: str, rows: list[dict[str, Any]]) -> dict[str, float]:
    return {
        f"{what}_{gap}": statistic(row[gap] for row in rows if row["objective"] == objective)
        for gap in ("gap", "makespan_gap", "in_turn_gap")
        for what, statistic in (("mean", statistics.mean), ("worst", max))
    }


if __name__ == "__main__":
    run(
        __doc__,
        Rows(CASES, measure),
        warm=warm,
        processor_time=True,
        finish=lambda rows: {"summary": {one: summary(one, rows) for one in JOB_OBJECTIVES}},
        seeds=[SEED],
    )
