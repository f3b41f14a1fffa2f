"""The results of a run: parameters, one row per gradient, and bytes."""

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
    """One row per gradient that was applied or skipped, in order."""

    update: NDArray[np.int64]
    """Number of the update that includes the gradient, from 1."""
    worker: NDArray[np.int32]
    """Number of the worker that computed it."""
    clock: NDArray[np.int64]
    """Clock of the worker's step."""
    staleness: NDArray[np.int32]
    """Number of updates applied between the pull of its parameters and its update."""
    loss: NDArray[np.float64]
    """Loss, computed together with the gradient, before the update."""
    finite: NDArray[np.bool_]
    """Whether the gradient is finite; if not, the update is the mean of its other gradients."""
    seconds: NDArray[np.float64]
    """Time of the update since the run began; a resumed run continues the count."""

    @property
    def gradients(self) -> int:
        """Number of gradients, including those that are not finite."""
        return len(self.update)

    @property
    def updates(self) -> int:
        """Number of updates applied."""
        return int(self.update[-1]) if self.gradients else 0

    def gradients_per_s(self, begin_s: float, end_s: float) -> float:
        """Gradients applied per second, between two times."""
        inside = (self.seconds > begin_s) & (self.seconds <= end_s)
        return float(inside.sum() / (end_s - begin_s))


@dataclasses.dataclass(frozen=True)
class RunTraffic:
    """Bytes of arrays, for steps whose gradients arrived.

    Workers count the bytes of the arrays that they pull and push. Ray's overhead is not counted,
    and neither are steps that were lost or pending at the end.
    """

    pulled_bytes: NDArray[np.int64]
    """[workers, servers] bytes sent by each server and received by each worker."""
    pushed_bytes: NDArray[np.int64]
    """[workers, servers] bytes sent by each worker and received by each server."""


@dataclasses.dataclass(frozen=True)
class Kept:
    """A copy of the parameters after an update."""

    update: int
    gradients: int
    """Number of gradients applied by then."""
    seconds: float
    params: Any


@dataclasses.dataclass(frozen=True)
class Run:
    """The result of a run."""

    params: Any
    """Parameters after the last update."""
    history: History
    traffic: RunTraffic
    kept: tuple[Kept, ...]
    """The copies that `keep_every` requested."""
    replaced: int = 0
    """Number of workers that died and were replaced."""
    recovered: int = 0
    """Number of times that a server was lost and the run resumed from its checkpoint."""


@dataclasses.dataclass(frozen=True)
class UpdateReport:
    """The report after each update."""

    update: int
    gradients: int
    """Number of gradients applied so far."""
    of: int
    loss: float
    """Mean of the gradients' losses."""
    staleness: int
    """Staleness of the stalest gradient."""
    seconds: float
    servers: tuple[int, ...] = ()
    """Process ids of the servers, each on its machine; empty without processes."""
    workers: tuple[int, ...] = ()
    """Process ids of the workers; 0 for a worker that is not running."""
    not_finite: tuple[int, ...] = ()
    """Workers whose gradients were not finite, and were skipped in this update."""
    stale: tuple[int, ...] = ()
    """Staleness of each gradient."""
    aux: tuple[Any, ...] = ()
    """The reports of the computations about their steps; see `Stepped`."""
    replaced: int = 0
    """Number of workers that have died and been replaced so far."""
    recovered: int = 0
    """Number of times so far that a server was lost and the run resumed from its checkpoint."""


class HistoryBuilder:
    """Builds a history, update by update."""

    def __init__(self, history: History | None = None) -> None:
        self._columns: dict[str, list[Any]] = {
            name: [] if history is None else getattr(history, name).tolist() for name in COLUMNS
        }

    @property
    def gradients(self) -> int:
        """Number of gradients so far."""
        return len(self._columns["update"])

    @property
    def updates(self) -> int:
        """Number of updates so far."""
        return self._columns["update"][-1] if self.gradients else 0

    def add(self, update: Update, losses: list[float], finite: list[bool], seconds: float) -> None:
        """Adds an update's rows.

        Args:
            update: the update.
            losses: losses of its gradients.
            finite: whether each gradient is finite.
            seconds: time of the update.
        """
        gradients = zip(update.gradients, update.staleness, losses, finite, strict=True)
        for gradient, staleness, *rest in gradients:
            row = (update.number, gradient.worker, gradient.clock, staleness, *rest, seconds)
            for column, value in zip(self._columns.values(), row, strict=True):
                column.append(value)

    def build(self) -> History:
        """The history of all rows so far."""
        return History(**{name: np.array(self._columns[name], COLUMNS[name]) for name in COLUMNS})
