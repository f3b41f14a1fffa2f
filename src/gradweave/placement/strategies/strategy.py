"""The protocol of a placement strategy: problem in, table of devices out."""

import abc
import dataclasses
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import Stop
from gradweave.errors import OptionError
from gradweave.placement.problem import Problem

Stopped = Literal["time", "tried"]
"""Why a search ended: the time limit is used up, or the strategy has tried everything it tries."""


@dataclasses.dataclass(frozen=True)
class Placer(abc.ABC):
    """One strategy. Its options are its fields, checked at construction.

    A subclass gives `name` and `assign`; nothing else is overridden.
    """

    name: ClassVar[str]
    """The strategy's name on the command line and in files."""
    as_placed: ClassVar[bool] = False
    """Whether to keep the order and the pipelines as assigned, without matching afterwards."""
    anytime: ClassVar[bool] = False
    """Whether a search that is stopped returns the best result so far."""
    yields: ClassVar[bool] = False
    """Whether `place` may replace the result by a cheaper placement that its bound's proof finds;
    not for baselines."""

    def place(
        self, problem: Problem, *, seed: int = 0, time_limit: float | None = None
    ) -> NDArray[np.int64]:
        """Finds a placement of low cost in the exchange model.

        Args:
            problem: the placement problem.
            seed: determines every random choice.
            time_limit: seconds after which to return the best found so far; None to let the
                strategy finish. Strategies that do not search ignore it.

        Returns:
            [S, D] ranks of devices.

        Raises:
            NoScheduleError: if an exact search finds no proof in time.
            OptionError: if the problem is too large for the strategy.
        """
        return self.search(problem, seed=seed, time_limit=time_limit)[0]

    def search(
        self, problem: Problem, *, seed: int = 0, time_limit: float | None = None
    ) -> tuple[NDArray[np.int64], Stopped]:
        """The result of `place`, and why the search ended; arguments and errors as there."""
        stop = Stop.after(time_limit)
        devices = self.assign(problem, seed, stop).reshape(problem.stages, problem.data)
        return devices, "time" if self.anytime and stop.reached() else "tried"

    def options(self) -> dict[str, Any]:
        """The strategy's fields, as written to a placement's file."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @abc.abstractmethod
    def assign(self, problem: Problem, seed: int, stop: Stop) -> NDArray[np.int64]:
        """Assigns devices to stages; callers use `place`.

        Args:
            problem: the placement problem.
            seed: determines every random choice.
            stop: when to return the best found so far; strategies that do not search ignore it.

        Returns:
            [S·D] ranks of devices, stage after stage, each at most once.
        """


def check_range(placer: Placer, option: str, least: float, most: float) -> None:
    """Rejects an option that is out of range.

    Raises:
        OptionError: names the strategy, the option and its range.
    """
    value = getattr(placer, option)
    if not least <= value <= most:
        raise OptionError(f"{placer.name}: {option}: expected {least:,} to {most:,}, got {value}")
