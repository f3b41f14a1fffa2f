"""Would one plan of jobs serve a placement's groups better than one schedule for each group?

    taskset -c 0 python benchmarks/experiments/placement_groups.py [--resume]

`group_schedules` plans each group's all-reduce alone, on equal parts of the links that groups
share. Here the groups are also jobs of one plan, searched for as long as all groups together took
(at least `LEAST_S`), and each group has its transfers of that plan. Both are judged by the time of
all groups at once and by the predicted training step. Groups are consecutive servers (rows) or
every n-th (strided), with equal or different gradients. A network whose groups reach each other
only past servers of other groups has no such plan: these would have to relay.
"""

import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.record import record, show
from benchmarks.timing import timed
from benchmarks.unequal_networks import unequal_network
from benchmarks.unfinished import Unfinished
from gradweave.errors import OptionError
from gradweave.placement import Placement, Stage, Workload, group_schedules, step_time
from gradweave.placement.timeline.groups import GroupSchedule
from gradweave.placement.timeline.step import exchange_seconds
from gradweave.schedules import Job, Schedule
from gradweave.schedules.schedule import take_rows
from gradweave.topology import Topology
from gradweave.verifier import verify

NAME = "placement_groups"
LIMIT_S = 3.0
"""For each group, as in `group_schedules`."""
LEAST_S = 1.0
SIZE = 1e9
FAMILIES = (
    ("star:8", 2),
    ("torus:4x4", 4),
    ("hypercube:3", 2),
    ("mesh:3x4", 3),
    ("dgx1v", 2),
    ("a100:boxes=2", 2),
    ("a100:boxes=2", 4),
    ("leaf_spine:leaves=2,spines=2,servers_per_leaf=4,oversubscription=2", 2),
)
UNEQUAL = (18, 20, 21, 5, 97, 3, 7, 11)
SEED = 0


def cases() -> Iterator[tuple[Topology, str, Placement]]:
    networks = [(gw.topology.from_spec(spec), stages) for spec, stages in FAMILIES]
    networks += [(unequal_network(seed)[1], 2) for seed in UNEQUAL]
    for network, stages in networks:
        data = network.num_servers // stages
        ids = network.servers[: stages * data]
        layouts = {"rows": ids.reshape(stages, data), "strided": ids.reshape(data, stages).T}
        for layout, servers in layouts.items():
            for sizes in ("equal", "different"):
                each = [SIZE * (1 if sizes == "equal" else (s + 1) / stages) for s in range(stages)]
                work = Workload(tuple(Stage(0.05, 0.1, 1e7, size) for size in each))
                placed = Placement(network, work, servers, 0.0, 0.0, "all", {}, SEED)
                yield network, f"{layout}, {sizes}", placed


def of_job(plan: Schedule, job: int, members: np.ndarray, size: float) -> GroupSchedule:
    """A job's transfers in a plan, as an all-reduce on the links that join its nodes."""
    network, demand = plan.topology, plan.demanded
    mine = np.flatnonzero(demand.job[plan.block] == job)
    rows = np.flatnonzero(np.isin(plan.piece, mine))
    route, offsets = take_rows(plan.route_nodes, plan.route_offsets, rows)
    keep = np.isin(np.arange(network.num_nodes), np.concatenate([members, route]))
    new, nodes = np.cumsum(keep) - 1, np.flatnonzero(keep).astype(np.int32)
    links = np.flatnonzero(keep[network.source] & keep[network.target])
    alone = Topology(
        name="a group",
        is_server=np.isin(nodes, members),
        source=new[network.source[links]],
        target=new[network.target[links]],
        bandwidth_bytes_per_s=network.bandwidth_bytes_per_s[links],
        latency_s=network.latency_s[links],
        capacity=network.capacity[links],
        overhead_s=network.overhead_s[links],
    )
    schedule = Schedule(
        topology=alone,
        collective="all_reduce",
        root=new[plan.root[mine]],
        round=np.unique(plan.round[rows], return_inverse=True)[1],
        piece=np.searchsorted(mine, plan.piece[rows]),
        source=new[plan.source[rows]],
        target=new[plan.target[rows]],
        op=plan.op[rows],
        route_nodes=new[route],
        route_offsets=offsets,
        shares=plan.weights[mine],
    )
    verify(schedule).raise_if_invalid()
    return GroupSchedule(schedule, nodes, size, gw.simulator.seconds(schedule, size, "events"), 0.0)


def row_of(network: Topology, groups: str, placed: Placement) -> dict[str, Any]:
    sizes = [stage.gradient_bytes for stage in placed.workload.stages]
    spent_s, apart = timed(
        lambda: group_schedules(network, placed.servers, sizes, seed=SEED, time_limit=LIMIT_S),
        time.process_time,
    )
    row: dict[str, Any] = {"network": network.name, "groups": groups, "apart_s": spent_s}
    members = [np.sort(one) for one in placed.servers]
    jobs = [Job("all_reduce", int(n), one.tolist()) for n, one in zip(sizes, members, strict=True)]
    try:
        found = gw.solve(network, jobs=jobs, seed=SEED, time_limit=max(spent_s, LEAST_S))
    except OptionError:
        return row | {"jobs": False}
    each = enumerate(zip(members, sizes, strict=True))
    together = [of_job(found.schedule, job, *one) for job, one in each]
    row |= {"jobs": True, "jobs_s": found.wall_s, "strategy": found.scheduler.name}
    for name, groups_of in (("apart", apart), ("jobs", together)):
        row[f"{name}_exchange_s"] = exchange_seconds(groups_of, placed)
        row[f"{name}_step_s"] = step_time(placed, groups=groups_of).seconds
    return row


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How much longer the jobs' transfers take, over the cases that have a plan of jobs."""
    planned = [row for row in rows if row["jobs"]]
    result: dict[str, Any] = {"cases": len(rows), "with_a_plan_of_jobs": len(planned)}
    for what in ("exchange", "step"):
        more = [row[f"jobs_{what}_s"] / row[f"apart_{what}_s"] - 1 for row in planned]
        result[what] = {
            "mean": statistics.mean(more),
            "best": min(more),
            "worst": max(more),
            "faster": sum(one < -1e-3 for one in more),
            "slower": sum(one > 1e-3 for one in more),
        }
    return result


def main() -> None:
    asked = parser_of(__doc__, resumes=True).parse_args()
    kept = Unfinished(NAME, resume=asked.resume)
    everything = list(cases())
    row_of(*everything[0])  # compiles
    time.monotonic = time.process_time  # of which time limits are, from here on
    for case in everything[len(kept.rows()) :]:
        row = row_of(*case)
        kept.add(row)
        show(row)
    rows = kept.rows()
    found = summary(rows)
    show(found)
    record(NAME, seeds=[SEED], limit_s=LIMIT_S, summary=found, rows=rows)
    kept.end()


if __name__ == "__main__":
    main()
