"""How a training went: a line of JSON an update, and the same as curves for TensorBoard."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from gradweave.atomic import reopened
from gradweave.lazy import summary_writer
from gradweave.marl.learners.learner import Metrics

LOG = "log.jsonl"
BOARD = "tensorboard"


def row(metrics: Metrics, update: int, steps: int, agents: tuple[str, ...]) -> dict[str, Any]:
    """What one update came to, of every seed.

    Args:
        metrics: [S, ...].
        update: number of updates so far.
        steps: steps so far, of all games.
        agents: [A] names.

    Returns:
        By name, a list over seeds; None stands for the mean of no episode.
    """

    def mean(total: Any) -> list[float | None]:
        pairs = zip(total.tolist(), metrics.episodes.tolist(), strict=True)
        return [round(one / number, 6) if number else None for one, number in pairs]

    return {
        "update": update,
        "steps": steps,
        "episodes": metrics.episodes.tolist(),
        "return": mean(np.asarray(metrics.returns, np.float64).mean(-1)),
        "returns": {agent: mean(metrics.returns[:, i]) for i, agent in enumerate(agents)},
        "length": mean(metrics.lengths),
        **{name: np.asarray(x, np.float64).tolist() for name, x in metrics.figures.items()},
    }


class Log:
    """The files, which go on where a training that was broken off is resumed."""

    def __init__(self, folder: Path, updates: int, steps: int) -> None:
        """Names the files.

        Args:
            folder: in which.
            updates: done so far; what the files say of later ones is forgotten.
            steps: done so far.
        """
        self._path = folder / LOG
        self._board_path = folder / BOARD
        self._updates, self._steps = updates, steps

    def __enter__(self) -> "Log":
        self._file = reopened(self._path, lambda line: _update_of(line) <= self._updates)
        self._board = summary_writer()(str(self._board_path), purge_step=self._steps + 1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        self._board.close()

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Some updates."""
        self._file.writelines(json.dumps(row) + "\n" for row in rows)
        self._file.flush()
        for row in rows:
            for name, value in row.items():
                if name not in ("update", "steps"):
                    self._add(name, value, row["steps"])

    def _add(self, name: str, value: Any, step: int) -> None:
        if isinstance(value, dict):
            for part, own in value.items():
                self._add(f"{name}/{part}", own, step)
            return
        real = [each for each in value if each is not None]
        if real:
            self._board.add_scalar(name, float(np.mean(real)), step)
        for seed, each in enumerate(value if len(value) > 1 and name == "return" else ()):
            if each is not None:
                self._board.add_scalar(f"{name}/seed_{seed}", each, step)


def rows(folder: Path) -> list[dict[str, Any]]:
    """What a training's log says, update by update."""
    return [json.loads(line) for line in _lines(folder / LOG) if _update_of(line) < np.inf]


def _lines(path: Path) -> Iterator[str]:
    if path.exists():
        yield from path.read_text().splitlines()


def _update_of(line: str) -> float:
    """The update that a line is of; a line that was cut off is of none."""
    try:
        return json.loads(line)["update"]
    except (ValueError, KeyError, TypeError):
        return np.inf
