"""The methods of local updates and their options; made and checked without JAX.

θ are a worker's parameters, φ those that it last agreed on with others, and Δ = θ − φ is its
progress since then.
"""

import dataclasses
from typing import Any, ClassVar, TypeVar

from gradweave.aggregate.rules import MAX_LOCAL_STEPS
from gradweave.common.checks import check_above_zero, check_at_least_one, check_share
from gradweave.errors import OptionError

Vector = TypeVar("Vector", bound=Any)
"""An array of JAX or PyTorch, or a number."""


@dataclasses.dataclass(frozen=True)
class DiLoCo:
    """All workers average Δ every `local_steps` steps, and apply it like a gradient with momentum.

    m ← μ·m + mean Δ, φ ← φ + η·(mean Δ + μ·m), θ ← φ.

    Source: Douillard et al. 2023 (DiLoCo), algorithm 1. η and μ are the recommended values for
    trainings with many averages; `outer_settings` has others for few averages.
    """

    name: ClassVar[str] = "diloco"
    pairwise: ClassVar[bool] = False

    local_steps: int = 50
    """Steps between two averages of the same parameter."""
    outer_rate: float = 0.7
    """η."""
    outer_momentum: float = 0.9
    """μ, from 0 to below 1."""
    fragments: int = 1
    """Number of parts of the parameters, which are averaged in turn at equal intervals."""
    delay: int = 0
    """Number of steps that workers continue while an average is being computed."""
    keep: float = 0.0
    """Share of its θ that a worker keeps when an average arrives: θ ← keep·θ + (1 − keep)·φ."""
    quorum: int = 1
    """Number of workers that must be in time; with fewer, the round is skipped."""
    in_time: float = 0.0
    """Share of the steps since the last average that a worker must have made to be in time. A
    worker without any step never is."""

    def __post_init__(self) -> None:
        _check_local_steps(self.local_steps)
        check_above_zero(self, "outer_rate")
        _check_momentum(self.outer_momentum)
        check_at_least_one(self, "fragments", "quorum")
        check_share(self, "keep", "in_time")
        if self.local_steps % self.fragments:
            raise OptionError(
                f"fragments: expected a divisor of local_steps, {self.local_steps}, so that they "
                f"take turns at equal intervals, got {self.fragments}"
            )
        if not 0 <= self.delay < self.interval:
            raise OptionError(
                f"delay: expected 0 to {self.interval - 1}, so that an average arrives before the "
                f"next starts, got {self.delay}"
            )

    @property
    def interval(self) -> int:
        """Steps between two communications."""
        return self.local_steps // self.fragments

    def check_workers(self, workers: int) -> None:
        """Refuses a quorum larger than the number of workers.

        Raises:
            OptionError: the message has both numbers.
        """
        if self.quorum > workers:
            raise OptionError(f"quorum: expected 1 to {workers}, got {self.quorum}")

    def outer_step(self, shared: Vector, momentum: Vector, change: Vector) -> tuple[Vector, Vector]:
        """New φ and m after an average.

        Args:
            shared: φ.
            momentum: m.
            change: mean of Δ.

        >>> DiLoCo(outer_rate=0.5, outer_momentum=0.5).outer_step(10.0, 2.0, 4.0)
        (13.25, 5.0)
        """
        after: Any = self.outer_momentum * momentum + change
        return shared + self.outer_rate * (change + self.outer_momentum * after), after


FEW_AVERAGES = 100
"""Number of averages below which less momentum is better: it was with 30 averages, but not with
120."""


def outer_settings(averages: int) -> dict[str, float]:
    """Outer rate and momentum of DiLoCo for a training with a given number of averages.

    A momentum of 0.9 needs tens of averages to take effect and to forget outdated changes. With
    fewer than `FEW_AVERAGES`, the momentum is 0.7 at a rate of 1; otherwise both are the values
    that DiLoCo's authors recommend, which are the defaults.

    Args:
        averages: steps of the training divided by `local_steps`.

    Raises:
        OptionError: fewer than one.

    >>> outer_settings(30)
    {'outer_rate': 1.0, 'outer_momentum': 0.7}
    >>> DiLoCo(local_steps=10, **outer_settings(3000 // 10)) == DiLoCo(local_steps=10)
    True
    """
    if averages < 1:
        raise OptionError(f"averages: expected at least 1, got {averages}")
    if averages < FEW_AVERAGES:
        return {"outer_rate": 1.0, "outer_momentum": 0.7}
    return {"outer_rate": DiLoCo.outer_rate, "outer_momentum": DiLoCo.outer_momentum}


@dataclasses.dataclass(frozen=True)
class StreamingDiLoCo(DiLoCo):
    """DiLoCo in fragments, with averages computed while the workers continue.

    A communication has only one fragment, which lowers the peak bandwidth by that factor.

    Source: Douillard et al. 2025 (Streaming DiLoCo), algorithm 2; `delay` and `keep` are its τ and
    α.
    """

    name: ClassVar[str] = "streaming_diloco"

    fragments: int = 5
    delay: int = 5
    keep: float = 0.5


@dataclasses.dataclass(frozen=True)
class NoLoCo:
    """Random pairs exchange Δ and φ, so nobody waits for more than one other worker.

    m ← μ·m + η·mean Δ − γ·(φ − mean φ), φ ← φ + m, θ ← φ, with the means over the pair. Workers' φ
    differ, and γ draws them together.

    Source: Kolehmainen et al. 2025 (NoLoCo), section 3, with n = 2.
    """

    name: ClassVar[str] = "noloco"
    pairwise: ClassVar[bool] = True

    local_steps: int = 50
    """Steps between two exchanges."""
    outer_rate: float = 0.7
    """η."""
    outer_momentum: float = 0.5
    """μ, from 0 to below 1."""
    consensus: float = 1.0
    """γ, above μ and below 2 + μ: within these bounds differences between the workers decay."""

    def __post_init__(self) -> None:
        _check_local_steps(self.local_steps)
        check_above_zero(self, "outer_rate")
        _check_momentum(self.outer_momentum)
        least, most = self.outer_momentum, 2 + self.outer_momentum
        if not least < self.consensus < most:
            raise OptionError(
                f"consensus: expected above outer_momentum and below 2 more, {least:g} to "
                f"{most:g}, got {self.consensus:g}"
            )

    def check_workers(self, workers: int) -> None:
        """Accepts any number of workers; if it is odd, one has no partner in each exchange."""


LocalMethod = DiLoCo | NoLoCo
LOCAL: dict[str, type[LocalMethod]] = {
    method.name: method for method in (DiLoCo, StreamingDiLoCo, NoLoCo)
}
"""The methods of local updates by name."""


def _check_local_steps(steps: int) -> None:
    if not 1 <= steps <= MAX_LOCAL_STEPS:
        raise OptionError(f"local_steps: expected 1 to {MAX_LOCAL_STEPS:,}, got {steps}")


def _check_momentum(momentum: float) -> None:
    if not 0 <= momentum < 1:
        raise OptionError(f"outer_momentum: expected 0 to below 1, got {momentum}")
