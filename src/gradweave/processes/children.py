"""Child processes that are started together, heard, and always ended.

Parent and child exchange JSON objects, one per line; `gradweave.processes.parent` is the child's
side.
"""

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
"""How long a process may take to end when asked to; after that, it is killed."""

Message = tuple[int, dict[str, Any] | None]
"""Number of a child, and the JSON object that it sent, or None if it has ended."""


class Children:
    """Started processes, which end with the block in which this is used, or earlier.

    Args:
        starts: command and environment of each process.
        log: file for their standard error; if None, they share this process's standard error.
    """

    def __init__(
        self, starts: Sequence[tuple[Sequence[str], Mapping[str, str]]], log: Path | None
    ) -> None:
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.processes: list[subprocess.Popen[str]] = []
        self._process = os.getpid()
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
        return len(self.processes)

    def receive(self, timeout_s: float) -> Message | None:
        """The next message of any child, or None if there is none in time."""
        try:
            return self._messages.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            return None

    def status(self, number: int) -> int:
        """Exit status of a child that has ended; a negative status is the signal that ended it."""
        return self.processes[number].wait()

    def how_died(self, number: int, log: Path) -> str:
        """Describes how a child has ended; if by itself, with the last line of its log."""
        status = self.status(number)
        how = how_ended(status)
        return how if status < 0 else f"{how}: {last_line(log)}"

    def stopped(self) -> list[int]:
        """The children that are stopped, by SIGSTOP or a debugger."""
        return [number for number, one in enumerate(self.processes) if is_stopped(one.pid)]

    def send(self, number: int, message: Mapping[str, Any]) -> None:
        """Writes one JSON object to the standard input of a child."""
        pipe = self.processes[number].stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(message) + "\n")
            pipe.flush()
        except (OSError, ValueError):
            pass  # it has ended, which `receive` reports

    def dismiss(self) -> None:
        """Closes the standard input of all children, which makes them end."""
        for process in self.processes:
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
            start_new_session=True,  # Ctrl-C is handled by the parent, which then ends the children
        )
        self.processes.append(process)
        number = len(self.processes) - 1
        threading.Thread(target=self._listen, args=(number, process), daemon=True).start()

    def _listen(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # some other output, such as mpirun's
            if isinstance(message, dict):
                self._messages.put((number, message))
        process.wait()
        self._messages.put((number, None))

    def _stop(self) -> None:
        """Asks the remaining processes to end, so that mpirun ends its own, and then kills them."""
        if os.getpid() != self._process:  # in a fork: the children belong to its parent
            return
        self.dismiss()
        left = [process for process in self.processes if process.poll() is None]
        for process in left:
            process.terminate()
        for process in left:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                _kill_session(process)
                process.wait()
        for process in self.processes:
            assert process.stdout is not None
            process.stdout.close()


def how_ended(status: int | None) -> str:
    """Describes how a process ended.

    Args:
        status: the status from `subprocess`, negative for a signal, or None if unknown.

    >>> how_ended(-9)
    'its process was ended by SIGKILL'
    """
    if status is None:
        return "its process ended"
    if status >= 0:
        return f"its process ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"its process was ended by {name}"


def is_stopped(process: int) -> bool:
    """Whether a process of this machine is stopped, by SIGSTOP or a debugger; False if unknown."""
    return _state(process) in ("T", "t")


def _state(process: int) -> str:
    """The state as a letter, like in ps; empty if there is no such process."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]


def how_stopped(others: Sequence[str] = ()) -> str:
    """Describes how a server whose process is stopped was lost.

    Args:
        others: names of other servers whose processes are stopped.
    """
    also = f", like those of {', '.join(others)}" if others else ""
    return f"its process is stopped{also}"


def last_line(log: Path) -> str:
    """The last line of a log that has any text."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip(" -")]
    return lines[-1].strip() if lines else "no message"


def _kill_session(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()
