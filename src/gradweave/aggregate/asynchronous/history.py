"""What a run came to: its parameters, a row for each gradient applied, and bytes."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.aggregate.asynchronous.clocks import Update

COLUMNS: dict[str, type] = {
    "update": np.int64,
    "worker": np.int32,
    "clock": np.int64,
    "staleness": np.int32,
    "loss": np.float64,
    "finite": np.bool_,
    "seconds": np.float64,
}


@dataclasses.dataclass(frozen=True)
class History:
    """A row for each gradient that an update took, in order."""

    update: NDArray[np.int64]
    """Number of the update that it was applied by, from 1."""
    worker: NDArray[np.int32]
    """Whose it was."""
    clock: NDArray[np.int64]
    """Of the worker's step."""
    staleness: NDArray[np.int32]
    """Updates applied between its parameters' pull and its own update."""
    loss: NDArray[np.float64]
    """That its worker computed together with it, before the update."""
    finite: NDArray[np.bool_]
    """Whether the gradient is finite; if not, the update is the mean of its other gradients."""
    seconds: NDArray[np.float64]
    """When it was applied, since the run began; a resumed run goes on counting."""

    @property
    def gradients(self) -> int:
        """How many updates took, those that are not finite among them."""
        return len(self.update)

    @property
    def updates(self) -> int:
        """How many were made of them."""
        return int(self.update[-1]) if self.gradients else 0

    def gradients_per_s(self, begin_s: float, end_s: float) -> float:
        """Gradients applied in a second, between two moments."""
        inside = (self.seconds > begin_s) & (self.seconds <= end_s)
        return float(inside.sum() / (end_s - begin_s))


@dataclasses.dataclass(frozen=True)
class Traffic:
    """Bytes of arrays, of the steps whose gradients came in.

    Counted by the workers as they pull and push, from the arrays themselves; what Ray adds to them
    is not counted, and neither are steps that were lost or still under way at the end.
    """

    pulled_bytes: NDArray[np.int64]
    """[workers, servers] sent by each server and received by each worker."""
    pushed_bytes: NDArray[np.int64]
    """[workers, servers] sent by each worker and received by each server."""


@dataclasses.dataclass(frozen=True)
class Kept:
    """The parameters as they were after an update."""

    update: int
    gradients: int
    """Applied by then."""
    seconds: float
    params: Any


@dataclasses.dataclass(frozen=True)
class Run:
    """The outcome of a run."""

    params: Any
    """After the last update."""
    history: History
    traffic: Traffic
    kept: tuple[Kept, ...]
    """Those asked for by `keep_every`."""
    replaced: int = 0
    """Workers that died and were replaced."""
    recovered: int = 0
    """How often a server was lost and all went on from the checkpoint."""


class Log:
    """A history that grows."""

    def __init__(self, history: History | None = None) -> None:
        self._columns: dict[str, list[Any]] = {
            name: [] if history is None else getattr(history, name).tolist() for name in COLUMNS
        }

    @property
    def gradients(self) -> int:
        """Applied so far."""
        return len(self._columns["update"])

    def add(self, update: Update, losses: list[float], finite: list[bool], seconds: float) -> None:
        """Adds an update's rows.

        Args:
            update: which.
            losses: of its gradients.
            finite: whether they are.
            seconds: when it was applied.
        """
        each = zip(update.gradients, update.staleness, losses, finite, strict=True)
        for gradient, staleness, *came in each:
            row = (update.number, gradient.worker, gradient.clock, staleness, *came, seconds)
            for column, value in zip(self._columns.values(), row, strict=True):
                column.append(value)

    def history(self) -> History:
        """All rows so far."""
        return History(**{name: np.array(self._columns[name], COLUMNS[name]) for name in COLUMNS})
