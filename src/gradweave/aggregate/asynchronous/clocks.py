"""Who may go on, what is applied and how stale it is: the protocol, as pure functions.

The Ray run and the simulator both ask here and decide nothing themselves. Workers are numbered from
0; a version is the number of updates applied to the parameters that were pulled.
"""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from gradweave.aggregate.asynchronous.consistency import Consistency

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Gradient:
    """A gradient that was pushed."""

    worker: int
    clock: int
    """Of the step that it is from."""
    version: int
    """Of the parameters that it was computed from."""


@dataclasses.dataclass(frozen=True)
class Update:
    """The mean of some gradients, applied."""

    number: int
    """From 1."""
    gradients: tuple[Gradient, ...]
    """By worker."""

    @property
    def staleness(self) -> tuple[int, ...]:
        """Updates applied between each gradient's pull and this one."""
        return tuple(self.number - 1 - gradient.version for gradient in self.gradients)


@dataclasses.dataclass(frozen=True)
class Clocks:
    """Where all workers are."""

    clock: tuple[int, ...]
    """Step that each worker computes, or will compute next."""
    computing: tuple[bool, ...]
    """Whether it computes that step."""
    present: tuple[bool, ...]
    """Whether others wait for it; one that died is not present until it is replaced."""
    held: tuple[Gradient, ...] = ()
    """Gradients that wait for those of the other workers, under `Sync`."""
    updates: int = 0
    """Applied so far."""


def fresh(workers: int) -> Clocks:
    """All workers before their first step."""
    return at_rest((0,) * workers, 0)


def at_rest(clock: Sequence[int], updates: int) -> Clocks:
    """All workers between two steps, as after a checkpoint was read.

    Args:
        clock: of each worker.
        updates: applied so far.
    """
    workers = len(clock)
    return Clocks(tuple(clock), (False,) * workers, (True,) * workers, (), updates)


def may_start(clocks: Clocks, consistency: Consistency) -> tuple[int, ...]:
    """The workers that may begin their next step now."""
    slowest = _slowest(clocks)
    return tuple(
        worker
        for worker, clock in enumerate(clocks.clock)
        if clocks.present[worker]
        and not clocks.computing[worker]
        and (consistency.bound is None or clock - slowest <= consistency.bound)
    )


def started(clocks: Clocks, worker: int) -> Clocks:
    """After a worker began its step."""
    return dataclasses.replace(clocks, computing=_with(clocks.computing, worker, True))


def pushed(
    clocks: Clocks, consistency: Consistency, worker: int, version: int
) -> tuple[Clocks, Update | None]:
    """After a worker pushed its gradient.

    Args:
        clocks: before.
        consistency: the rule.
        worker: which.
        version: of the parameters that it computed with.

    Returns:
        The clocks, and the update that is to be applied now, if there is one.
    """
    gradient = Gradient(worker, clocks.clock[worker], version)
    following = clocks.clock[worker] + 1
    if consistency.catch_up:
        others = [c for other, c in enumerate(clocks.clock) if clocks.present[other]]
        following = max(following, *others)
    clocks = dataclasses.replace(
        clocks,
        clock=_with(clocks.clock, worker, following),
        computing=_with(clocks.computing, worker, False),
        held=(*clocks.held, gradient),
    )
    return _settled(clocks, consistency)


def left(clocks: Clocks, consistency: Consistency, worker: int) -> tuple[Clocks, Update | None]:
    """After a worker died: nobody waits for it any longer, and its step is lost.

    Returns:
        The clocks, and the update that waited for this worker alone, if there is one.
    """
    clocks = dataclasses.replace(
        clocks,
        computing=_with(clocks.computing, worker, False),
        present=_with(clocks.present, worker, False),
    )
    return _settled(clocks, consistency)


def joined(clocks: Clocks, worker: int) -> Clocks:
    """After a worker was replaced: it goes on at its lost step, or where the slowest one is.

    Where nobody is present it takes the newest clock that anybody had.
    """
    others = _slowest(clocks) if any(clocks.present) else max(clocks.clock)
    clock = max(clocks.clock[worker], others)
    return dataclasses.replace(
        clocks,
        clock=_with(clocks.clock, worker, clock),
        present=_with(clocks.present, worker, True),
    )


def cut(clocks: Clocks) -> tuple[int, ...]:
    """The clocks at which all workers go on if everything ends now; their steps are repeated."""
    for worker, here in enumerate(clocks.present):
        if not here:
            clocks = joined(clocks, worker)
    return clocks.clock


def _settled(clocks: Clocks, consistency: Consistency) -> tuple[Clocks, Update | None]:
    """Applies what is held, unless it waits for the gradient of someone present."""
    newest = max((gradient.clock for gradient in clocks.held), default=0)
    waits = consistency.together and any(clocks.present) and _slowest(clocks) <= newest
    if not clocks.held or waits:
        return clocks, None
    number = clocks.updates + 1
    gradients = tuple(sorted(clocks.held, key=lambda gradient: gradient.worker))
    return dataclasses.replace(clocks, held=(), updates=number), Update(number, gradients)


def _slowest(clocks: Clocks) -> int:
    return min((c for c, here in zip(clocks.clock, clocks.present, strict=True) if here), default=0)


def _with(values: tuple[T, ...], place: int, value: T) -> tuple[T, ...]:
    return (*values[:place], value, *values[place + 1 :])
