"""The learned scheduler: a tuned rule, or two cooperating trained policies, on any network.

The policies were trained with JAX by `gradweave.learning`. Using them only needs NumPy and numba:
`episode` plays an episode in milliseconds on small networks, and works on networks of any size.
"""

import dataclasses
import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from gradweave.errors import NoScheduleError, OptionError
from gradweave.lazy import LazyModule
from gradweave.schedulers.learned.instance import Instance, Trees
from gradweave.schedulers.learned.repair import can_repair
from gradweave.schedulers.learned.tuning import RULE
from gradweave.schedulers.scheduler import Scheduler, Traits, check_counts, from_stage
from gradweave.schedules.schedule import Collective, Schedule, Stage
from gradweave.stop import UNLIMITED, Stop
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    from gradweave.schedulers.learned.compiled_instance import CompiledInstance
    from gradweave.schedulers.learned.episode import Episode, Policy

_TRAINED = LazyModule("gradweave.learning.policies.policy")
"""The trained policies. They are loaded by name, since `learning` imports the strategies."""
ROUTES = 4
"""Most shortest routes to look for between two servers."""
RECEIVERS = 48
"""Most servers, near and far, to which each server may send: behind large switches, the number of
hops that share a link is the square of the number of servers."""
A_MOMENT, TEN_SECONDS, A_MINUTE = 0.3, 10.0, 60.0
A_TRANSFER_S, A_HOP_S, A_PIECE_S = 1.1e-5, 1e-6, 1e-8
"""Approximate time of an episode on one core: per transfer; per hop that shares a link with its
hop; and per piece. Fitted to eleven networks of 54 to 1,024 servers: all were within 30% for the
trained policies; the rule takes between a quarter of it and all."""
BACKTRACKING = 7
"""Approximate slowdown of an episode that misses the bound and therefore backtracks."""
REPAIRED_TEMPERATURE = 2.0
"""Temperature of drawn episodes with repairs: docs/experiments/learning.md compares others."""


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
    trees: Trees = "grown"
    """Whether trees grow with the schedule or are the pinned shortest-path trees."""
    routes: int = ROUTES
    """With grown trees: number of shortest routes per pair of servers. The first is by the pinned
    rule, the others are random. With more than 48 servers, one random route per pair of ports is
    kept."""
    workers: int = 1
    """Threads that play in parallel; the result does not depend on their number."""
    weights: str | None = None
    """File of trained policies' weights made by `python -m gradweave.learning`; by default the
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
        trained = self.policy == "trained" or self.weights is not None
        weights = _TRAINED.read_weights(self.weights) if trained else RULE
        return from_stage(
            self._own_stage,
            lambda network: self._stage(network, weights, seed, stop),
            topology,
            collective,
        )

    @property
    def _own_stage(self) -> Stage:
        """The stage that is played; the other is its reverse."""
        return "all_gather" if self.trees == "grown" else "reduce_scatter"

    def _stage(self, topology: Topology, weights: "Policy", seed: int, stop: Stop) -> Schedule:
        # Imported here: importing compiled modules takes longer than most strategies.
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
    """Number of servers to keep hops to, or None for all if there are few enough."""
    return None if topology.num_servers <= RECEIVERS else RECEIVERS


def _samples(instance: Instance, repair: bool) -> int:
    """Number of samples that take about ten seconds, at most 16 with repair and 64 without.

    Raises:
        NoScheduleError: if a single episode takes over a minute.
    """
    episode_s = _episode_s(instance)
    if episode_s > A_MINUTE:
        raise NoScheduleError(
            f"learned: one episode on {instance.topology.num_servers} servers takes about "
            f"{episode_s:.0f} s; give samples, such as samples=0, to play it anyway"
        )
    if repair and can_repair(instance):
        return int(min(16, TEN_SECONDS // (BACKTRACKING * episode_s)))
    return int(min(64, TEN_SECONDS // episode_s))


def _check_time(instance: Instance, stop: Stop) -> None:
    """Refuses to start an episode that takes longer than the remaining time.

    Raises:
        NoScheduleError: with the time that it takes.
    """
    episode_s, left_s = _episode_s(instance), stop.seconds_left
    if episode_s > max(left_s, A_MOMENT):
        raise NoScheduleError(
            f"learned: one episode takes about {episode_s:.1f} s, but {left_s:.1f} s are left"
        )


def _episode_s(instance: Instance) -> float:
    """Approximate seconds of one episode on one core."""
    hops, servers = instance.hops, instance.topology.num_servers
    on_link = np.bincount(hops.links)
    beside = float(np.square(on_link).sum()) / len(hops.source)  # hops that share a hop's links
    transfer_s = A_TRANSFER_S + beside * A_HOP_S + servers * A_PIECE_S
    return servers * (servers - 1) * transfer_s


def best_of(
    problem: "CompiledInstance",
    weights: "Policy",
    numbers: range,
    *,
    repair: bool = True,
    seed: int = 0,
    workers: int = 1,
    stop: Stop = UNLIMITED,
) -> "Episode | None":
    """Plays episodes until one meets the bound; returns the best.

    Args:
        problem: the problem to schedule.
        weights: what decides: the rule, or the weights of trained policies.
        numbers: numbers of the episodes; number 0 takes the best actions, all others draw theirs,
            at a higher temperature if they are repaired.
        repair: whether they are repaired; see `Learned`.
        seed: the seed of every random choice, together with an episode's number.
        workers: threads that play in parallel.
        stop: when to stop before the bound is met; one episode is always played.

    Returns:
        The best episode, or None if none was completed.
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
