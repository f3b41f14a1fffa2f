"""The learned scheduler: a tuned rule, or what two cooperating policies learned, on any network.

The policies were trained with JAX by `gradweave.learning`. To use them takes NumPy and numba alone:
`episode` plays one in milliseconds on small networks, and on networks of any size.
"""

import dataclasses
import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedule.schedule import Collective, Schedule
from gradweave.schedulers.instance import Instance, Trees
from gradweave.schedulers.learned.policy import PolicyWeights, RuleWeights, read_weights
from gradweave.schedulers.learned.repair import can_repair
from gradweave.schedulers.learned.tuning import RULE
from gradweave.schedulers.scheduler import Scheduler, Traits, check_counts, from_stage
from gradweave.stop import UNLIMITED, Stop
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    from gradweave.schedulers.learned.compiled_instance import CompiledInstance
    from gradweave.schedulers.learned.episode import Episode

ROUTES = 4
"""Shortest routes between two servers that are looked for."""
RECEIVERS = 48
"""Servers, near and far, to which each may send at most: behind large switches the hops that share
a link are the square of the servers."""
A_MOMENT, TEN_SECONDS, A_MINUTE = 0.3, 10.0, 60.0
A_TRANSFER_S, A_HOP_S, A_PIECE_S = 1.1e-5, 1e-6, 1e-8
"""What an episode takes on one core, roughly: for each transfer; for each hop that shares a link
with its hop; and for each piece. Fitted to eleven networks of 54 to 1,024 servers: all were within
30% by the trained policies; the rule takes from a quarter of it to all."""
BACKTRACKING = 7
"""Times as long that an episode takes, about, which does not meet the bound and so backtracks."""
REPAIRED_TEMPERATURE = 2.0
"""Temperature of drawn episodes that are repaired: docs/experiments/learning.md compares others."""


@dataclasses.dataclass(frozen=True)
class Learned(Scheduler):
    """Workload scheduling by a rule of 19 tuned constants, or by trained policies.

    Takes the best action at every step; then, until the bound is met, episodes whose actions are
    drawn by their odds. With grown trees each round is repaired, and draws are hotter, by the
    square roots of the odds. The best of all is kept. The other stage is the reversed one.

    Source: sections 4.2 to 4.4 of the paper for the trained policies, whose features the rule
    weighs; docs/concepts/learning.md for what differs, and for what learning adds.
    """

    name: ClassVar[str] = "learned"

    samples: int | None = None
    """Episodes drawn at most, after the one that takes the best actions; 0 for that one alone. If
    not given, 16 repaired ones or 64 others, or fewer on networks so large that they would take
    more than about ten seconds on one core, reckoned from the size and not from the clock; none at
    all, and no schedule, where one episode would take more than a minute."""
    greedy: bool = True
    """Whether the episode that takes the best actions is played at all."""
    repair: bool = True
    """With grown trees: whether swaps improve each round that was drawn, and rounds that leave a
    server more than it can take until the bound are made again, and rounds before them."""
    trees: Trees = "grown"
    """Whether trees grow with the schedule or are the pinned shortest paths."""
    routes: int = ROUTES
    """With grown trees: shortest routes to look for between two servers, one by the pinned rule,
    others at random; on more than 48 servers one of them is kept, at random, from port to port."""
    workers: int = 1
    """Threads that play side by side; the result does not depend on their number."""
    weights: str | None = None
    """File of weights made by `gradweave learn`, for the trained policies; the shipped ones if not
    given."""
    policy: Literal["rule", "trained"] | None = None
    """Who decides: a rule, whose weight of each feature of a workload is the same on all networks
    and which selects all trees; or the trained policies, the paper's method, whose message passing
    sets the weights anew each round. If not given, the trained policies where `weights` are given,
    and else the rule."""

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
                "learned: weights are of trained policies, and policy=rule has its own; leave out "
                "one of them"
            )

    @property
    def traits(self) -> Traits:
        """What it is like, with these options."""
        return Traits(after_proofs=True, one_draw=self.samples == 1 and not self.greedy)

    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        trained = self.policy == "trained" or self.weights is not None
        weights = read_weights(self.weights) if trained else RULE
        return from_stage(
            self._own_stage,
            lambda network: self._stage(network, weights, seed, stop),
            topology,
            collective,
        )

    @property
    def _own_stage(self) -> Literal["reduce_scatter", "all_gather"]:
        """The stage that is played; the other one is it, reversed."""
        return "all_gather" if self.trees == "grown" else "reduce_scatter"

    def _stage(
        self, topology: Topology, weights: PolicyWeights | RuleWeights, seed: int, stop: Stop
    ) -> Schedule:
        # Importing what is compiled takes longer than most strategies do.
        from gradweave.schedulers.learned.compiled_instance import CompiledInstance

        stage = self._own_stage
        instance = Instance(
            topology, stage, self.trees, routes=self.routes, spread=_spread(topology)
        )
        _check_time(instance, stop)
        samples = self.samples
        if samples is None:
            samples = _samples(instance, self.repair)
        best = best_of(
            CompiledInstance.of(instance),
            weights,
            range(0 if self.greedy else 1, samples + 1),
            repair=self.repair,
            seed=seed,
            workers=self.workers,
            stop=stop,
        )
        if best is None:
            raise NoScheduleError(f"learned: no {stage} of {topology.name!r} was completed")
        return instance.schedule(best.sent_round, best.sent_hop)


