"""The recorded collectives of this process, in the format that `gradweave job trace` reads."""

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

from gradweave.common.atomic import atomic_write, make_folder
from gradweave.errors import FileError
from gradweave.execute.recorded import SUFFIX, RecordedCall, RecordedLane, RecordedRank
from gradweave.torch.record import Entry, Lane, Recorder

_log = logging.getLogger("gradweave")


def kept(recorder: Recorder, rank: int, ranks: int, machine: str) -> RecordedRank:
    """The recorded calls so far.

    Args:
        recorder: the recorder of the calls.
        rank: rank of this process in the job.
        ranks: number of ranks in the job.
        machine: name of the machine, whose processes share a clock.
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
    """Writes the recorded calls to a file when the process ends and when it receives SIGUSR1.

    Args:
        folder: created if it does not exist.
        recorder: the recorder of the calls.
        rank: rank of this process in the job.
        ranks: number of ranks in the job.
        machine: name of the machine, whose processes share a clock.
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
        """Writes the file; logs one line if that fails."""
        if os.getpid() != self._process:
            return  # a fork
        found = kept(self._recorder, self._rank, self._ranks, self._machine)
        try:
            make_folder(self._folder)
            atomic_write(self._folder / f"rank-{self._rank}{SUFFIX}", found.written())
        except FileError as error:
            _log.warning("GRADWEAVE_TRACE: rank %d has written nothing: %s", self._rank, error)

    def close(self) -> None:
        """Writes the file for the last time."""
        atexit.unregister(self.close)
        self.write()
        if self._before is not None:
            with contextlib.suppress(ValueError):  # not in the main thread
                signal.signal(signal.SIGUSR1, self._before)
            self._before = None

    def _asked(self, number: int, frame: FrameType | None) -> None:
        self.write()
        if callable(self._before):
            self._before(number, frame)
