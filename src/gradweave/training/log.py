"""A training's log: one line of JSON per update, and curves for TensorBoard and others."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gradweave.atomic import reopened
from gradweave.lazy import summary_writer
from gradweave.training.weights_and_biases import open_run

LOG = "log.jsonl"
BOARD = "tensorboard"


class Log:
    """The files, which a resumed training continues after the update that it resumes from."""

    def __init__(self, folder: Path, updates: int, step: int, project: str | None = None) -> None:
        """Names the files; entering the context opens them.

        Args:
            folder: of the training.
            updates: completed so far; lines of later ones are dropped.
            step: TensorBoard's step of the last of them; later events are dropped.
            project: of Weights & Biases, whose curves are the same; None: not there.
        """
        self._folder, self._updates, self._step = folder, updates, step
        self._project, self._run = project, None

    def __enter__(self) -> "Log":
        if self._project is not None:
            self._run = open_run(self._project, self._folder)
        self._file = reopened(self._folder / LOG, lambda line: _update_of(line) <= self._updates)
        self._board = summary_writer()(str(self._folder / BOARD), purge_step=self._step + 1)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._board.close()
        if self._run is not None:
            self._run.finish()

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Appends rows, one per update, each with its number as ``update``."""
        self._file.writelines(json.dumps(row) + "\n" for row in rows)
        self._file.flush()

    def plot(self, name: str, value: float, step: int) -> None:
        """Adds a point to a curve."""
        self._board.add_scalar(name, value, step)
        if self._run is not None:
            self._run.log({name: value}, step=step)


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The rows of a training's log; an incomplete last line is left out."""
    path = folder / LOG
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if _update_of(line) < math.inf]


def _update_of(line: str) -> float:
    """The update that a line is of; infinity for an incomplete line."""
    try:
        return json.loads(line)["update"]
    except (ValueError, KeyError, TypeError):
        return math.inf
