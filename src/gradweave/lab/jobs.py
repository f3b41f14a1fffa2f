"""Measures several collectives at once on an emulated network: plans of demands, and gloo's own.

Contenders are all connected, and run in turn: what else the machine does then meets all alike.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence

import numpy as np

from gradweave.errors import OptionError, RunError
from gradweave.lab.forwarding import multipath
from gradweave.lab.measure import (
    ELEMENT_BYTES,
    Experiment,
    Laboratory,
    Run,
    check_time,
    laboratory,
)
from gradweave.lab.network import EmulatedNetwork
from gradweave.lab.work import OWN_CALLS, GroupCall, own_task
from gradweave.schedule.demand import Demand
from gradweave.schedule.jobs import Job, demand_of
from gradweave.schedule.schedule import Schedule
from gradweave.simulate.runtime import Runtime, runtime_of
from gradweave.topology.topology import Topology

GLOO = "gloo"
"""What gloo's own collectives are called."""


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredJobs(Experiment):
    """What was emulated, and what was measured on it."""

    load: list[float]
    """Before each repetition: how many processes of the machine were running or waiting to, on
    average over the last minute."""
    others_s: dict[str, list[float]]
    """By name, seconds of each run of other programs."""


def shared_runtime() -> Runtime:
    """The profile of gloo on this machine, whose cores all servers of a lab share."""
    return dataclasses.replace(runtime_of(GLOO), processors=len(os.sched_getaffinity(0)))


def measure_jobs(
    topology: Topology,
    jobs: Sequence[Job],
    plans: Sequence[tuple[str, Schedule]],
    *,
    own: bool = True,
    others: Sequence[tuple[str, Callable[[EmulatedNetwork], float]]] = (),
    repetitions: int = 5,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> MeasuredJobs:
    """Runs plans of jobs and gloo's own collectives on an emulated network of real processes.

    gloo's own are called at once, as many as there are jobs, and then waited for. Their messages
    take routes of fewest links, in each repetition others of those that are as short, as
    equal-cost multipath has them. Plans have the routes that they say.

    Args:
        topology: the network, with the bandwidths to emulate.
        jobs: whose blocks are of whole elements of float32.
        plans: names and schedules of these jobs.
        own: whether gloo's own are measured, too.
        others: names, and functions that have other programs run once on the network, whose
            messages are routed as those of gloo's own; they return seconds.
        repetitions: timed runs of each contender, after one that is not; all take turns.
        seed: of multipath in the first repetition; the next one has the next.
        progress: called with the step under way.

    Raises:
        OptionError: not root, or the kernel lacks what is needed; what it emulates is far from
            what is asked for; a run would take longer than processes are waited for; blocks that
            are not of whole elements, or a plan for other jobs.
        LostServerError: a server's process died.
        RunError: a process failed, or a result was wrong.
    """
    demand = demand_of(topology, jobs)
    _check(demand, jobs, plans, own, repetitions)
    check_time(topology, plans, [demand.total_bytes], repetitions)
    with laboratory(topology, progress) as lab:
        costs = [lab.message_cost_s(plan, progress) for _, plan in plans]
        contenders: list[tuple[str, Schedule | None]] = list(plans)
        contenders += [(GLOO, None)] if own else []
        for name, plan in contenders:
            progress(f"{name}: connecting")
            calls = None if plan is not None else _own(lab, demand, jobs)
            if not lab.connect(plan, demand.total_bytes // ELEMENT_BYTES, calls):
                raise RunError(f"{name}: a server ended with a wrong result")
        runs: list[list[Run]] = [[] for _ in contenders]
        seconds: list[list[float]] = [[] for _ in others]
        load = []
        for number in range(repetitions):
            load.append(os.getloadavg()[0])
            hashed = multipath(topology, seed + number)
            for place, (name, plan) in enumerate(contenders):
                progress(f"{name}: run {number + 1} of {repetitions}")
                lab.route(place, hashed if plan is None else None)
                runs[place].append(lab.run(place))
            for (name, run), took in zip(others, seconds, strict=True):
                progress(f"{name}: run {number + 1} of {repetitions}")
                lab.route(0, hashed)
                took.append(run(lab.network))
        lab.finish()
        measured = [
            lab.measurement(name, plan, demand.total_bytes // ELEMENT_BYTES, runs[place], cost_s)
            for place, ((name, plan), cost_s) in enumerate(
                zip(contenders, [*costs, *[None] * own], strict=True)
            )
        ]
        by_name = {name: took for (name, _), took in zip(others, seconds, strict=True)}
        return MeasuredJobs(lab.emulation, measured, load, by_name)


def _own(lab: Laboratory, demand: Demand, jobs: Sequence[Job]) -> dict:
    """What servers are told of gloo's own."""
    topology = lab.network.topology
    servers, rank = topology.servers.tolist(), topology.rank
    calls = []
    for job in jobs:
        members = servers if job.servers is None else np.asarray(job.servers).tolist()
        ranks = tuple(rank[members].tolist())
        calls.append(
            GroupCall(job.collective, ranks, None if job.root is None else int(rank[job.root]))
        )
    return own_task(demand, servers, calls)


def _check(
    demand: Demand,
    jobs: Sequence[Job],
    plans: Sequence[tuple[str, Schedule]],
    own: bool,
    repetitions: int,
) -> None:
    if repetitions < 1:
        raise OptionError(f"repetitions: expected at least 1, got {repetitions}")
    if (demand.bytes % ELEMENT_BYTES).any():
        block = int((demand.bytes % ELEMENT_BYTES).argmax())
        raise OptionError(
            f"job {demand.job[block]}: expected blocks of whole elements of {ELEMENT_BYTES} bytes, "
            f"got one of {demand.bytes[block]:,} bytes"
        )
    for name, plan in plans:
        if plan.demanded.name != demand.name or plan.demanded.total_bytes != demand.total_bytes:
            raise OptionError(
                f"{name}: is a plan of {plan.demanded.name}, {plan.demanded.total_bytes:,} bytes; "
                f"expected {demand.name}, {demand.total_bytes:,} bytes"
            )
    for job in jobs if own else ():
        if job.collective not in OWN_CALLS:
            raise OptionError(
                f"{job.collective}: a lab knows gloo's own {', '.join(OWN_CALLS)} alone; measure "
                "plans without it"
            )
        if job.servers is not None and (np.diff(np.asarray(job.servers)) <= 0).any():
            raise OptionError(
                f"{job.collective}: expected servers in ascending order, as PyTorch has them in a "
                "group; measure plans without gloo's own"
            )
