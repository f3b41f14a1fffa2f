"""The processes of a lab, one a server, and what is asked of them."""

import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from gradweave.errors import RunError
from gradweave.execute.lost import lost_server
from gradweave.lab.network import EmulatedNetwork

ANSWER_S = 300.0
"""How long a task may take."""
FAREWELL_S = 30.0
"""How long processes have to notice that one of them was lost, before they are killed."""


class Crew:
    """One worker process a server, each in its namespace; ends with the block it is used in."""

    def __init__(self, network: EmulatedNetwork) -> None:
        self._topology = network.topology
        self._servers = self._topology.servers.tolist()
        self.processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "gradweave.lab.worker"),
                    *(network.name(server), str(rank), str(len(self._servers))),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is for the lab, which then ends them
            )
            for rank, server in enumerate(self._servers)
        ]
        """By rank."""
        self._answers: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        for rank, process in enumerate(self.processes):
            threading.Thread(target=self._listen, args=(rank, process), daemon=True).start()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

    def ask(self, task: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
        """Gives each process its task; returns their answers, by rank.

        Args:
            task: from the rank.

        Raises:
            LostServerError: a process died; all others have ended too, each naming it.
            RunError: a process failed.
        """
        for rank, process in enumerate(self.processes):
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(task(rank)) + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                pass  # its death is found below
        answers: list[dict[str, Any] | None] = [None] * len(self.processes)
        until = time.monotonic() + ANSWER_S
        while None in answers:
            try:
                rank, line = self._answers.get(timeout=max(until - time.monotonic(), 0))
            except queue.Empty:
                late = ", ".join(
                    self._topology.id_name(server)
                    for server, got in zip(self._servers, answers, strict=True)
                    if got is None
                )
                raise RunError(f"no answer from servers {late} within {ANSWER_S:g} s") from None
            answers[rank] = json.loads(line) if line else self._died(rank)
            if "error" in (answers[rank] or {}):
                self._fail(answers)
        return [answer for answer in answers if answer is not None]

    def _fail(self, answers: list[dict[str, Any] | None]) -> None:
        """Hears what the others have to say, and raises what was wrong first."""
        until = time.monotonic() + FAREWELL_S
        while None in answers and time.monotonic() < until:
            try:
                rank, line = self._answers.get(timeout=0.1)
            except queue.Empty:
                continue
            if answers[rank] is None:  # and not the end of one that has answered
                answers[rank] = json.loads(line) if line else self._died(rank)
        for process, answer in zip(self.processes, answers, strict=True):
            if answer and "error" in answer:  # such a process ends by itself; let it
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=max(until - time.monotonic(), 0))
        errors = [answer for answer in answers if answer and "error" in answer]
        dead = [answer for answer in errors if "signal" in answer]
        if dead:
            rank = dead[0]["lost"]
            raise lost_server(self._topology, rank, dead[0]["error"])
        raise RunError(errors[0]["error"])

    def _died(self, rank: int) -> dict[str, Any]:
        process = self.processes[rank]
        status = process.wait()
        if status < 0:
            how = f"its process was ended by {signal.Signals(-status).name}"
        else:
            assert process.stderr is not None
            said = process.stderr.read().strip().splitlines()
            how = f"its process ended with status {status}: {said[-1] if said else 'no message'}"
        return {"error": how, "lost": rank, "signal": -status}

    def _listen(self, rank: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                self._answers.put((rank, line))
        except ValueError:
            return  # closed at the end
        self._answers.put((rank, ""))
