"""The default strategy: simulated annealing, then local search in the exact cost."""

import dataclasses
import sys
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import Stop
from gradweave.placement.exchange import exchange_cost
from gradweave.placement.problem import Problem
from gradweave.placement.strategies.strategy import Placer, check_range

NEAREST = 16
"""Number of devices that count as near to each: more than a machine has, fewer than a region."""
MAX_WEIGHTS = (0.0, 0.5)
"""Final weight of maxima in the cost, alternating between restarts. With weight 0, means alone find
pipelines that stay within regions from any start. If only some groups can have near devices (spot
instances, half of which are isolated), means spread these evenly while maxima gather them."""
BATCH = 8
"""Number of restarts whose best tables are improved together before the next batch."""
MOVES = 4_000_000
"""Total moves of all restarts if neither restarts nor a time limit are given: a few seconds."""
PATIENCE, PATIENCE_IN_TIME = 2, 12
"""Consecutive batches without improvement after which a search ends: without a time limit, and
with one. On 20 servers, one batch finds the best of ten seeds for half of them, four for all."""
LOCAL_SEARCHES = 2
"""Number of a batch's best tables that go through a local search."""
LOCAL_SEARCH_STEPS = 3e8
"""Maximum steps of matchings and paths in the local search of a table: about a second."""
SMALL, PERTURBATIONS = 32, 200
"""Number of devices up to which the best table is perturbed and searched again, and how often: with
so few devices every move is large, and annealing may miss the best table next to its result."""
HOT, COLD = 0.01, 5e-4
"""First and last temperature, relative to the mean cost of the first table: a move that costs this
much more is accepted with probability 1/e."""


@dataclasses.dataclass(frozen=True)
class Annealing(Placer):
    """Annealing from several random tables; a local search improves the best.

    Moves exchange two devices, put a device next to a near one, exchange the tails of two
    pipelines, or reverse stretches of stages. The cost shifts from means to maxima as the
    temperature falls (`gradweave.placement.strategies.annealing_kernel`).
    """

    name: ClassVar[str] = "annealing"
    anytime: ClassVar[bool] = True
    yields: ClassVar[bool] = True

    restarts: int = 0
    """Number of restarts. 0: batches until several in a row find nothing better; without a time
    limit, no more restarts than the problem's size allows."""
    moves: int = 6_000
    """Moves of each restart, per device."""

    def __post_init__(self) -> None:
        check_range(self, "restarts", 0, 1_000_000)
        check_range(self, "moves", 1, 10**12)

    def assign(self, problem: Problem, seed: int, stop: Stop) -> NDArray[np.int64]:
        """Devices of the stages; see `Placer.assign`."""
        rng = np.random.default_rng(seed)
        most, patience = self._limits(problem, stop)
        best, fruitless = (np.inf, np.empty(0, np.int64)), 0
        with stop.watched() as stop:
            for first in range(0, most, BATCH):
                if first and (fruitless >= patience or stop.reached()):
                    break
                found = self._batch(problem, range(first, min(first + BATCH, most)), rng, stop)
                fruitless += 1
                if found[0] < best[0] * (1 - 1e-9):
                    best, fruitless = found, 0
        used = best[1][: problem.stages * problem.data]
        return exchange_cost(problem, used.reshape(problem.stages, -1)).devices

    def _limits(self, problem: Problem, stop: Stop) -> tuple[int, int]:
        """Maximum restarts, and consecutive batches that may find nothing better."""
        if self.restarts:
            return self.restarts, self.restarts
        if stop.deadline < np.inf:
            return sys.maxsize, PATIENCE_IN_TIME
        return BATCH * max(1, round(MOVES / (BATCH * self.moves * problem.devices))), PATIENCE

    def _batch(
        self, problem: Problem, restarts: range, rng: np.random.Generator, stop: Stop
    ) -> tuple[float, NDArray[np.int64]]:
        """Cost and [N] devices by position of the best of some restarts, improved."""
        from gradweave.placement.strategies.annealing_kernel import anneal, local_search, perturbed

        near = _nearest(problem)
        moves, scale, found = self.moves * problem.devices, _mean_cost(problem), []
        for restart in restarts:
            if found and stop.reached():
                break
            table = table_of(problem, problem.first_fit(rng.permutation(problem.devices)))
            anneal(
                table, problem.alike, near, moves, HOT * scale, COLD * scale,
                MAX_WEIGHTS[restart % len(MAX_WEIGHTS)], int(rng.integers(1 << 31)), stop.flag,
            )  # fmt: skip
            groups = table.at[: problem.stages * problem.data].reshape(problem.stages, -1)
            found.append((exchange_cost(problem, groups).seconds, restart, table))
        improved = [
            (local_search(table, problem.alike, _tries(problem), stop.flag), restart, table)
            for _, restart, table in sorted(found)[:LOCAL_SEARCHES]
        ]
        cost, _, table = min(improved)
        if problem.devices <= SMALL:
            times = min(PERTURBATIONS, _tries(problem) // problem.devices**2)
            perturbing = int(rng.integers(1 << 31))
            table = perturbed(table, problem.alike, times, cost, perturbing, stop.flag)
            groups = table.at[: problem.stages * problem.data].reshape(problem.stages, -1)
            cost = exchange_cost(problem, groups).seconds
        return cost, table.at


def _tries(problem: Problem) -> int:
    """Exchanges that a local search may try, from the steps of a cost: matchings and a path."""
    from gradweave.placement.exchange_kernel import MAX_PATH

    stages, data = problem.stages, problem.data
    matchings = stages**2 * data**3 / 2 if problem.alike else stages * data**3
    path = stages**2 * 2.0**stages if problem.alike and stages <= MAX_PATH else 0.0
    return max(1, int(LOCAL_SEARCH_STEPS / (matchings + path + 1)))


def table_of(problem: Problem, at: NDArray[np.int64]) -> Any:
    """A table for the compiled loops, which change it.

    Args:
        problem: the placement problem.
        at: [N] devices by position, idle devices last.
    """
    from gradweave.placement.strategies.annealing_kernel import Table

    stages, data = problem.stages, problem.data
    return Table(
        delay=problem.pairs.there_and_back_s,
        per_byte=problem.pairs.there_and_back_s_per_byte,
        moved=problem.activation_bytes,
        part=problem.part_bytes,
        fits=problem.fits,
        at=np.ascontiguousarray(at, np.int64),
        edge=np.zeros((stages - 1, data)),
        exchange=np.zeros((stages, data)),
    )


def _seconds(problem: Problem) -> NDArray[np.float64]:
    """[N, N] seconds of an average boundary and part, as a measure of distance between devices."""
    pairs = problem.pairs
    moved = problem.activation_bytes.sum() + problem.part_bytes.mean() * (problem.data - 1)
    return pairs.there_and_back_s + moved * pairs.there_and_back_s_per_byte


def _nearest(problem: Problem) -> NDArray[np.int64]:
    """[N, K] the nearest devices of each, nearest first."""
    far = _seconds(problem)
    np.fill_diagonal(far, np.inf)
    count = min(NEAREST, problem.devices - 1)
    return np.argsort(far, axis=1, kind="stable")[:, :count].astype(np.int64)


def _mean_cost(problem: Problem) -> float:
    """Approximate cost of a random table."""
    pairs = problem.pairs
    delay = float(pairs.there_and_back_s.mean())
    per_byte = float(pairs.there_and_back_s_per_byte.mean())
    crossings = problem.stages - 1 + (problem.data - 1)
    moved = problem.activation_bytes.sum() + (problem.data - 1) * problem.part_bytes.mean()
    return max(crossings * delay + moved * per_byte, 1e-12)
