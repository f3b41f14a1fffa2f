"""Orders transfers by event simulation, improved by passes backwards and forwards."""

import math

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.flows.rounds_kernel import Transfers
from gradweave.schedulers.kernels.wires import Wires
from gradweave.schedulers.ordering.lower import rounds_in_order
from gradweave.schedulers.ordering.paths_in_time_kernel import Paths, most_after, play_paths
from gradweave.stop import UNLIMITED, Stop
from gradweave.topology.topology import Floats, Integers

DRAWN = 0.3
"""How much of the load of a transfer's links is random in the first order, relative to that of the
busiest later link. Without it, if links have about equal loads, parts of one server take the same
way one after the other, and links are idle at the end for up to a tenth of the time."""


def rounds_by_events(
    wires: Wires,
    transfers: Transfers,
    size: Floats,
    *,
    ready_s: Floats | None = None,
    known_s: Floats | None = None,
    turns: int,
    draws: int = 1,
    close: float = 0.0,
    seed: int,
    stop: Stop = UNLIMITED,
) -> tuple[NDArray[np.int64], float]:
    """Rounds that keep the order in which transfers start, and their duration in seconds.

    Links first take the transfers that a busy later link needs. Then, in turns, the schedule is
    played backwards, the last to end first, and forwards again, the last to start backwards first.
    Each link then carries its transfers roughly in the order of their latest possible start.

    Args:
        wires: the transfers' routes.
        transfers: the transfers of the parts, on their planned routes.
        size: [P] bytes of each part.
        ready_s: [P] seconds at which each part's source is ready; 0 if not given.
        known_s: [X] seconds at which similar transfers started in a good plan; the first order
            follows them, and is random otherwise.
        turns: most turns to take.
        draws: most random first orders; the best is taken.
        close: relative gap to the busiest link's load that is close enough.
        seed: the seed of random draws.
        stop: when to take no more turns.

    Returns:
        [X] rounds, in each of which a link has one transfer, and the seconds.

    Source: Valls, Ballestín and Quintanilla, "Justification and RCPSP: A technique that pays",
        2005.
    """
    first, route = transfers.first, transfers.route
    counts = np.diff(first)
    hold = wires.overhead[route] + np.repeat(size, counts) / wires.rate[route]
    last = np.zeros(len(route), bool)
    last[first[1:] - 1] = True
    ready = np.zeros(len(size)) if ready_s is None else np.asarray(ready_s, np.float64)
    paths = Paths(last, route, hold, ready)
    share = np.bincount(route, hold, len(wires.rate)) * wires.rate
    on_links = np.repeat(share, np.diff(wires.first))
    busy = np.bincount(wires.links, on_links, len(wires.bandwidth)) / wires.bandwidth
    most = np.maximum.reduceat(busy[wires.links], wires.first[:-1])[route]
    later, rng = most_after(last, most), np.random.default_rng(seed)
    mirror = np.repeat(first[:-1] + first[1:] - 1, counts) - np.arange(len(route))
    back = Paths(last, route[mirror], hold[mirror], np.zeros(len(size)))
    order, seconds, latest = np.zeros(0, np.int32), math.inf, later
    for number in range(draws * (turns + 1)):
        if number % (turns + 1) == 0:
            latest = -later - DRAWN * rng.random(len(route)) * most if known_s is None else known_s
        start, begun, ends = play_paths(paths, _ranks(latest), wires)
        if ends < seconds:
            order, seconds = begun, float(ends)
        if stop.reached() or seconds <= busy.max() * (1 + close):
            break
        if number % (turns + 1) == turns:
            continue
        start, _, _ = play_paths(back, _ranks(-(start + hold)[mirror]), wires)
        latest = -(start + back.hold)[mirror]
    return _in_rounds(transfers, wires, order), seconds


def _ranks(value: Floats) -> NDArray[np.int32]:
    """[X] rank of each value in ascending order; ties keep their order.

    Values are scaled to integers with the index in the low bits: sorting those takes a fifth of the
    time of a stable sort of floats. Values that differ by less than about 2^-30 of their range
    count as equal.
    """
    count = len(value)
    bits, least = count.bit_length(), value.min()
    scale = (1 << (62 - bits)) / max(value.max() - least, 1e-280)  # all may be equal
    key = ((value - least) * scale).astype(np.int64) << bits | np.arange(count)
    key.sort()
    ranks = np.empty(count, np.int32)
    ranks[key & ((1 << bits) - 1)] = np.arange(count, dtype=np.int32)
    return ranks


def _in_rounds(transfers: Transfers, wires: Wires, order: Integers) -> NDArray[np.int64]:
    """[X] rounds that keep the order in which transfers start, one transfer per link and round."""
    number, count = np.arange(len(order)), np.diff(transfers.first)
    last = np.repeat(transfers.first[1:], count) - 1
    rounds = np.empty(len(order), np.int64)
    rounds[order] = rounds_in_order(
        wires.links,
        wires.first,
        transfers.route[order],
        order.astype(np.int64),
        np.where(number < last, number + 1, len(order))[order],
        len(order) + 1,
        np.ones(len(wires.bandwidth), np.int64),
    )
    return rounds
