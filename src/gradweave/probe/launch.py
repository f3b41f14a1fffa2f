"""Starts the processes of a measurement on this machine, or joins those of a launcher."""

import dataclasses
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradweave.common.lazy import require
from gradweave.common.wording import first_line
from gradweave.errors import GradweaveError, OptionError, RunError
from gradweave.probe.file import Record, save
from gradweave.probe.infer import Measured
from gradweave.probe.session import Terms, follow, kept_beside, lead, now
from gradweave.probe.transport import MpiTransport, TorchTransport, Transport
from gradweave.processes.children import Children, Message, how_stopped
from gradweave.processes.cleared import cleared_folder
from gradweave.processes.ending import termination
from gradweave.processes.launchers import rank_given

BACKENDS = {"mpi": "mpi4py", "torch": "torch"}
"""The package of each backend."""
_FIND_S = 120.0
"""How long processes have to find each other."""
_FOLLOW_S = 3600.0
"""How long a server waits for the next request of the first server."""
_SHUTDOWN_GRACE_S = 5.0
_LOOK_S = 1.0
"""Time between two checks for stopped processes."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a measurement, in the first process."""

    measured: Measured
    library: str
    seconds: float


def take_part(
    output: Path,
    backend: str,
    terms: Terms,
    tell: Callable[[str], None],
    say: Callable[[str], None],
    store: tuple[str, int, int] | None = None,
) -> Outcome | None:
    """Carries out one process's part of a measurement; all processes of a launcher call this.

    Args:
        output: file for the topology, written by the first process.
        backend: ``mpi`` or ``torch``.
        terms: how to measure.
        tell: called with the current step.
        say: called with a line for the user.
        store: see `TorchTransport`.

    Returns:
        The result, or None in all processes but the first.

    Raises:
        OptionError: there are fewer than two processes.
        RunError: a server was lost; the message names it.
        FileError: the topology cannot be written.
    """
    begun = time.monotonic()
    transport: Transport = MpiTransport() if backend == "mpi" else TorchTransport(store, _FIND_S)
    if transport.size < 2:
        raise OptionError("a network has at least 2 servers, and there is one process")
    if transport.rank:
        follow(transport, _FOLLOW_S)
        return None
    record = Record(kept_beside(output))
    steps = [("starting", begun)]

    def telling(step: str) -> None:
        steps.append((step, time.monotonic()))
        tell(step)

    measured = lead(transport, record, str(output), terms, telling, say)
    ended = time.monotonic()
    how = {
        "at": now(),
        "seconds": round(ended - begun, 2),
        "steps": [
            {"step": step, "seconds": round(after - at, 2)}
            for (step, at), (_, after) in itertools.pairwise([*steps, ("", ended)])
        ],
        "library": transport.library,
        "slot_s": terms.slot_s,
    }
    save(measured, output, how)
    record.discard()
    return Outcome(measured, transport.library, how["seconds"])


def under_launcher(backend: str) -> bool:
    """Whether the backend's launcher started this process.

    Raises:
        MissingExtraError: the backend's package is missing.
        OptionError: another backend's launcher started this process.
    """
    require(f"the backend {backend}", BACKENDS[backend])
    for other in BACKENDS:
        if other != backend and rank_given(other) is not None:
            raise OptionError(
                f"--backend {backend} does not run under the launcher of {other}; use "
                f"--backend {other}, or start gradweave without it"
            )
    return rank_given(backend) is not None


def on_this_machine(
    servers: int,
    output: Path,
    terms: Terms,
    tell: Callable[[str], None],
    say: Callable[[str], None],
) -> None:
    """Measures between new processes of this machine; the first of them writes the topology.

    Args:
        servers: number of processes.
        output: file for the topology.
        terms: how to measure.
        tell: called with the current step.
        say: called with a line for the user.

    Raises:
        RunError: a process was lost; the message names it.
    """
    with termination(), cleared_folder("gradweave-measure-") as folder:
        store = str(folder / "store")
        tasks = [
            {
                "output": str(output.resolve()),
                "terms": dataclasses.asdict(terms),
                "store": [store, rank, servers],
            }
            for rank in range(servers)
        ]
        starts = [(_command(task), os.environ) for task in tasks]
        supervise(starts, folder / "log", tell, say, stopped_s=terms.timeout_s)


def _command(task: dict[str, Any]) -> list[str]:
    return [sys.executable, "-m", "gradweave.probe.rank_process", json.dumps(task)]


def supervise(
    starts: Sequence[tuple[list[str], Any]],
    log: Path,
    tell: Callable[[str], None],
    say: Callable[[str], None],
    *,
    stopped_s: float = _FOLLOW_S,
) -> None:
    """Starts one process per server, and listens until all are done.

    Args:
        starts: command and environment of each process.
        log: file for their standard error.
        tell: called with the current step.
        say: called with a line for the user.
        stopped_s: how long a process may be stopped while all processes are silent.

    Raises:
        RunError: a process failed or was lost.
    """
    with Children(starts, log) as children:
        done: set[int] = set()
        while len(done) < len(children):
            number, message = _next(children, stopped_s)
            if message is None:
                if number not in done:
                    raise _failure(children, number, log)
            elif "error" in message:
                raise _stopped(children) or _reported(children, number, message["error"])
            elif "done" in message:
                done.add(number)
            elif "doing" in message:
                tell(str(message["doing"]))
            elif "says" in message:
                say(str(message["says"]))


def _next(children: Children, stopped_s: float) -> Message:
    """The next message; detects stopped processes, for which others would wait very long."""
    begin = stopped_at = time.monotonic()
    while time.monotonic() - begin < _FOLLOW_S:
        if (received := children.receive(min(_LOOK_S, stopped_s))) is not None:
            return received
        stopped = _stopped(children)
        stopped_at = time.monotonic() if stopped is None else stopped_at
        if stopped is not None and time.monotonic() - stopped_at >= stopped_s:
            raise stopped
    raise RunError(f"no process reported anything for {_FOLLOW_S:g} s")


def _stopped(children: Children) -> RunError | None:
    """The error if processes are stopped, which causes all errors that others report."""
    found = children.stopped()
    if not found:
        return None
    others = [f"server {number}" for number in found[1:]]
    return RunError(f"lost server {found[0]}: {how_stopped(others)}")


def _reported(children: Children, number: int, text: str) -> RunError:
    """The error that a process reported, or that of the first process if it has one."""
    until = time.monotonic() + (_SHUTDOWN_GRACE_S if number else 0.0)
    while number and (received := children.receive(until - time.monotonic())):
        sender, message = received
        if sender == 0 and (message is None or "error" in message):
            return RunError(message["error"]) if message else RunError(text)
    return RunError(text)


def _failure(children: Children, number: int, log: Path) -> RunError:
    """The error of a process that ended; the first process may know more, and then reports it."""
    until = time.monotonic() + _SHUTDOWN_GRACE_S
    while received := children.receive(until - time.monotonic()):
        sender, message = received
        if sender == 0 and message is not None and "error" in message:
            return RunError(message["error"])
    return RunError(f"lost server {number}: {children.how_died(number, log)}")


@contextmanager
def told_in_one_line() -> Iterator[None]:
    """Turns the exceptions of an engine into one-line errors."""
    try:
        yield
    except (GradweaveError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise RunError(f"{type(error).__name__}: {first_line(error)}") from error
