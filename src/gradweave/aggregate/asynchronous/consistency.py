"""How old the parameters may be that a worker computes with: `Sync`, `SSP` and `Async`.

A worker's clock is the number of the step that it computes, or will compute next. A worker may
begin its step when its clock is at most the bound ahead of the slowest worker's. `clocks` has the
protocol; here are only the rules and their options.
"""

import dataclasses
from typing import ClassVar

from gradweave.errors import OptionError, SpecError
from gradweave.specification import UNNAMED, field_kinds, parse_spec, read_options


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
    """One update per gradient, and nobody waits; staleness has no bound."""

    bound: ClassVar[int | None] = None
    together: ClassVar[bool] = False
    catch_up: ClassVar[bool] = False

    def __str__(self) -> str:
        return "async"


@dataclasses.dataclass(frozen=True)
class SSP:
    """One update per gradient, and a worker waits when it is too far ahead of the slowest one.

    "Ahead" has two meanings here. Without `catch_up` a clock counts a worker's steps: in the long
    run nobody is faster than the slowest worker. With it a worker that has pushed takes the newest
    clock of all, so that it holds the others back for the step that it computes and never for those
    that it missed, which nobody computes. Either way no gradient is applied that was computed from
    parameters read more than `bound` clocks before the newest ones read, and its staleness is at
    most `staleness_bound`.

    Source: Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter
    Server (2013), section 2, without `catch_up`.
    """

    bound: int
    """Clocks; with 0 everybody waits for everybody, yet each gradient is applied alone."""
    catch_up: bool = False
    """Whether a worker that has pushed takes the newest clock."""
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
            returned as it is.

    Raises:
        SpecError: the text is not understood.
        OptionError: it is understood, but the bound is below 0.

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
    """The most updates that can be applied between a gradient's pull and its own update.

    While a worker computes at clock c, no other is below c − s, and none begins a step beyond
    c + s: that is 2s + 1 steps of each.

    Args:
        consistency: the rule.
        workers: how many.

    Returns:
        Updates; None where there is no bound.

    >>> staleness_bound(SSP(3), workers=4)
    21
    """
    if consistency.together:
        return 0
    if consistency.bound is None:
        return None
    return (workers - 1) * (2 * consistency.bound + 1)
