"""Processes that carry out tasks, one process per server."""

import contextlib
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradweave.common.wording import listed, noun_of
from gradweave.errors import RunError
from gradweave.execute.lost import lost_server
from gradweave.processes.children import Children, how_stopped
from gradweave.topology.topology import Topology

ANSWER_S = 300.0
"""Timeout of a task."""
SHUTDOWN_GRACE_S = 30.0
"""How long processes have to notice a failure before they are killed."""
DEATH_S = 3.0
"""The same once it is known which process died: the others have nothing to add, and while they
wait for it at the file through which they find each other, they notice nothing."""
_LOOK_S = 1.0
"""Time between two checks of the environment in which the processes run."""
_Answers = dict[int, dict[str, Any]]
"""Answers by rank."""


class ServerProcesses:
    """One process per server; they end with the block in which this is used.

    Args:
        topology: the network of the servers.
        starts: command and environment of each process, by rank.
        log: file for the processes' standard error.
        check: called regularly; raises an error if the environment of the processes is broken.
    """

    def __init__(
        self,
        topology: Topology,
        starts: Sequence[tuple[Sequence[str], Mapping[str, str]]],
        log: Path,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._topology, self._log, self._check = topology, log, check
        self._servers = topology.servers.tolist()
        self._children = Children(starts, log)
        self.processes = self._children.processes
        """Processes by rank."""

    def __enter__(self) -> "ServerProcesses":
        return self

    def __exit__(self, *error: object) -> None:
        self._children.__exit__(*error)

    def ask(self, task: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
        """Gives each process its task; returns their answers, by rank.

        Args:
            task: returns the task of a rank.

        Raises:
            LostServerError: a process died.
            RunError: a process failed, or the environment in which they run.
        """
        for rank in range(len(self._servers)):
            self._children.send(rank, task(rank))
        answers: _Answers = {}
        until = time.monotonic() + ANSWER_S
        while len(answers) < len(self._servers):
            received = self._children.receive(min(until - time.monotonic(), _LOOK_S))
            if received is None:
                self._check()
                if time.monotonic() < until:
                    continue
                if stopped := self._children.stopped():
                    raise lost_server(self._topology, stopped[0], self._stopped(stopped[1:]))
                late = [s for rank, s in enumerate(self._servers) if rank not in answers]
                servers = noun_of(len(late), "server")
                names = listed([*map(self._topology.id_name, late)])
                raise RunError(f"no answer from {servers} {names} within {ANSWER_S:g} s")
            rank, answer = received
            answers[rank] = self._died(rank) if answer is None else answer
            if "error" in answers[rank]:
                raise self._failure(answers)
        return [answers[rank] for rank in range(len(self._servers))]

    def check_alive(self) -> None:
        """Raises an error if a process has ended; called while no process has a task.

        Raises:
            LostServerError: a process has ended.
        """
        for rank, process in enumerate(self.processes):
            if process.poll() is not None:
                raise lost_server(self._topology, rank, self._died(rank)["error"])

    def _stopped(self, others: list[int]) -> str:
        return how_stopped([self._topology.id_name(self._servers[rank]) for rank in others])

    def _failure(self, answers: _Answers) -> RunError:
        """The first error, once the other processes have answered or timed out."""
        until = time.monotonic() + SHUTDOWN_GRACE_S
        while len(answers) < len(self._servers):
            if any("died" in answer for answer in answers.values()):
                until = min(until, time.monotonic() + DEATH_S)
            received = self._children.receive(until - time.monotonic())
            if received is None:
                break
            rank, answer = received
            if rank not in answers:  # ignores the end of a process that has answered
                answers[rank] = self._died(rank) if answer is None else answer
        errors = {rank: answers[rank] for rank in sorted(answers) if "error" in answers[rank]}
        for rank in errors:  # a process that reported an error ends by itself
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.processes[rank].wait(max(until - time.monotonic(), 0))
        for rank, answer in errors.items():
            if "died" in answer:
                return lost_server(self._topology, rank, answer["error"])
        return RunError(next(iter(errors.values()))["error"])

    def _died(self, rank: int) -> dict[str, Any]:
        return {"error": self._children.how_died(rank, self._log), "died": True}
