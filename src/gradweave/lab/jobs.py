"""Measures several concurrent collectives on an emulated network: plans of demands, and gloo's own.

All contenders are connected, and run alternately, so that other load on the machine affects all of
them equally.
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
    starting_at_once,
)
from gradweave.lab.network import EmulatedNetwork
from gradweave.lab.work import OWN_CALLS, GroupCall, own_task
from gradweave.schedules.demand import Demand
from gradweave.schedules.jobs import Job, demand_of
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.runtime import Runtime, runtime_of
from gradweave.topology.topology import Topology

GLOO = "gloo"
"""The name of gloo's own collectives."""


@dataclasses.dataclass(frozen=True, eq=False)
class MeasuredJobs(Experiment):
    """The emulation, and the measurements on it."""

    load: list[float]
    """Load of the machine before each repetition: running or waiting processes, averaged over the
    last minute."""
    others_s: dict[str, list[float]]
    """Seconds of each run of other programs, by name."""


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

    gloo's collectives of all jobs are started together and then awaited. Their messages take routes
    with the fewest links, drawn again in each repetition as by equal-cost multipath. Plans use
    their planned routes.

    Args:
        topology: the network, with the bandwidths to emulate.
        jobs: the jobs; their blocks must have whole elements of float32.
        plans: names and schedules of these jobs.
        own: whether to measure gloo's own collectives as well.
        others: names, and functions that run other programs once on the network and return
            seconds; their messages are routed like those of gloo's own collectives.
        repetitions: timed runs of each contender, after one untimed run; contenders take turns.
        seed: seed of multipath in the first repetition; it increases with each repetition.
        progress: called with the current step.

    Raises:
        OptionError: the caller is not root, the kernel lacks a feature, or the emulation is far
            from the request; a run would time out; blocks are not whole elements, or a plan is for
            other jobs.
        LostServerError: a server's process died.
        RunError: a process failed, or a result was wrong.
    """
    demand = demand_of(topology, jobs)
    _check(demand, jobs, plans, own, repetitions)
    plans = [(name, starting_at_once(name, plan) or plan) for name, plan in plans]
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
    """The task of the servers for gloo's own collectives."""
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
                f"{job.collective}: a lab knows only gloo's own {', '.join(OWN_CALLS)}; measure "
                "plans without it"
            )
        if job.servers is not None and (np.diff(np.asarray(job.servers)) <= 0).any():
            raise OptionError(
                f"{job.collective}: expected servers in ascending order, like ranks in a PyTorch "
                "group; measure plans without gloo's own"
            )
