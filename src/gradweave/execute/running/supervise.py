"""Listens to the processes of a run until there is a report, or one of them is lost."""

import dataclasses
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradweave import errors
from gradweave.errors import GradweaveError, LostServerError, RunError
from gradweave.execute.lost import lost_server
from gradweave.execute.running.trial import Report
from gradweave.processes.children import Children
from gradweave.processes.mpirun import exit_status
from gradweave.schedule.schedule import Schedule
from gradweave.topology.topology import Topology

FAREWELL_S = 10.0
"""How long processes have to say which server they miss, before they are killed."""
_SLACK_S = 10.0
"""Processes say themselves that nothing moves; how much later they are no longer believed to."""
_POLL_S = 0.5


@dataclasses.dataclass(frozen=True)
class Group:
    """Processes to be started."""

    starts: list[tuple[list[str], dict[str, str]]]
    """Command and environment of each."""
    ranks: list[list[int]]
    """By process: the servers in it. mpirun is one process that has all of them."""
    statuses: Path | None = None
    """mpirun: directory in which each server's process leaves its exit status."""


def supervise(
    schedule: Schedule,
    group: Group,
    logs: Path,
    timeout_s: float,
    progress: Callable[[str], None],
) -> Report:
    """Starts the processes, and ends them.

    Args:
        schedule: the schedule.
        group: what to start.
        logs: directory for what they say.
        timeout_s: how long nothing may be heard.
        progress: is told what is being done.

    Raises:
        LostServerError: a server's process ended; the others have ended too, each naming it.
        GradweaveError: what a process said was wrong.
    """
    log = logs / "launcher.log"
    with Children(group.starts, log) as children:
        return _Supervisor(schedule, group, children, log, progress).report(timeout_s)


class _Supervisor:
    def __init__(
        self,
        schedule: Schedule,
        group: Group,
        children: Children,
        log: Path,
        progress: Callable[[str], None],
    ) -> None:
        self._topology = schedule.topology
        self._group, self._children, self._log = group, children, log
        self._progress = progress
        self._report: Report | None = None
        self._working = {number for number, ranks in enumerate(group.ranks) if ranks}
        self._errors: list[tuple[int, dict[str, Any]]] = []

    def report(self, timeout_s: float) -> Report:
        """Listens until all are done."""
        silent_since = time.monotonic()
        while True:
            heard = self._children.hear(_POLL_S)
            now = time.monotonic()
            if heard is not None:
                silent_since = now
                number, said = heard
                if said is None:
                    if self._report is not None and not self._working - {number}:
                        return self._report
                    raise self._failure(number)
                self._take(number, said)
                if self._report is not None and not self._working:
                    return self._report
            elif self._lost_under_mpirun() and now - silent_since > FAREWELL_S:
                raise self._failure_under_mpirun()
            elif now - silent_since > timeout_s + _SLACK_S:
                raise RunError(f"no process said anything for {timeout_s + _SLACK_S:g} s")

    def _take(self, number: int, said: dict[str, Any]) -> None:
        if "doing" in said:
            self._progress(str(said["doing"]))
        elif "report" in said:
            self._report = Report.of(said["report"])
        elif "error" in said:
            self._errors.append((number, said))
        elif "done" in said:
            self._working.discard(number)

    def _failure(self, number: int) -> GradweaveError:
        """What to raise because a process ended; all others have ended by then."""
        if self._group.statuses is not None:
            return self._failure_under_mpirun()
        ranks, how = self._group.ranks[number], _how(self._children.status(number))
        if not ranks:
            return RunError(f"the process by which the others find each other: {how}")
        if len(ranks) > 1:
            others = ", ".join(self._name(rank) for rank in ranks[1:])
            how += f", which was also that of {others}"
        lost = lost_server(self._topology, ranks[0], how)
        word = {"server": lost.server, "rank": lost.rank, "how": how, "label": lost.label}
        left = set(range(len(self._children))) - {number}
        for other in left:
            self._children.tell(other, word)
        until = time.monotonic() + FAREWELL_S
        while left and (heard := self._children.hear(until - time.monotonic())):
            if heard[1] is None:
                left.discard(heard[0])
        own = [said for by, said in self._errors if by == number]
        return _error(own[0], self._topology) if own else lost

    def _name(self, rank: int) -> str:
        return self._topology.id_name(int(self._topology.servers[rank]))

    def _lost_under_mpirun(self) -> list[int]:
        """Ranks whose processes did not end well."""
        statuses = self._group.statuses
        if statuses is None:
            return []
        return [rank for rank in range(self._topology.num_servers) if exit_status(statuses, rank)]

    def _failure_under_mpirun(self) -> GradweaveError:
        said = [said for _, said in self._errors]
        own = [each for each in said if each["kind"] != "LostServerError"]
        if own:
            return _error(own[0], self._topology)
        named = [each["lost"] for each in said]
        for rank in [*named, *self._lost_under_mpirun()][:1]:
            assert self._group.statuses is not None
            how = _how(exit_status(self._group.statuses, rank))
            return lost_server(self._topology, rank, how)
        return RunError(f"mpirun: {_how(self._children.status(0))}: {_last_line(self._log)}")


def _how(status: int | None) -> str:
    """How a process ended, from its exit status; negative: by a signal."""
    if status is None:
        return "its process ended"
    if status >= 0:
        return f"its process ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"its process was ended by {name}"


def _error(said: dict[str, Any], topology: Topology) -> GradweaveError:
    """The error that a process said it had."""
    text, lost = said["error"], said["lost"]
    if said["kind"] == "LostServerError" and lost is not None:
        return lost_server(topology, lost, "its connection broke")
    kind = getattr(errors, said["kind"], RunError)
    return kind(text) if kind is not LostServerError else RunError(text)


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip(" -")]
    return lines[-1].strip() if lines else "no message"
