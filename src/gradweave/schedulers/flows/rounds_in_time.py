"""Rounds for parts on given paths, in the order in which their transfers start in event time."""

import math

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import UNLIMITED, Stop
from gradweave.schedulers.flows.rounds_kernel import Transfers
from gradweave.schedulers.kernels.precedence import most_after
from gradweave.schedulers.kernels.wires import Wires
from gradweave.schedulers.ordering.list_scheduling import ListScheduler, dependencies, order_of
from gradweave.schedulers.ordering.lower import rounds_in_order
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

    Links first take the transfers that a busy later link needs. Then, in turns, the order is
    improved both ways, see `ListScheduler`.

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
    """
    first, route = transfers.first, transfers.route
    hold = wires.overhead[route] + np.repeat(size, np.diff(first)) / wires.rate[route]
    last = np.zeros(len(route), bool)
    last[first[1:] - 1] = True
    ready, before = np.zeros((1, len(route))), np.flatnonzero(~last)
    ready[0, first[:-1]] = 0.0 if ready_s is None else ready_s
    trees = dependencies(route[None], before, before + 1, ready)
    share = np.bincount(route, hold, len(wires.rate)) * wires.rate
    on_links = np.repeat(share, np.diff(wires.first))
    busy = np.bincount(wires.links, on_links, len(wires.bandwidth)) / wires.bandwidth
    most = np.maximum.reduceat(busy[wires.links], wires.first[:-1])[route]
    later, rng = most_after(last, most), np.random.default_rng(seed)
    scheduler = ListScheduler(trees, wires, np.zeros(1, np.int64), hold)
    best, seconds, start = np.zeros(0), math.inf, later
    for number in range(draws * (turns + 1)):
        if number % (turns + 1):
            start, ends = scheduler.both_ways(start)
        else:
            drawn = -later - DRAWN * rng.random(len(route)) * most
            start, ends, _ = scheduler.dispatched(drawn if known_s is None else known_s)
        if ends < seconds:
            best, seconds = start, ends
        if stop.reached() or seconds <= busy.max() * (1 + close):
            break
    return _in_rounds(transfers, wires, order_of(best)), seconds


def _in_rounds(transfers: Transfers, wires: Wires, order: Integers) -> NDArray[np.int64]:
    """[X] rounds that keep the order in which transfers start, one transfer per link and round."""
    # Each transfer reads a cell of its own, which the transfer before it in its part has written;
    # the last of a part writes a cell that nobody reads.
    number, count = np.arange(len(order)), np.diff(transfers.first)
    last = np.repeat(transfers.first[1:], count) - 1
    rounds = np.empty(len(order), np.int64)
    rounds[order] = rounds_in_order(
        wires.links,
        wires.first,
        transfers.route[order],
        order,
        np.where(number < last, number + 1, len(order))[order],
        len(order) + 1,
        np.ones(len(wires.bandwidth), np.int64),
    )
    return rounds
