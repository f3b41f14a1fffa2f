"""Repairs rounds so that no port idles: swaps after the policies' draws, and backtracking.

If a round leaves a server more than it can still take until the bound, it is redrawn; if that does
not help, so are the rounds before it.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradweave.environment.instance import NEVER, Instance
from gradweave.schedulers.problem import HopTable
from gradweave.schedulers.trees.growing import RULES
from gradweave.schedulers.trees.grown import GrowthSlots

if TYPE_CHECKING:
    from gradweave.learning.episodes.repair_kernel import HopSlots
    from gradweave.learning.episodes.state_kernel import EpisodeArrays

TRIES = 4
"""Attempts at a round that falls short; every second attempt uses swaps only, without draws."""
BACKTRACKS, FURTHER = 10, 4
"""Most backtracks of an episode, and their growth: by one round, then four, sixteen, … to its
start. With fewer, more episodes miss a bound that they can meet: docs/experiments/learning.md."""
HEATS = 0.3, 2.0
"""Minimum temperatures of redraws, alternating from one backtrack to the next: on networks of boxes
nearly all episodes meet the bound with the first, on fat-trees with the second."""


def can_repair(instance: Instance) -> bool:
    """Whether a problem allows swaps: an all-gather on grown trees does."""
    return instance.trees == "grown" and instance.collective == "all_gather"


def slots_of(instance: Instance, intake: NDArray[np.int64]) -> "HopSlots":
    """The problem as arrays for the swaps.

    Args:
        instance: an instance for which `can_repair` is true.
        intake: [N] transfers that each server can take per round.
    """
    from gradweave.learning.episodes.repair_kernel import HopSlots

    servers, hops = instance.topology.num_servers, instance.hops
    slots = GrowthSlots.of(instance.topology, np.arange(servers), hops, most=servers, intake=intake)
    first = np.searchsorted(slots.hop, np.arange(len(hops.source) + 1))
    return HopSlots(slots.growth, slots.hop, first)


class RoundRepair:
    """Repairs the rounds of an episode."""

    def __init__(self, slots: "HopSlots", hops: HopTable) -> None:
        """Prepares for the first round.

        Args:
            slots: the problem.
            hops: its hops.
        """
        self.slots, self.hops = slots, hops
        self.backtracks = 0
        """How often the episode backtracked."""
        servers, pieces = len(slots.growth.intake), len(slots.growth.root)
        self.begin_after(np.full((servers, pieces), NEVER))

    def begin_after(self, sent_hop: NDArray[np.int64]) -> None:
        """Continues in the middle of an episode.

        Args:
            sent_hop: [N, P] hop over which each server was sent each piece; `NEVER` for none.
        """
        from gradweave.learning.episodes.repair_kernel import begin

        self.state = begin(self.slots, sent_hop)
        self.short = False
        """Whether the last round left a server more than it can take until the bound, although the
        round before did not."""

    @property
    def to_backtrack(self) -> int:
        """Rounds to take back; 0 if the last round met its target, or enough were taken back."""
        return FURTHER**self.backtracks if self.short and self.backtracks < BACKTRACKS else 0

    def fill(
        self,
        progress: "EpisodeArrays",
        draw: Callable[[float, int], int],
        at: int,
        rounds_left: int,
        temperature: float,
        rng: np.random.Generator,
    ) -> int:
        """Makes a round: the attempt with the smallest shortfall.

        Args:
            progress: the episode; changed.
            draw: draws the round, given a temperature and a seed.
            at: the round.
            rounds_left: rounds until the bound, including this one; not positive if the bound has
                passed.
            temperature: temperature of the first draws.
            rng: the generator of every random choice.

        Returns:
            Number of transfers of the round.
        """
        from gradweave.learning.episodes.repair_kernel import settle, shortfall, take_back

        short = functools.partial(shortfall, progress.to_come, self.slots.growth.intake)
        lost = rounds_left < 1 or short(rounds_left) > 0
        best, least = np.zeros((0, 3), np.int64), np.inf
        for attempt in range(1 if lost else TRIES):
            take_back(self.hops, progress, at)
            if attempt % 2 == 0:
                again = bool(attempt or self.backtracks)
                heat = max(temperature, HEATS[(self.backtracks + 1) % 2]) if again else temperature
                draw(heat, int(rng.integers(2**32)))
            sent = self._swap(progress, at, max(rounds_left, 1), int(rng.integers(2**32)))
            if len(sent) and short(rounds_left - 1) < least:
                best, least = sent, short(rounds_left - 1)
            if least == 0:
                break
        self.short = least > 0 and not lost
        settle(self.slots, self.state, self.hops, progress, best, at)
        return len(best)

    def _swap(
        self, progress: "EpisodeArrays", at: int, rounds_left: int, seed: int
    ) -> NDArray[np.int64]:
        """[transfers, 3] a round after the swaps, by the first rule of `grown`."""
        from gradweave.learning.episodes.repair_kernel import repair
        from gradweave.schedulers.trees.growing_kernel import GrowingRule

        rule = GrowingRule(*RULES[0])
        return repair(self.slots, self.state, self.hops, progress, rule, at, rounds_left, seed)
