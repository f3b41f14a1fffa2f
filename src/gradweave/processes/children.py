"""Processes that are started together, listened to, and never left behind."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

STOP_S = 3.0
"""How long a process has to end when asked to, before it is killed."""

Heard = tuple[int, dict[str, Any] | None]
"""Number of a process, and what it said; None: it ended."""


class Children:
    """Started processes; they end, at the latest, with the block that this is used in.

    Args:
        starts: of each, its command and its environment.
        log: file for their standard error; None: it is that of this process.
    """

    def __init__(
        self, starts: Sequence[tuple[Sequence[str], Mapping[str, str]]], log: Path | None
    ) -> None:
        self._heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self._processes: list[subprocess.Popen[str]] = []
        with contextlib.nullcontext() if log is None else log.open("ab") as errors:
            try:
                for command, environment in starts:
                    self._start(command, environment, None if errors is None else errors.fileno())
            except BaseException:
                self._stop()
                raise

    def __enter__(self) -> "Children":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def __len__(self) -> int:
        return len(self._processes)

    def hear(self, timeout_s: float) -> Heard | None:
        """The next that one of them says; None if nobody says anything for so long."""
        try:
            return self._heard.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            return None

    def status(self, number: int) -> int:
        """Exit status of one that has ended; negative: the signal that ended it."""
        return self._processes[number].wait()

    def tell(self, number: int, word: Mapping[str, Any]) -> None:
        """Writes one JSON object to the standard input of one of them."""
        pipe = self._processes[number].stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(word) + "\n")
            pipe.flush()
        except (OSError, ValueError):
            pass  # it has ended, which is heard

    def dismiss(self) -> None:
        """Closes the standard input of all, which tells them that they may go."""
        for process in self._processes:
            assert process.stdin is not None
            try:
                process.stdin.close()
            except OSError:
                pass

    def _start(
        self, command: Sequence[str], environment: Mapping[str, str], errors: int | None
    ) -> None:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for the verb, which then ends them
        )
        self._processes.append(process)
        number = len(self._processes) - 1
        threading.Thread(target=self._listen, args=(number, process), daemon=True).start()

    def _listen(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue  # something that mpirun prints
            if isinstance(said, dict):
                self._heard.put((number, said))
        process.wait()
        self._heard.put((number, None))

    def _stop(self) -> None:
        """Asks all that are left to end, so that mpirun ends its own, and then kills them."""
        self.dismiss()
        left = [process for process in self._processes if process.poll() is None]
        for process in left:
            process.terminate()
        for process in left:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                _kill_session(process)
                process.wait()
        for process in self._processes:
            assert process.stdout is not None
            process.stdout.close()


def _kill_session(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()
