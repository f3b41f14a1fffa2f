"""Detects collectives of several groups that would wait for each other forever.

A call returns once its server's part is complete, which may take all servers of its group. So if
two groups share two servers that call them in different orders, neither call ever returns; the
same holds for more groups in a cycle. A plan of several jobs also fixes an order on the links that
the jobs share: a transfer waits for the transfers planned before it, even those of a job that is
called later.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from gradweave.errors import DeadlockError, OptionError
from gradweave.execute.program import Program
from gradweave.schedules.demand import Demand
from gradweave.schedules.schedule import Schedule

_Call = tuple[int, int]
"""A job, and the number of its earlier calls."""


@dataclasses.dataclass(frozen=True)
class Wait:
    """The transfers of one job wait for those of another."""

    job: int
    waits_for: int
    server: int
    """Node id of a server where they wait."""
    called: bool
    """Whether the order comes from that server's calls; otherwise it comes from the plan."""


def plan_waits(schedule: Schedule) -> list[Wait]:
    """The waits between jobs of a plan, caused by the order of transfers on shared links.

    If there are no waits, the jobs may be carried out one by one, in any order.

    Args:
        schedule: a valid schedule of a demand.

    Raises:
        InvalidScheduleError: the verifier rejects the schedule.
        ScheduleError: the schedule has no demand.
    """
    demand, block = schedule.demanded, schedule.block
    assert block is not None
    found: dict[tuple[int, int], Wait] = {}
    for rank in range(schedule.topology.num_servers):
        program = Program.of(schedule, rank)
        job = demand.job[block[program.piece]]
        waiting = np.repeat(job, np.diff(program.after_offsets))
        awaited = job[program.after]
        for pair in np.unique(np.stack([waiting, awaited]), axis=1).T.tolist():
            if pair[0] != pair[1] and tuple(pair) not in found:
                found[pair[0], pair[1]] = Wait(pair[0], pair[1], program.server, False)
    return list(found.values())


def check_calls(
    demand: Demand,
    calls: Mapping[int, Sequence[int]],
    plan: Sequence[Wait] = (),
) -> None:
    """Refuses calls that may wait for each other forever.

    Args:
        demand: the demand with the jobs.
        calls: for each server, by node id, the jobs that it calls in order. Each call is made when
            the previous call has returned. All servers of a job must call it equally often.
        plan: the waits of a plan of all jobs (`plan_waits`); empty if each job has a separate plan.

    Raises:
        DeadlockError: the calls form a cycle; the message names it.
        OptionError: a job does not exist, or its servers do not call it equally often.

    >>> import gradweave as gw
    >>> pair = gw.schedules.Demand.together([gw.schedules.collective("all_reduce", [0, 1], 8)] * 2)
    >>> check_calls(pair, {0: [0, 1], 1: [0, 1]})
    >>> check_calls(pair, {0: [0, 1], 1: [1, 0]})
    Traceback (most recent call last):
    gradweave.errors.DeadlockError: calls wait for each other forever: server 0 calls all_reduce ...
    """
    times = _times_called(demand, calls)
    waits: dict[_Call, list[tuple[_Call, Wait]]] = {}
    for server, jobs in calls.items():
        count = dict.fromkeys(range(len(demand.jobs)), -1)
        made: list[_Call] = []
        for job in jobs:
            count[job] += 1
            made.append((job, count[job]))
        for before, after in itertools.pairwise(made):
            wait = Wait(after[0], before[0], server, True)
            waits.setdefault(after, []).append((before, wait))
    for wait in plan:
        for time in range(min(times[wait.job], times[wait.waits_for])):
            waits.setdefault((wait.job, time), []).append(((wait.waits_for, time), wait))
    cycle = _cycle(waits)
    if cycle is not None:
        said = ", ".join(_said(demand, wait) for wait in cycle)
        raise DeadlockError(f"calls wait for each other forever: {said}")


def _times_called(demand: Demand, calls: Mapping[int, Sequence[int]]) -> list[int]:
    """How often each job is called, which must be the same at all of its servers."""
    for server, jobs in calls.items():
        for job in jobs:
            if not 0 <= job < len(demand.jobs):
                raise OptionError(
                    f"calls: server {server}: expected jobs 0 to {len(demand.jobs) - 1}, got {job}"
                )
    found = []
    for job, name in enumerate(demand.jobs):
        times = {
            server: list(calls.get(server, ())).count(job)
            for server in demand.servers_of(job).tolist()
        }
        if len(set(times.values())) > 1:
            fewest, most = min(times, key=times.__getitem__), max(times, key=times.__getitem__)
            raise OptionError(
                f"calls: {name} (job {job}): server {most} calls it {times[most]} times, server "
                f"{fewest} {times[fewest]}; expected all of its servers to call it equally often"
            )
        found.append(next(iter(times.values())))
    return found


def _cycle(waits: Mapping[_Call, Sequence[tuple[_Call, Wait]]]) -> list[Wait] | None:
    """Finds a cycle of waits by depth-first search, if there is one."""
    done: set[_Call] = set()
    for start in waits:
        path: list[tuple[_Call, Wait | None]] = [(start, None)]
        on_path = {start}
        ahead = [iter(waits.get(start, ()))]
        while path and start not in done:
            for call, wait in ahead[-1]:
                if call in on_path:
                    place = [one for one, _ in path].index(call)
                    return [one for _, one in path[place + 1 :] if one is not None] + [wait]
                if call not in done:
                    path.append((call, wait))
                    on_path.add(call)
                    ahead.append(iter(waits.get(call, ())))
                    break
            else:
                call, _ = path.pop()
                ahead.pop()
                on_path.discard(call)
                done.add(call)
    return None


def _said(demand: Demand, wait: Wait) -> str:
    names = [f"{demand.jobs[job]} (job {job})" for job in (wait.job, wait.waits_for)]
    if wait.called:
        return f"server {wait.server} calls {names[0]} after {names[1]}"
    return f"at server {wait.server} the plan sends for {names[0]} after {names[1]}"
