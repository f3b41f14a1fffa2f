"""The paper's evolutionary search, with a seed."""

import dataclasses
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import Stop
from gradweave.placement.exchange import exchange_cost
from gradweave.placement.problem import Problem
from gradweave.placement.strategies.annealing import table_of
from gradweave.placement.strategies.strategy import Placer, check_range


@dataclasses.dataclass(frozen=True)
class Evolutionary(Placer):
    """Crosses groups, balances them, moves devices in cycles; a child replaces its worse parent.

    It follows the paper's description, not its program, in which the seed has no effect and a
    misplaced bracket accepts any child.

    Source: Yuan et al., NeurIPS 2022, section 3.3; Moraglio et al. 2007 for the search.
    """

    name: ClassVar[str] = "evolutionary"
    anytime: ClassVar[bool] = True

    population: int = 100
    trials: int = 4900
    points: int = 5
    """Number of labels that a child takes from its first parent."""

    def __post_init__(self) -> None:
        check_range(self, "population", 2, 1_000_000)
        check_range(self, "trials", 0, 10**9)
        check_range(self, "points", 1, 1_000_000)

    def assign(self, problem: Problem, seed: int, stop: Stop) -> NDArray[np.int64]:
        """Devices of the stages; see `Placer.assign`."""
        from gradweave.placement.strategies.evolutionary_kernel import evolve, groups_of

        rng = np.random.default_rng(seed)
        label = np.minimum(np.arange(problem.devices) // problem.data, problem.stages)
        population = np.empty((self.population, problem.devices), np.int64)
        for labels in population:
            labels[problem.first_fit(rng.permutation(problem.devices))] = label
        table = table_of(problem, np.arange(problem.devices))
        with stop.watched() as stop:
            best = evolve(
                table, problem.alike, population, self.trials, self.points,
                int(rng.integers(1 << 31)), stop.flag,
            )  # fmt: skip
        groups = groups_of(best, problem.stages, problem.data)
        return exchange_cost(problem, groups).devices
