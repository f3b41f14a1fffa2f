"""Supervises the processes of a run until a report arrives or a process is lost."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradweave import errors
from gradweave.errors import GradweaveError, LostServerError, RunError
from gradweave.execute.lost import lost_server
from gradweave.execute.running.trial import RunReport
from gradweave.processes.children import (
    Children,
    how_ended,
    how_stopped,
    is_stopped,
    last_line,
)
from gradweave.processes.mpirun import status_of
from gradweave.schedules.schedule import Schedule
from gradweave.topology.topology import Topology

SHUTDOWN_GRACE_S = 10.0
"""How long processes have to name the lost server before they are killed."""
_SLACK_S = 20.0
"""Processes report stalls by themselves; this long after that, they are given up."""
_POLL_S = 0.5


@dataclasses.dataclass(frozen=True)
class Launch:
    """The processes to start."""

    starts: list[tuple[list[str], dict[str, str]]]
    """Command and environment of each process."""
    ranks: list[list[int]]
    """The servers in each process; mpirun is one process that has all of them."""
    statuses: Path | None = None
    """mpirun: directory in which each server's process writes its exit status."""


def supervise(
    schedule: Schedule,
    group: Launch,
    logs: Path,
    timeout_s: float,
    progress: Callable[[str], None],
) -> RunReport:
    """Starts the processes, waits for the report, and ends the processes.

    Args:
        schedule: the schedule.
        group: the processes to start.
        logs: directory for their standard error.
        timeout_s: how long all processes may be silent.
        progress: called with the current step.

    Raises:
        LostServerError: a server's process ended; the others have ended as well, each naming it.
        GradweaveError: an error that a process reported.
    """
    log = logs / "launcher.log"
    with Children(group.starts, log) as children:
        return _Supervisor(schedule, group, children, log, progress).report(timeout_s)


