"""Baseline placements: devices in order of rank, and in random order."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import Stop
from gradweave.placement.problem import Problem
from gradweave.placement.strategies.strategy import Placer


@dataclasses.dataclass(frozen=True)
class RankOrder(Placer):
    """Devices in order of rank, as launchers number them."""

    name: ClassVar[str] = "rank_order"
    as_placed: ClassVar[bool] = True

    first: Literal["pipeline", "data"] = "pipeline"
    """Whether neighbouring ranks form a pipeline or a data-parallel group."""

    def assign(self, problem: Problem, seed: int, stop: Stop) -> NDArray[np.int64]:
        """Devices of the stages; see `Placer.assign`."""
        used = problem.stages * problem.data
        table = np.arange(used).reshape(problem.data, problem.stages).T
        order = table.ravel() if self.first == "pipeline" else np.arange(used)
        rest = np.arange(used, problem.devices)
        return problem.first_fit(np.concatenate([order, rest]))[:used]


@dataclasses.dataclass(frozen=True)
class RandomOrder(Placer):
    """Devices in random order, with order and pipelines as drawn."""

    name: ClassVar[str] = "random"
    as_placed: ClassVar[bool] = True

    def assign(self, problem: Problem, seed: int, stop: Stop) -> NDArray[np.int64]:
        """Devices of the stages; see `Placer.assign`."""
        order = np.random.default_rng(seed).permutation(problem.devices)
        return problem.first_fit(order)[: problem.stages * problem.data]
