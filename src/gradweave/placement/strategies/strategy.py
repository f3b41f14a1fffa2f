"""The placement strategy: problem in, table of devices out; one strategy a file."""

import abc
import dataclasses
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.placement.problem import Problem
from gradweave.stop import Stop

Stopped = Literal["time", "tried"]
"""Why a search ended: the time limit is used up, or the strategy has tried all that it tries."""


@dataclasses.dataclass(frozen=True)
class Placer(abc.ABC):
    """One strategy. Its options are its fields, checked at construction.

    A subclass gives `name` and `assign`; nothing else is overridden.
    """

    name: ClassVar[str]
    """The strategy's name on the command line and in files."""
    as_placed: ClassVar[bool] = False
    """Whether order and pipelines are to be taken as they stand, not matched afterwards."""
    anytime: ClassVar[bool] = False
    """Whether the search, once it is stopped, returns the best so far."""
    yields: ClassVar[bool] = False
    """Whether `place` takes a cheaper placement instead, where its bound's proof comes upon one;
    not of what is there to be compared with."""

    def place(
        self, problem: Problem, *, seed: int = 0, time_limit: float | None = None
    ) -> NDArray[np.int64]:
        """Finds a placement of little cost in the exchange model.

        Args:
            problem: what is placed.
            seed: every random choice depends on it alone.
            time_limit: seconds after which to return the best found so far; None to let the
                strategy finish. Strategies that do not search ignore it.

        Returns:
            [S, D] ranks of devices.

        Raises:
            NoScheduleError: where an exact search finds none in its time.
            OptionError: where the problem is too large for the strategy.
        """
        return self.search(problem, seed=seed, time_limit=time_limit)[0]

    def search(
        self, problem: Problem, *, seed: int = 0, time_limit: float | None = None
    ) -> tuple[NDArray[np.int64], Stopped]:
        """What `place` returns, and why the search ended; arguments and errors as there."""
        stop = Stop.after(time_limit)
        devices = self.assign(problem, seed, stop).reshape(problem.stages, problem.data)
        return devices, "time" if self.anytime and stop.reached() else "tried"

    def options(self) -> dict[str, Any]:
        """The strategy's fields, as they are written to a placement's file."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @abc.abstractmethod
    def assign(self, problem: Problem, seed: int, stop: Stop) -> NDArray[np.int64]:
        """Assigns devices to stages; callers use `place`.

        Args:
            problem: what is placed.
            seed: every random choice depends on it alone.
            stop: when to return the best found so far; strategies that do not search ignore it.

        Returns:
            [S·D] ranks of devices, stage after stage, each at most once.
        """


def check_range(placer: Placer, option: str, least: float, most: float) -> None:
    """Refuses an option that is out of range.

    Raises:
        OptionError: names the strategy, the option and its range.
    """
    value = getattr(placer, option)
    if not least <= value <= most:
        raise OptionError(f"{placer.name}: {option}: expected {least:,} to {most:,}, got {value}")
