"""The status of this rank: its progress through its collectives."""

import os
import socket
import sys
import sysconfig
import threading
import time
from types import FrameType

from gradweave.execute.torch_distributed.sockets import connections
from gradweave.execute.torch_distributed.status import LaneStatus, RankStatus
from gradweave.processes.peers import MOST_TEXT
from gradweave.torch.machine import machine
from gradweave.torch.record import Entry, Lane, Recorder

_FAILED_S = 30.0
"""Seconds for which a failed call counts as recent."""
_LOOKED_AT = 64
"""Number of recorded calls, counted from the latest, that are searched for the last to end."""


class OwnStatus:
    """The status of this process, derived from its recorded calls.

    Args:
        recorder: the recorder of its calls.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._began = self._resumed = time.monotonic()
        self._process = os.getpid()

    def resumed(self, now: float) -> None:
        """Notes that this process was suspended until now, and so not waiting for other ranks."""
        self._resumed = now

    def waits(self, now: float, patience_s: float) -> bool:
        """Whether it has waited for at least that long, or a call has failed recently."""
        found = False
        for lane in self._lanes():
            lane.settle()
            first = lane.first()
            found = found or (first is not None and self.for_s(first, now) >= patience_s)
        return found or self.failed(now)

    def failed(self, now: float) -> bool:
        """Whether a call has failed recently."""
        return any(_failed_lately(lane, now) for lane in self._lanes())

    def for_s(self, entry: Entry, now: float) -> float:
        """How long this process has waited in a call."""
        return now - max(entry.waits_from_ns / 1e9, self._resumed)

    def at(self, now: float, heartbeats: int, left: bool) -> RankStatus:
        """The status to report.

        Args:
            now: the time, by `time.monotonic`.
            heartbeats: number of status reports so far.
            left: whether this process leaves the job.
        """
        ended = [entry for entry in list(self._recorder.kept)[-_LOOKED_AT:] if entry.end_ns]
        last = max(ended, key=lambda entry: entry.end_ns, default=None)
        failed = [lane.failed for lane in self._lanes() if _failed_lately(lane, now)]
        since = max(last.end_ns / 1e9 if last else self._began, self._resumed)
        return RankStatus(
            heartbeats,
            {lane.key: self._lane(lane, now) for lane in self._lanes()},
            now - since,
            at_s=now,
            host=socket.gethostname(),
            machine=machine(),
            process=self._process,
            last=last.text if last else "",
            where=_where(),
            failed=str(failed[0].error)[:MOST_TEXT] if failed and failed[0] else "",
            left=left,
            connections=tuple(connections()),
        )

    def _lanes(self) -> list[Lane]:
        return list(self._recorder.lanes.values())

    def _lane(self, lane: Lane, now: float) -> LaneStatus:
        first = lane.first()
        if first is None and _failed_lately(lane, now):
            first = lane.failed
        return LaneStatus(
            lane.members,
            lane.entered,
            first.number if first else None,
            self.for_s(first, now) if first else 0.0,
            first.root if first else None,
            tuple(entry.text for entry in list(lane.recent)),
        )


def _failed_lately(lane: Lane, now: float) -> bool:
    return lane.failed is not None and now - lane.failed.end_ns / 1e9 < _FAILED_S


def _where() -> str:
    """The innermost line of user code in the main thread."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((*_OTHERS, "<")):
            return f"{os.path.basename(file)}:{frame.f_lineno} ({frame.f_code.co_name})"
        frame = frame.f_back
    return ""


_OTHERS = tuple(
    {*(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))}
    | {os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}
)
"""Folders of library code: Python's, installed packages' and Gradweave's."""