def _spread(topology: Topology) -> int | None:
    """Servers to keep hops to; all where there are few enough."""
    return None if topology.num_servers <= RECEIVERS else RECEIVERS


def _samples(instance: Instance, repair: bool) -> int:
    """As many samples as take about ten seconds, at most 16 with repair and 64 without.

    Raises:
        NoScheduleError: where one episode alone takes over a minute.
    """
    episode_s = _episode_s(instance)
    if episode_s > A_MINUTE:
        raise NoScheduleError(
            f"learned: one episode on {instance.topology.num_servers} servers takes about "
            f"{episode_s:.0f} s; give samples, such as samples=0, to play it all the same"
        )
    if repair and can_repair(instance):
        return int(min(16, TEN_SECONDS // (BACKTRACKING * episode_s)))
    return int(min(64, TEN_SECONDS // episode_s))


def _check_time(instance: Instance, stop: Stop) -> None:
    """Refuses to begin an episode that takes longer than there is time.

    Raises:
        NoScheduleError: saying how long it takes.
    """
    episode_s, left_s = _episode_s(instance), stop.seconds_left
    if episode_s > max(left_s, A_MOMENT):
        raise NoScheduleError(
            f"learned: one episode takes about {episode_s:.1f} s; {left_s:.1f} are left"
        )


def _episode_s(instance: Instance) -> float:
    """Seconds that one episode takes on one core, roughly."""
    hops, servers = instance.hops, instance.topology.num_servers
    on_link = np.bincount(hops.links)
    beside = float(np.square(on_link).sum()) / len(hops.source)  # hops that share a hop's links
    transfer_s = A_TRANSFER_S + beside * A_HOP_S + servers * A_PIECE_S
    return servers * (servers - 1) * transfer_s


def best_of(
    problem: "CompiledInstance",
    weights: PolicyWeights | RuleWeights,
    numbers: range,
    *,
    repair: bool = True,
    seed: int = 0,
    workers: int = 1,
    stop: Stop = UNLIMITED,
) -> "Episode | None":
    """Episodes until one meets the bound; the best of all.

    Args:
        problem: what to schedule.
        weights: of the policies, or of the rule in their place.
        numbers: of the episodes; number 0 takes the best actions, all others draw theirs, hotter
            where they are repaired.
        repair: whether they are repaired; see `Learned`.
        seed: of every random choice, together with an episode's number.
        workers: threads that play side by side.
        stop: before the bound is met; one episode is always played.

    Returns:
        The episode; None where none was completed.
    """
    from gradweave.schedulers.learned.episode import play

    best, stop = None, stop.at(problem.instance.bound)
    temperature = REPAIRED_TEMPERATURE if repair and can_repair(problem.instance) else 1.0

    def episode(number: int) -> "Episode":
        return play(
            problem,
            weights,
            seed=(seed, number),
            temperature=temperature if number else 0.0,
            repair=repair,
            stop=stop,
            finish=number == numbers[0],
        )

    with ThreadPoolExecutor(workers) as pool:
        for first in range(0, len(numbers), workers):
            for made in pool.map(episode, numbers[first : first + workers]):
                if made.rounds >= 0 and (best is None or made.rounds < best.rounds):
                    best = made
            if stop.reached(math.inf if best is None else best.rounds):
                break
    return best
