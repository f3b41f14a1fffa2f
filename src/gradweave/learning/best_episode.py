"""Plays episodes of the rule, or of trained policies, and keeps the best: the strategy `Learned`.

It needs no JAX.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from gradweave.common.stop import UNLIMITED, Stop
from gradweave.environment.instance import Instance
from gradweave.errors import NoScheduleError
from gradweave.learning.episodes.repair import can_repair
from gradweave.learning.episodes.tuning import RULE
from gradweave.learning.policies.policy import read_weights
from gradweave.schedulers.learned import Learned
from gradweave.schedules.schedule import Schedule, Stage
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    from gradweave.learning.episodes.compiled_instance import CompiledInstance
    from gradweave.learning.episodes.episode import Episode, Policy

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


def best_schedule(
    options: Learned, topology: Topology, stage: Stage, seed: int, stop: Stop
) -> Schedule:
    """The schedule of the best episode.

    Args:
        options: the strategy with its options.
        topology: the network.
        stage: the stage to play: the all-gather on grown trees, the reduce-scatter on fixed ones.
        seed: the seed of every random choice.
        stop: when to stop before the bound is met.

    Raises:
        NoScheduleError: no episode was completed, or there is no time for one.
    """
    # Imported here: importing compiled modules takes longer than most strategies.
    from gradweave.learning.episodes.compiled_instance import CompiledInstance

    trained = options.policy == "trained" or options.weights is not None
    weights = read_weights(options.weights) if trained else RULE
    instance = Instance(
        topology, stage, options.trees, routes=options.routes, spread=_spread(topology)
    )
    _check_time(instance, stop)
    samples = options.samples
    if samples is None:
        samples = _samples(instance, options.repair)
    best = best_of(
        CompiledInstance.of(instance),
        weights,
        range(0 if options.greedy else 1, samples + 1),
        repair=options.repair,
        seed=seed,
        workers=options.workers,
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
    from gradweave.learning.episodes.episode import play

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
