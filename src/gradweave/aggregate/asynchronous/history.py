"""The results of a run: parameters, a row for each gradient applied, and bytes."""

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
    """A row for each gradient that was applied or left out, in order."""

    update: NDArray[np.int64]
    """Number of the update that applied it, from 1."""
    worker: NDArray[np.int32]
    """That computed it."""
    clock: NDArray[np.int64]
    """Of the worker's step."""
    staleness: NDArray[np.int32]
    """Updates applied between its parameters' pull and its own update."""
    loss: NDArray[np.float64]
    """Computed together with it, before the update."""
    finite: NDArray[np.bool_]
    """Whether the gradient is finite; if not, the update is the mean of its other gradients."""
    seconds: NDArray[np.float64]
    """When it was applied, since the run began; a resumed run continues the count."""

    @property
    def gradients(self) -> int:
        """How many, those that are not finite among them."""
        return len(self.update)

    @property
    def updates(self) -> int:
        """How many were applied."""
        return int(self.update[-1]) if self.gradients else 0

    def gradients_per_s(self, begin_s: float, end_s: float) -> float:
        """Gradients applied per second, between two times."""
        inside = (self.seconds > begin_s) & (self.seconds <= end_s)
        return float(inside.sum() / (end_s - begin_s))


@dataclasses.dataclass(frozen=True)
class RunTraffic:
    """Bytes of arrays, of the steps whose gradients arrived.

    Counted by the workers as they pull and push, from the arrays themselves; Ray's own overhead is
    not counted, and neither are steps that were lost or still under way at the end.
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
    """The result of a run."""

    params: Any
    """After the last update."""
    history: History
    traffic: RunTraffic
    kept: tuple[Kept, ...]
    """Requested by `keep_every`."""
    replaced: int = 0
    """Workers that died and were replaced."""
    recovered: int = 0
    """How often a server was lost and all resumed from the checkpoint."""


@dataclasses.dataclass(frozen=True)
class UpdateReport:
    """Reported after each update."""

    update: int
    gradients: int
    """Applied so far."""
    of: int
    loss: float
    """Mean of the gradients' losses."""
    staleness: int
    """Of its stalest gradient."""
    seconds: float
    servers: tuple[int, ...] = ()
    """Process ids, each on its machine; none where there are no processes."""
    workers: tuple[int, ...] = ()
    """The same; 0 of one that is not there, not yet or no longer."""
    not_finite: tuple[int, ...] = ()
    """Workers whose gradients were not finite, and left out of this update."""
    stale: tuple[int, ...] = ()
    """Staleness of each gradient."""
    aux: tuple[Any, ...] = ()
    """What computations report of the steps that made them, see `Stepped`."""
    replaced: int = 0
    """Workers that died so far, and were replaced."""
    recovered: int = 0
    """How often a server was lost so far, and all resumed from the checkpoint."""


class HistoryBuilder:
    """A history, update by update."""

    def __init__(self, history: History | None = None) -> None:
        self._columns: dict[str, list[Any]] = {
            name: [] if history is None else getattr(history, name).tolist() for name in COLUMNS
        }

    @property
    def gradients(self) -> int:
        """Applied so far."""
        return len(self._columns["update"])

    @property
    def updates(self) -> int:
        """Updates so far."""
        return self._columns["update"][-1] if self.gradients else 0

    def add(self, update: Update, losses: list[float], finite: list[bool], seconds: float) -> None:
        """Adds an update's rows.

        Args:
            update: that was applied.
            losses: of its gradients.
            finite: whether each gradient is.
            seconds: when it was applied.
        """
        gradients = zip(update.gradients, update.staleness, losses, finite, strict=True)
        for gradient, staleness, *rest in gradients:
            row = (update.number, gradient.worker, gradient.clock, staleness, *rest, seconds)
            for column, value in zip(self._columns.values(), row, strict=True):
                column.append(value)

    def build(self) -> History:
        """All rows so far."""
        return History(**{name: np.array(self._columns[name], COLUMNS[name]) for name in COLUMNS})
