"""The learned scheduler: a tuned rule, or two cooperating trained policies, on any network.

The policies were trained with JAX by `gradweave.learning`. Using them only needs NumPy and numba:
an episode is played in milliseconds on small networks, and on networks of any size.
"""

import dataclasses
from typing import ClassVar, Literal

from gradweave.common.lazy import LazyModule
from gradweave.common.stop import Stop
from gradweave.errors import OptionError
from gradweave.schedulers.scheduler import Scheduler, Traits, check_counts, from_stage
from gradweave.schedules.schedule import Collective, Schedule, Stage
from gradweave.topology.topology import Topology

_EPISODES = LazyModule("gradweave.learning.best_episode")
"""Plays the episodes. It is loaded by name, since `learning` imports the strategies."""
ROUTES = 4
"""Most shortest routes to look for between two servers."""


@dataclasses.dataclass(frozen=True)
class Learned(Scheduler):
    """Workload scheduling by a rule with 19 tuned constants, or by trained policies.

    First an episode takes the best action at every step; then, until the bound is met, episodes
    draw their actions by their odds. With grown trees, each round is repaired, and draws are at a
    higher temperature, by the square roots of the odds. The best episode is kept. The other stage
    is this stage reversed.

    Source: sections 4.2 to 4.4 of the paper for the trained policies, whose features the rule
    weighs; docs/concepts/learning.md for what differs, and for what learning adds.
    """

    name: ClassVar[str] = "learned"

    samples: int | None = None
    """Most episodes drawn after the one that takes the best actions; 0 for that episode only. By
    default 16 repaired or 64 other episodes, or fewer on networks so large that they would take
    more than about ten seconds on one core, estimated from the size and not from the clock; none at
    all, and no schedule, if a single episode would take more than a minute."""
    greedy: bool = True
    """Whether to play the episode that takes the best actions."""
    repair: bool = True
    """With grown trees: whether swaps improve each round drawn, and whether rounds (and rounds
    before them) are redrawn if they leave a server more than it can take until the bound."""
    trees: Literal["fixed", "grown"] = "grown"
    """Whether trees grow with the schedule or are the pinned shortest-path trees."""
    routes: int = ROUTES
    """With grown trees: number of shortest routes per pair of servers. The first is by the pinned
    rule, the others are random. With more than 48 servers, one random route per pair of ports is
    kept."""
    workers: int = 1
    """Threads that play in parallel; the result does not depend on their number."""
    weights: str | None = None
    """File of trained policies' weights made by `gradweave learn`; by default the
    shipped weights."""
    policy: Literal["rule", "trained"] | None = None
    """Who decides. ``rule``: a rule that selects all trees and weighs each feature of a workload
    the same on all networks. ``trained``: the trained policies, the paper's method, whose message
    passing sets the weights in each round. By default the trained policies if `weights` are given,
    otherwise the rule."""

    def __post_init__(self) -> None:
        check_counts(self, "samples", least=0)
        check_counts(self, "routes", "workers")
        if self.samples == 0 and not self.greedy:
            raise OptionError(
                "learned: samples=0,greedy=false leaves no episode to play; expected samples of 1 "
                "or more, or greedy=true"
            )
        if self.trees not in ("grown", "fixed"):
            raise OptionError(f"learned: trees: expected grown or fixed, got {self.trees!r}")
        if self.policy not in ("rule", "trained", None):
            raise OptionError(f"learned: policy: expected rule or trained, got {self.policy!r}")
        if self.policy == "rule" and self.weights is not None:
            raise OptionError(
                "learned: weights are for trained policies, but policy=rule has fixed weights; "
                "leave out one of them"
            )

    @property
    def traits(self) -> Traits:
        """The strategy's traits with these options."""
        return Traits(after_proofs=True, one_draw=self.samples == 1 and not self.greedy)

    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        return from_stage(
            self._own_stage,
            lambda network: _EPISODES.best_schedule(self, network, self._own_stage, seed, stop),
            topology,
            collective,
        )

    @property
    def _own_stage(self) -> Stage:
        """The stage that is played; the other is its reverse."""
        return "all_gather" if self.trees == "grown" else "reduce_scatter"