class _Supervisor:
    def __init__(
        self,
        schedule: Schedule,
        group: Launch,
        children: Children,
        log: Path,
        progress: Callable[[str], None],
    ) -> None:
        self._topology = schedule.topology
        self._group, self._children, self._log = group, children, log
        self._progress = progress
        self._report: RunReport | None = None
        self._with_servers = {number for number, ranks in enumerate(group.ranks) if ranks}
        self._working = set(self._with_servers)
        self._errors: list[tuple[int, dict[str, Any]]] = []
        self._stopped: list[int] = []

    def report(self, timeout_s: float) -> RunReport:
        """Processes messages until all processes are done."""
        silent_since = time.monotonic()
        while True:
            received = self._children.receive(_POLL_S)
            silent_s = time.monotonic() - silent_since
            if received is not None:
                silent_since = time.monotonic()
                number, message = received
                if message is not None:
                    self._take(number, message)
                elif self._report is None or self._working - {number}:
                    raise self._failure(number)
                else:
                    return self._report
                if self._report is not None and not self._working:
                    return self._report
            elif self._lost_under_mpirun() and silent_s > SHUTDOWN_GRACE_S:
                raise self._failure_under_mpirun()
            elif silent_s > timeout_s + _SLACK_S:
                self._look_for_stopped()
                silence = RunError(f"no process reported anything for {timeout_s + _SLACK_S:g} s")
                raise self._halted() or silence

    def _take(self, number: int, message: dict[str, Any]) -> None:
        if "doing" in message:
            self._progress(str(message["doing"]))
        elif "report" in message:
            self._report = RunReport.of(message["report"])
        elif "error" in message:
            self._look_for_stopped()
            self._errors.append((number, message))
        elif "done" in message:
            self._working.discard(number)

    def _failure(self, number: int) -> GradweaveError:
        """The error to raise because a process ended; waits until all others have ended."""
        if self._group.statuses is not None:
            return self._failure_under_mpirun()
        ranks, how = self._group.ranks[number], how_ended(self._children.status(number))
        if not ranks:
            self._look_for_stopped()  # this process may have waited for them
            return self._halted() or RunError(
                f"the process through which the others find each other: {how}"
            )
        if len(ranks) > 1:
            others = ", ".join(self._name(rank) for rank in ranks[1:])
            how += f", which also ran {others}"
        lost = lost_server(self._topology, ranks[0], how)
        message = {"server": lost.server, "rank": lost.rank, "how": how, "label": lost.label}
        self._tell_others(number, message)
        reported = [message for sender, message in self._errors if sender == number]
        if reported and (halted := self._halted()):
            return halted
        return _error(reported[0], self._topology) if reported else lost

    def _tell_others(self, number: int, message: dict[str, Any]) -> None:
        """Tells all processes but one which server was lost, and waits until they have ended."""
        until = time.monotonic() + SHUTDOWN_GRACE_S
        left = set(range(len(self._children))) - {number}
        # The process with JAX's coordinator is told last: when it goes, JAX ends the others, even
        # if they have not reported their error yet.
        for group in (left & self._with_servers, left - self._with_servers):
            for other in group:
                self._children.send(other, message)
            while left & group and (received := self._children.receive(until - time.monotonic())):
                if received[1] is None:
                    left.discard(received[0])

    def _look_for_stopped(self) -> None:
        """Notes which servers' processes are stopped, before they are killed with the others."""
        if self._stopped:
            return
        if self._group.statuses is None:
            ids = [process.pid for process in self._children.processes]
            owners = zip(ids, self._group.ranks, strict=True)
        else:  # the processes of mpirun write their ids to their logs first of all
            owners = ((_id_in(log), [rank]) for rank, log in self._logs())
        self._stopped = sorted(rank for pid, ranks in owners if is_stopped(pid) for rank in ranks)

    def _logs(self) -> list[tuple[int, Path]]:
        ranks = range(self._topology.num_servers)
        return [(rank, self._log.with_name(f"process-{rank}.log")) for rank in ranks]

    def _halted(self) -> LostServerError | None:
        """The error if servers' processes are stopped: the other processes only wait for these."""
        if not self._stopped:
            return None
        first, *others = self._stopped
        return lost_server(self._topology, first, how_stopped([*map(self._name, others)]))

    def _name(self, rank: int) -> str:
        return self._topology.id_name(int(self._topology.servers[rank]))

    def _lost_under_mpirun(self) -> list[int]:
        """Ranks whose processes exited with an error."""
        statuses = self._group.statuses
        if statuses is None:
            return []
        return [rank for rank in range(self._topology.num_servers) if status_of(statuses, rank)]

    def _failure_under_mpirun(self) -> GradweaveError:
        messages = [message for _, message in self._errors]
        others = [message for message in messages if message["kind"] != "LostServerError"]
        if others:
            return self._halted() or _error(others[0], self._topology)
        named = [message["lost"] for message in messages]
        for rank in [*named, *self._lost_under_mpirun()][:1]:
            assert self._group.statuses is not None
            how = how_ended(status_of(self._group.statuses, rank))
            return lost_server(self._topology, rank, how)
        return RunError(f"mpirun: {how_ended(self._children.status(0))}: {last_line(self._log)}")


def _id_in(log: Path) -> int:
    """The id of a process, from the first line of its log, or -1 if that is missing."""
    try:
        words = log.read_text(errors="replace").split(maxsplit=2)
    except OSError:
        return -1
    return int(words[1]) if words[:1] == ["pid"] and words[1:2] and words[1].isdigit() else -1


def _error(message: dict[str, Any], topology: Topology) -> GradweaveError:
    """The error that a process reported, as an exception."""
    text, lost = message["error"], message["lost"]
    if message["kind"] == "LostServerError" and lost is not None:
        return lost_server(topology, lost, "its connection broke")
    kind = getattr(errors, message["kind"], RunError)
    return kind(text) if kind is not LostServerError else RunError(text)
