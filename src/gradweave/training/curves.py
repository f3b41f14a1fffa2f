"""Curves for TensorBoard, written immediately, so that a disk error is an error of the training.

The `SummaryWriter` of tensorboardX passes events to a thread; if that thread dies because the disk
is full, the training waits for it forever.
"""

import socket
import time
from pathlib import Path

from gradweave.common.atomic import make_folder
from gradweave.common.lazy import tensorboard

FLUSH_S = 20.0
"""Longest time before a new point appears on disk."""


class Curves:
    """A folder of events, which a resumed training continues in a new file."""

    def __init__(self, folder: Path, purge_step: int) -> None:
        """Opens a file.

        Args:
            folder: folder of the files; created if it is missing.
            purge_step: step from which TensorBoard hides the events of earlier files.
        """
        board = tensorboard()
        make_folder(folder)
        self._event, self._scalar = board.proto.event_pb2.Event, board.summary.scalar
        number = time.monotonic_ns()  # a training may resume within the same second
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{number}"
        self._file = board.record_writer.RecordWriter(str(folder / name))
        self._flushed = 0.0
        log = board.proto.event_pb2.SessionLog
        self._write(0, file_version="brain.Event:2")
        self._write(purge_step, session_log=log(status=log.START))

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Adds a point to a curve."""
        self._write(step, summary=self._scalar(name, value))

    def flush(self) -> None:
        """Writes pending points to disk if `FLUSH_S` have passed since the last write."""
        if time.monotonic() > self._flushed + FLUSH_S:
            self._file.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Writes all pending points to disk."""
        self._file.close()

    def _write(self, step: int, **what: object) -> None:
        self._file.write(self._event(wall_time=time.time(), step=step, **what).SerializeToString())
