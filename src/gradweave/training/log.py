"""A training's log: one line of JSON per update, and curves for TensorBoard and others."""

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gradweave.common.atomic import reopened
from gradweave.errors import FileError
from gradweave.training.curves import Curves
from gradweave.training.weights_and_biases import open_run

LOG = "log.jsonl"
BOARD = "tensorboard"


class Log:
    """The log files; a resumed training continues them after the update that it resumes from.

    Raises:
        FileError: a file cannot be written, as on a full disk; immediately, or with the next rows.
    """

    def __init__(self, folder: Path, updates: int, step: int, project: str | None = None) -> None:
        """Names the files; entering the context opens them.

        Args:
            folder: folder of the training.
            updates: number of completed updates; lines of later updates are dropped.
            step: TensorBoard's step of the last of these updates; later events are dropped.
            project: Weights & Biases project that receives the same curves, or None.
        """
        self._folder, self._updates, self._step = folder, updates, step
        self._project, self._run = project, None

    def __enter__(self) -> "Log":
        if self._project is not None:
            self._run = open_run(self._project, self._folder)
        self._file = reopened(self._folder / LOG, lambda line: _update_of(line) <= self._updates)
        with self._written():
            self._board = Curves(self._folder / BOARD, purge_step=self._step + 1)
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        with contextlib.ExitStack() as stack:
            if kind is not None:  # more important than the failure to write the rest
                stack.enter_context(contextlib.suppress(FileError))
            stack.enter_context(self._written())
            if self._run is not None:
                stack.callback(self._run.finish)
            stack.callback(self._board.close)
            stack.callback(self._file.close)

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        """Raises FileError if the disk is full or can no longer be written."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            raise FileError(f"{self._folder}: its log cannot be written: {reason}") from error

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Appends rows, one per update, each with its number as ``update``."""
        with self._written():
            self._file.writelines(json.dumps(row) + "\n" for row in rows)
            self._file.flush()
            self._board.flush()

    def plot(self, name: str, value: float, step: int) -> None:
        """Adds a point to a curve, unless it is not finite: TensorBoard would warn about it."""
        if not math.isfinite(value):
            return
        with self._written():
            self._board.add_scalar(name, value, step)
        if self._run is not None:
            self._run.log({name: value}, step=step)


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The rows of a training's log, without an incomplete last line."""
    path = folder / LOG
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if _update_of(line) < math.inf]


def _update_of(line: str) -> float:
    """The number of a line's update; infinity for an incomplete line."""
    try:
        return json.loads(line)["update"]
    except (ValueError, KeyError, TypeError):
        return math.inf
