"""Searches grown all-gathers: restarts the compiled greedy loop until the bound is met."""

import dataclasses
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import UNLIMITED, Stop

if TYPE_CHECKING:
    from gradweave.schedulers.trees.growing_kernel import Growth

RULES: tuple[tuple[int, int, int, int, int], ...] = (
    # near, everywhere, noise, passes, short
    (1024, 0, 512, 20, 0),
    (1024, 0, 512, 20, 1),
    (1024, 50, 512, 8, 0),
    (1024, 0, 512, 4, 0),
    (1024, 200, 64, 20, 1),
)
"""The rules that restarts use in turn; the first is the best on most networks."""


@dataclasses.dataclass(frozen=True, eq=False)
class Effort:
    """The effort of a search."""

    seed: int = 0
    restarts: int = 1000
    """Most runs."""
    workers: int = 1
    """Threads; the result depends on the seed alone, not on their number, unless time runs out."""
    stop: Stop = UNLIMITED
    """With a lower bound on the rounds as its target. If the first run is late it is finished
    without swaps, unless the stop allows abandoning it."""
    first: int = 0
    """Number of the first restart; earlier restarts count as done."""


def search(
    growth: "Growth", how: Effort, hints: NDArray[np.int64] | None = None
) -> NDArray[np.int64] | None:
    """Restarts until the target is met; returns the best all-gather found.

    Args:
        growth: the problem.
        how: the effort.
        hints: [M, 3] round, piece and hop of the transfers that every run tries first, by round.

    Returns:
        [transfers, 3] round, piece and hop; None if no restart completed an all-gather.
    """
    hints = np.zeros((0, 3), np.int64) if hints is None else hints
    best: NDArray[np.int64] | None = None
    pieces, servers = len(growth.root), len(growth.intake)
    fewest = pieces * servers  # an all-gather that makes progress in each round needs no more
    with ThreadPoolExecutor(how.workers) as pool, how.stop.watched() as stop:

        def run(restart: int, most: int) -> NDArray[np.int64]:
            finish = restart == how.first and not stop.dispensable
            return _restart(growth, hints, most, stop, (how.seed, restart), finish)

        for first in range(how.first, how.restarts, how.workers):
            seeds = range(first, min(first + how.workers, how.restarts))
            for transfers in pool.map(run, seeds, itertools.repeat(fewest - 1)):
                if len(transfers) and int(transfers[-1, 0]) + 1 < fewest:
                    best, fewest = transfers, int(transfers[-1, 0]) + 1
            if stop.reached(fewest):
                break
    return best


def _restart(
    growth: "Growth",
    hints: NDArray[np.int64],
    max_rounds: int,
    stop: Stop,
    seed: tuple[int, int],
    finish: bool,
) -> NDArray[np.int64]:
    from gradweave.schedulers.trees.growing_kernel import GrowingRule, grow

    rule = GrowingRule(*RULES[seed[1] % len(RULES)])
    mixed = np.random.SeedSequence(seed).generate_state(1)[0]
    target = int(max(stop.target, 0))
    return grow(growth, rule, hints, max_rounds, target, int(mixed), stop.flag, finish)
