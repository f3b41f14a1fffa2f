"""Rules for how old a worker's parameters may be: `Sync`, `SSP` and `Async`.

A worker's clock is the number of the step that it computes, or will compute next. A worker may
start its step if its clock is at most the bound ahead of the slowest worker's. This module has the
rules and their options; `clocks` has the protocol.
"""

import dataclasses
from typing import ClassVar

from gradweave.common.specification import UNNAMED, field_kinds, parse_spec, read_options
from gradweave.errors import OptionError, SpecError


@dataclasses.dataclass(frozen=True)
class Sync:
    """One update per step: the mean of all workers' gradients of the same parameters."""

    bound: ClassVar[int | None] = 0
    together: ClassVar[bool] = True
    catch_up: ClassVar[bool] = False

    def __str__(self) -> str:
        return "sync"


@dataclasses.dataclass(frozen=True)
class Async:
    """One update per gradient without any waiting; staleness is unbounded."""

    bound: ClassVar[int | None] = None
    together: ClassVar[bool] = False
    catch_up: ClassVar[bool] = False

    def __str__(self) -> str:
        return "async"


@dataclasses.dataclass(frozen=True)
class SSP:
    """One update per gradient; a worker waits while it is too far ahead of the slowest worker.

    "Ahead" has two meanings here. Without `catch_up`, a clock counts a worker's steps, so in the
    long run nobody is faster than the slowest worker. With `catch_up`, a worker that has pushed
    jumps to the newest clock of all: it holds the others back for the step that it computes, but
    not for steps that it missed, which nobody computes. In both cases, a gradient that is applied
    was computed from parameters read at most `bound` clocks before the newest parameters read, and
    its staleness is at most `staleness_bound`.

    Source: Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter
    Server (2013), section 2, without `catch_up`.
    """

    bound: int
    """Bound in clocks. With 0 all workers wait for each other, yet each gradient is applied
    separately."""
    catch_up: bool = False
    """Whether a worker that has pushed jumps to the newest clock."""
    together: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.bound < 0:
            raise OptionError(
                f"ssp: bound: expected 0 or more clocks, got {self.bound}; "
                "for no bound at all use async"
            )

    def __str__(self) -> str:
        return f"ssp:bound={self.bound}" + (",catch_up=true" if self.catch_up else "")


Consistency = Sync | Async | SSP


def from_spec(text: str | Consistency) -> Consistency:
    """Makes the consistency that a specification describes.

    Args:
        text: ``sync``, ``async``, ``ssp:3``, ``ssp:bound=3,catch_up=true``; a consistency is
            returned unchanged.

    Raises:
        SpecError: the text cannot be parsed.
        OptionError: the bound is below 0.

    >>> from_spec("ssp:3")
    SSP(bound=3, catch_up=False)
    >>> str(from_spec("ssp:bound=3,catch_up=true"))
    'ssp:bound=3,catch_up=true'
    """
    if not isinstance(text, str):
        return text
    name, values = parse_spec(text)
    name = name.lower()
    if name in ("sync", "async"):
        if values:
            raise SpecError(f"{name}: expected no options, got {next(iter(values))!r:.60}")
        return Sync() if name == "sync" else Async()
    if name != "ssp":
        raise SpecError(
            f"no consistency {name!r:.60}; there are sync, async and ssp, as in ssp:bound=3"
        )
    if UNNAMED in values:
        values = {"bound": values[UNNAMED]} | {k: v for k, v in values.items() if k != UNNAMED}
    options = read_options(name, values, field_kinds(SSP))
    if "bound" not in options:
        raise SpecError("ssp needs its bound in clocks, as in ssp:bound=3")
    return SSP(**options)


def staleness_bound(consistency: Consistency, workers: int) -> int | None:
    """The maximum number of updates between a gradient's pull and its update.

    While a worker computes at clock c with bound s, no other worker is below c − s, and none starts
    a step beyond c + s: that is at most 2s + 1 steps per worker.

    Args:
        consistency: the consistency.
        workers: number of workers.

    Returns:
        The number of updates, or None if it is unbounded.

    >>> staleness_bound(SSP(3), workers=4)
    21
    """
    if consistency.together:
        return 0
    if consistency.bound is None:
        return None
    return (workers - 1) * (2 * consistency.bound + 1)
