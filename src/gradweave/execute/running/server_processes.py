"""Processes that carry out tasks, one per server."""

import contextlib
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradweave.errors import RunError
from gradweave.execute.lost import lost_server
from gradweave.processes.children import (
    Children,
    how_ended,
    how_stopped,
    is_stopped,
    last_line,
)
from gradweave.topology.topology import Topology
from gradweave.wording import listed, noun_of

ANSWER_S = 300.0
"""How long a task may take."""
SHUTDOWN_GRACE_S = 30.0
"""How long processes have to notice that something went wrong, before they are killed."""
DEATH_S = 3.0
"""The same once it is known which one died: what they would say is known, too. Where they wait for
it at a file by which they find each other, they notice nothing."""
_LOOK_S = 1.0
"""Time between two looks at whether what they run on is whole."""
_Answers = dict[int, dict[str, Any]]
"""By rank."""


class ServerProcesses:
    """One process per server; ends with the block that it is used in.

    Args:
        topology: whose servers they are.
        starts: of each, by rank, its command and its environment.
        log: file for the processes' standard error.
        check: called now and then; raises an error where what they run on is broken.
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
        """By rank."""

    def __enter__(self) -> "ServerProcesses":
        return self

    def __exit__(self, *error: object) -> None:
        self._children.__exit__(*error)

    def ask(self, task: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
        """Gives each process its task; returns their answers, by rank.

        Args:
            task: from the rank.

        Raises:
            LostServerError: a process died.
            RunError: a process failed, or what they run on did.
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
                if stopped := [rank for rank, p in enumerate(self.processes) if is_stopped(p.pid)]:
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
        """Raises an error where a process has ended; for when none has a task.

        Raises:
            LostServerError: one has.
        """
        for rank, process in enumerate(self.processes):
            if process.poll() is not None:
                raise lost_server(self._topology, rank, self._died(rank)["error"])

    def _stopped(self, others: list[int]) -> str:
        return how_stopped([self._topology.id_name(self._servers[rank]) for rank in others])

    def _failure(self, answers: _Answers) -> RunError:
        """The first error, once the other processes have answered too or their time is over."""
        until = time.monotonic() + SHUTDOWN_GRACE_S
        while len(answers) < len(self._servers):
            if any("died" in answer for answer in answers.values()):
                until = min(until, time.monotonic() + DEATH_S)
            received = self._children.receive(until - time.monotonic())
            if received is None:
                break
            rank, answer = received
            if rank not in answers:  # and not the end of one that has answered
                answers[rank] = self._died(rank) if answer is None else answer
        errors = {rank: answers[rank] for rank in sorted(answers) if "error" in answers[rank]}
        for rank in errors:  # such a process ends by itself
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.processes[rank].wait(max(until - time.monotonic(), 0))
        for rank, answer in errors.items():
            if "died" in answer:
                return lost_server(self._topology, rank, answer["error"])
        return RunError(next(iter(errors.values()))["error"])

    def _died(self, rank: int) -> dict[str, Any]:
        status = self._children.status(rank)
        how = how_ended(status)
        return {"error": how if status < 0 else f"{how}: {last_line(self._log)}", "died": True}
