"""What this process keeps of its collectives, as `gradweave trace` reads it."""

import atexit
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from pathlib import Path
from types import FrameType

from gradweave.atomic import atomic_write, make_folder
from gradweave.errors import FileError
from gradweave.execute.recorded import SUFFIX, RecordedCall, RecordedLane, RecordedRank
from gradweave.torch.record import Entry, Lane, Recorder

_log = logging.getLogger("gradweave")


def kept(recorder: Recorder, rank: int, ranks: int, machine: str) -> RecordedRank:
    """What is kept now.

    Args:
        recorder: of the calls.
        rank: of this process in the job.
        ranks: how many the job has.
        machine: where its clock is the same.
    """
    for lane in list(recorder.lanes.values()):
        lane.settle()
    calls = list(recorder.kept)
    lanes: dict[str, Lane] = {entry.lane.key: entry.lane for entry in calls}
    now_ns = time.monotonic_ns()
    return RecordedRank(
        rank,
        ranks,
        socket.gethostname(),
        machine,
        time.time_ns() - now_ns,
        now_ns,
        recorder.follows,
        {key: RecordedLane(lane.members, lane.between_two) for key, lane in lanes.items()},
        tuple(map(_call, calls)),
    )


def _call(entry: Entry) -> RecordedCall:
    return RecordedCall(
        entry.lane.key,
        entry.number,
        entry.text,
        entry.bytes,
        entry.begin_ns,
        entry.end_ns,
        entry.planned,
        entry.error or "",
    )


class TraceFile:
    """Where this process writes what it keeps: at its end, and when it receives SIGUSR1.

    Args:
        folder: made where it is not there.
        recorder: of the calls.
        rank: of this process in the job.
        ranks: how many the job has.
        machine: where its clock is the same.
    """

    def __init__(
        self, folder: Path, recorder: Recorder, rank: int, ranks: int, machine: str
    ) -> None:
        self._folder, self._recorder = folder, recorder
        self._rank, self._ranks, self._machine = rank, ranks, machine
        self._before, self._process = None, os.getpid()
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGUSR1"):
            self._before = signal.getsignal(signal.SIGUSR1)
            signal.signal(signal.SIGUSR1, self._asked)
        atexit.register(self.close)

    def write(self) -> None:
        """Writes it; says in one line where that cannot be."""
        if os.getpid() != self._process:
            return  # a fork
        found = kept(self._recorder, self._rank, self._ranks, self._machine)
        try:
            make_folder(self._folder)
            atomic_write(self._folder / f"rank-{self._rank}{SUFFIX}", found.written())
        except FileError as error:
            _log.warning("GRADWEAVE_TRACE: rank %d has written nothing: %s", self._rank, error)

    def close(self) -> None:
        """Writes it for the last time."""
        atexit.unregister(self.close)
        self.write()
        if self._before is not None:
            with contextlib.suppress(ValueError):  # in another thread
                signal.signal(signal.SIGUSR1, self._before)
            self._before = None

    def _asked(self, number: int, frame: FrameType | None) -> None:
        self.write()
        if callable(self._before):
            self._before(number, frame)
