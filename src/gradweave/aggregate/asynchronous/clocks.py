"""The protocol as pure functions: which workers may start, which update applies, how stale it is.

The run on Ray and the simulator both use these functions and make no decisions themselves. Workers
are numbered from 0. A version is the number of updates that had been applied to the parameters when
they were pulled.
"""

import dataclasses
from collections.abc import Collection, Sequence
from typing import TypeVar

from gradweave.aggregate.asynchronous.consistency import Consistency

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Gradient:
    """A gradient that was pushed."""

    worker: int
    clock: int
    """Clock of the step that computed it."""
    version: int
    """Version of the parameters that it was computed from."""


@dataclasses.dataclass(frozen=True)
class Update:
    """An applied mean of gradients."""

    number: int
    """Number of the update, from 1."""
    gradients: tuple[Gradient, ...]
    """Gradients, ordered by worker."""

    @property
    def staleness(self) -> tuple[int, ...]:
        """Number of updates applied between each gradient's pull and this update."""
        return tuple(self.number - 1 - gradient.version for gradient in self.gradients)


@dataclasses.dataclass(frozen=True)
class Clocks:
    """The state of the protocol."""

    clock: tuple[int, ...]
    """The step that each worker computes, or will compute next."""
    computing: tuple[bool, ...]
    """Whether each worker is computing that step."""
    alive: tuple[bool, ...]
    """Whether others wait for a worker: False until it is ready, and between its death and
    replacement."""
    waiting: tuple[Gradient, ...] = ()
    """Gradients that wait for those of the other workers, under `Sync`."""
    updates: int = 0
    """Number of updates applied so far."""


def initial(workers: int) -> Clocks:
    """All workers before their first step."""
    return between_steps((0,) * workers, 0)


def between_steps(clock: Sequence[int], updates: int) -> Clocks:
    """Clocks while no worker computes, as after reading a checkpoint.

    Args:
        clock: clock of each worker.
        updates: number of updates applied so far.
    """
    workers = len(clock)
    return Clocks(tuple(clock), (False,) * workers, (True,) * workers, (), updates)


def without(clocks: Clocks, absent: Collection[int]) -> Clocks:
    """Clocks in which nobody waits for absent workers until they `rejoin`."""
    return dataclasses.replace(
        clocks,
        alive=tuple(alive and worker not in absent for worker, alive in enumerate(clocks.alive)),
    )


def may_start(clocks: Clocks, consistency: Consistency) -> tuple[int, ...]:
    """The workers that may begin their next step now."""
    slowest = _slowest(clocks)
    return tuple(
        worker
        for worker, clock in enumerate(clocks.clock)
        if clocks.alive[worker]
        and not clocks.computing[worker]
        and (consistency.bound is None or clock - slowest <= consistency.bound)
    )


def start(clocks: Clocks, worker: int) -> Clocks:
    """The clocks after a worker starts its step."""
    return dataclasses.replace(clocks, computing=_with(clocks.computing, worker, True))


def push(
    clocks: Clocks, consistency: Consistency, worker: int, version: int
) -> tuple[Clocks, Update | None]:
    """The clocks after a worker pushes its gradient.

    Args:
        clocks: clocks before the push.
        consistency: the consistency.
        worker: number of the worker.
        version: version of the parameters that it computed with.

    Returns:
        The clocks, and the update to apply now, if there is one.
    """
    gradient = Gradient(worker, clocks.clock[worker], version)
    clock = clocks.clock[worker] + 1
    if consistency.catch_up:
        others = [c for other, c in enumerate(clocks.clock) if clocks.alive[other]]
        clock = max(clock, *others)
    clocks = dataclasses.replace(
        clocks,
        clock=_with(clocks.clock, worker, clock),
        computing=_with(clocks.computing, worker, False),
        waiting=(*clocks.waiting, gradient),
    )
    return _next_update(clocks, consistency)


def remove(clocks: Clocks, consistency: Consistency, worker: int) -> tuple[Clocks, Update | None]:
    """The clocks after a worker's death: its step is lost, and nobody waits for it any longer.

    Returns:
        The clocks, and the update that waited for this worker only, if there is one.
    """
    clocks = dataclasses.replace(
        clocks,
        computing=_with(clocks.computing, worker, False),
        alive=_with(clocks.alive, worker, False),
    )
    return _next_update(clocks, consistency)


def rejoin(clocks: Clocks, worker: int) -> Clocks:
    """The clocks after a worker becomes ready, for the first time or as a replacement.

    It starts at its next or lost step, or at the clock of the slowest worker if that is later. If
    no worker is alive, it starts at the newest clock of all.
    """
    others = _slowest(clocks) if any(clocks.alive) else max(clocks.clock)
    clock = max(clocks.clock[worker], others)
    return dataclasses.replace(
        clocks,
        clock=_with(clocks.clock, worker, clock),
        alive=_with(clocks.alive, worker, True),
    )


def resume_clocks(clocks: Clocks) -> tuple[int, ...]:
    """The clocks at which workers would resume if the run ended now; pending steps are repeated."""
    for worker, alive in enumerate(clocks.alive):
        if not alive:
            clocks = rejoin(clocks, worker)
    return clocks.clock


def _next_update(clocks: Clocks, consistency: Consistency) -> tuple[Clocks, Update | None]:
    """Applies the waiting gradients, unless another worker that is alive still has to push."""
    newest = max((gradient.clock for gradient in clocks.waiting), default=0)
    waits = consistency.together and any(clocks.alive) and _slowest(clocks) <= newest
    if not clocks.waiting or waits:
        return clocks, None
    number = clocks.updates + 1
    gradients = tuple(sorted(clocks.waiting, key=lambda gradient: gradient.worker))
    return dataclasses.replace(clocks, waiting=(), updates=number), Update(number, gradients)


def _slowest(clocks: Clocks) -> int:
    return min((c for c, alive in zip(clocks.clock, clocks.alive, strict=True) if alive), default=0)


def _with(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*values[:index], value, *values[index + 1 :])
