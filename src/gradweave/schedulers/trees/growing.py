"""The search over grown all-gathers: restarts of the compiled greedy until the bound is met."""

import dataclasses
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradweave.stop import UNLIMITED, Stop

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
"""What the restarts go through in turn; the first is the best on most networks."""


@dataclasses.dataclass(frozen=True, eq=False)
class Search:
    """How long to look."""

    seed: int = 0
    restarts: int = 1000
    """Runs at most."""
    workers: int = 1
    """Threads; the result depends on the seed alone, however many there are, unless time runs
    out."""
    stop: Stop = UNLIMITED
    """With a lower bound on the rounds as target. A first run that is late is finished without
    swaps, unless the stop says that it may be given up."""
    first: int = 0
    """Number of the first restart; those before it count as made."""


def search(
    growth: "Growth", how: Search, hints: NDArray[np.int64] | None = None
) -> NDArray[np.int64] | None:
    """Restarts until the target is met; the best all-gather found.

    Args:
        growth: the problem.
        how: how long to look.
        hints: [M, 3] round, piece and hop of what every run tries first, by round.

    Returns:
        [transfers, 3] round, piece and hop; None where no restart completed one.
    """
    hints = np.zeros((0, 3), np.int64) if hints is None else hints
    best: NDArray[np.int64] | None = None
    pieces, servers = len(growth.root), len(growth.intake)
    fewest = pieces * servers  # an all-gather that makes progress each round takes no more
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
    from gradweave.schedulers.trees.growing_kernel import Rule, grow

    rule = Rule(*RULES[seed[1] % len(RULES)])
    mixed = np.random.SeedSequence(seed).generate_state(1)[0]
    target = int(max(stop.target, 0))
    return grow(growth, rule, hints, max_rounds, target, int(mixed), stop.flag, finish)
