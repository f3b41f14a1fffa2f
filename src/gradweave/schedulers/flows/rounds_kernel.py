"""Parts that follow given paths, in rounds: links with most left to carry are kept busy.

In each round, ready transfers are taken by urgency as far as links have capacity. If a link must be
used in every remaining round but is idle in this one, transfers are exchanged: a transfer over such
a link comes in, and those in its way go out, as long as the important links are used no less. If
transfers take two ports each, these exchanges are the alternating paths that enlarge a matching.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.schedulers.kernels.events import Events, no_events, pop_event, push_event
from gradweave.schedulers.kernels.slots import (
    Slots,
    any_holder,
    claim,
    is_full,
    no_slots_taken,
    release,
)
from gradweave.topology.topology import Integers

STEEPNESS = 2.0
"""Decay of a link's weight, as an exponent, for each round that it has less left to carry than the
busiest link."""
LEAST_WEIGHT = 0.1
"""Minimum weight of a link for which transfers are exchanged."""
TEMPERATURE = 0.03
"""Temperature of exchanges: roughly how much link weight an exchange may lose, as in annealing.
With none, BCube needed some rounds more."""
KICKS = 20
"""Most parts that are taken out and rerouted to bring one in. In fat-trees, a permutation of
servers has routes, but few."""
DRAWS = 4
"""Transfers tried for such a link before the next one is looked at."""


class Transfers(NamedTuple):
    """The transfers of P parts; each waits for the previous transfer of its part."""

    first: NDArray[np.int64]
    """[P+1] index of each part's first transfer."""
    route: NDArray[np.int64]
    """[X] planned route of each transfer."""
    hop: NDArray[np.int64]
    """[X] hop from server to server; any of its routes is as good."""
    first_route: NDArray[np.int64]
    """[H+1] index of each hop's first route."""
    links: NDArray[np.int64]
    """Link directions of all routes, concatenated."""
    first_link: NDArray[np.int64]
    """[R+1] index of each route's first link."""


class _State(NamedTuple):
    """The current round, and the remaining work."""

    slots: Slots
    """The round's transfers, by part."""
    at: NDArray[np.int64]
    """[P] next transfer of each part."""
    route: NDArray[np.int64]
    """[P] the route that the next transfer takes in this round if sent; otherwise the planned
    one."""
    left: NDArray[np.int64]
    """[L] transfers that each link still has to carry, as planned."""
    weight: NDArray[np.float64]
    """[L] importance of using the link in this round, up to 1."""
    waiting: NDArray[np.int64]
    """[P] unfinished parts, most urgent first; the first `length[0]` entries count."""
    length: NDArray[np.int64]
    """[1] number of unfinished parts."""
    placed: NDArray[np.bool_]
    """[P] whether a part has a transfer in this round."""
    events: Events
    """A heap for sorting."""
    over: NDArray[np.int64]
    """Parts whose next transfer uses each link, link by link."""
    first_over: NDArray[np.int64]
    """[L+1] index of each link's first part in `over`."""
    part: NDArray[np.int64]
    """Parts taken in or out since an exchange began, in order."""
    route_out: NDArray[np.int64]
    """The route that each had; −1 if it was taken in."""
    changed: NDArray[np.int64]
    """[1] number of such changes."""


@kernel
def rounds_of(
    parts: Transfers, capacity: Integers, farther: float, ahead: float, sweeps: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """The round of each transfer, and its route.

    Args:
        parts: the transfers.
        capacity: [L] transfers that each link direction carries per round.
        farther: urgency, in rounds of load, added for each later transfer of a part: parts with a
            long way to go go first, or they delay the end.
        ahead: weight of the load of the busiest later link, relative to that of the transfer's
            links; that link must not be idle at first for want of parts.
        sweeps: passes per round over idle links, to exchange transfers for them.
        seed: the seed of all draws.

    Returns:
        [X] rounds, [X] routes, and the number of rounds.
    """
    count, links = len(parts.first) - 1, len(capacity)
    left, longest = np.zeros(links, np.int64), np.diff(parts.first_link).max()
    for route in parts.route:
        begin, end = parts.first_link[route], parts.first_link[route + 1]
        for i in range(begin, end):
            left[parts.links[i]] += 1
    state = _State(
        no_slots_taken(capacity),
        parts.first[:-1].copy(),
        parts.route[parts.first[:-1]],
        left,
        np.empty(links),
        np.arange(count),
        np.array([count]),
        np.zeros(count, np.bool_),
        no_events(count),
        np.empty(count * longest, np.int64),
        np.zeros(links + 1, np.int64),
        np.empty((KICKS + 1) * (longest + 1), np.int64),
        np.empty((KICKS + 1) * (longest + 1), np.int64),
        np.zeros(1, np.int64),
    )
    rounds, routes = np.empty(len(parts.route), np.int64), np.empty(len(parts.route), np.int64)
    np.random.seed(seed)
    return rounds, routes, _play(parts, state, farther, ahead, sweeps, rounds, routes)


@kernel(inner=True, allocates=False)
def _play(
    parts: Transfers,
    state: Any,
    farther: float,
    ahead: float,
    sweeps: int,
    rounds: Integers,
    routes: Integers,
) -> int:
    now = 0
    while state.length[0]:
        state.slots.used[:] = 0
        _weigh(state)
        _sort(parts, state, farther, ahead)
        _fill(parts, state)
        if sweeps:
            _find_over(parts, state)
            _exchange(parts, state, sweeps)
            _fill(parts, state)
        _send(parts, state, rounds, routes, now)
        now += 1
    return now


@kernel(inlined=True)
def _weigh(state: Any) -> None:
    """Computes the weight of each link."""
    most = 0.0
    for link in range(len(state.left)):
        most = max(most, state.left[link] / state.slots.capacity[link])
    for link in range(len(state.left)):
        less = most - state.left[link] / state.slots.capacity[link]
        state.weight[link] = np.exp(-STEEPNESS * less)


@kernel(inlined=True)
def _sort(parts: Transfers, state: Any, farther: float, ahead: float) -> None:
    """Sorts parts by urgency: much left to carry on the next links, and far to go."""
    state.events.length[0] = 0
    for i in range(state.length[0]):
        part = state.waiting[i]
        most, next_one = 0.0, state.at[part]
        begin, end = _links_of(parts, state, part)
        for j in range(begin, end):
            link = parts.links[j]
            most = max(most, state.left[link] / state.slots.capacity[link])
        later = 0.0
        if ahead > 0.0:
            for x in range(next_one + 1, parts.first[part + 1]):
                for j in range(
                    parts.first_link[parts.route[x]], parts.first_link[parts.route[x] + 1]
                ):
                    link = parts.links[j]
                    later = max(later, state.left[link] / state.slots.capacity[link])
        urgency = most + ahead * later + farther * (parts.first[part + 1] - next_one)
        # Less than a round of load: it only mixes parts that are about as urgent.
        urgency += np.random.random() / 2
        push_event(state.events, -urgency, part, True)
    for i in range(state.length[0]):
        state.waiting[i] = pop_event(state.events, True)


@kernel(inlined=True)
def _fill(parts: Transfers, state: Any) -> None:
    """Takes all parts that fit, most urgent first, by the planned route if that is free."""
    for i in range(state.length[0]):
        if not state.placed[state.waiting[i]]:
            _put_anywhere(parts, state, state.waiting[i])


@kernel(inlined=True)
def _links_of(parts: Transfers, state: Any, part: int) -> Any:
    """The range of links of a part's next transfer."""
    route = state.route[part]
    return parts.first_link[route], parts.first_link[route + 1]


@kernel(inlined=True)
def _find_over(parts: Transfers, state: Any) -> None:
    """Groups the parts by the links of their next transfers."""
    first = state.first_over
    first[:] = 0
    for i in range(state.length[0]):
        begin, end = _links_of(parts, state, state.waiting[i])
        for j in range(begin, end):
            first[parts.links[j] + 1] += 1
    for link in range(len(first) - 1):
        first[link + 1] += first[link]
    for i in range(state.length[0]):
        begin, end = _links_of(parts, state, state.waiting[i])
        for j in range(begin, end):
            state.over[first[parts.links[j]]] = state.waiting[i]
            first[parts.links[j]] += 1
    for link in range(len(first) - 1, 0, -1):
        first[link] = first[link - 1]
    first[0] = 0


@kernel(inner=True, allocates=False)
def _exchange(parts: Transfers, state: Any, sweeps: int) -> None:
    """Brings transfers in over important links with free capacity."""
    for _ in range(sweeps):
        idle = False
        for link in range(len(state.weight)):
            count = state.first_over[link + 1] - state.first_over[link]
            if state.weight[link] < LEAST_WEIGHT or not count:
                continue
            if is_full(state.slots, link):
                continue
            idle = True
            for _ in range(DRAWS):
                part = state.over[state.first_over[link] + np.random.randint(count)]
                if not state.placed[part] and _bring_in(parts, state, part):
                    break
        if not idle:
            return


@kernel(inner=True, allocates=False)
def _bring_in(parts: Transfers, state: Any, part: int) -> bool:
    """Takes a part in, and those in its way out; these are rerouted if they can.

    Transfers in the way of the rerouted ones, on links between switches, are taken out as well, up
    to `KICKS` times. Everything is undone if too much is lost.
    """
    gain = _force(parts, state, part, False)
    waiting, kicks = 0, 0
    while waiting < state.changed[0] and kicks < KICKS:
        out = state.part[waiting]
        if state.route_out[waiting] >= 0 and not state.placed[out]:
            gain += _force(parts, state, out, True)
            kicks += 1
        waiting += 1
    # A loss is accepted with probability exp(gain / temperature) (Metropolis et al. 1953).
    if gain > TEMPERATURE * np.log(np.random.random()):
        state.changed[0] = 0
        return True
    while state.changed[0]:
        state.changed[0] -= 1
        one, route = state.part[state.changed[0]], state.route_out[state.changed[0]]
        if route < 0:
            _take_out(parts, state, one)
        else:
            _put(parts, state, one, route)
    return False


@kernel(inner=True, allocates=False)
def _force(parts: Transfers, state: Any, part: int, ports_free: bool) -> float:
    """Takes a part by the route with the least in its way, ejecting that; returns the gain.

    Args:
        parts: the transfers.
        state: changed, and changes are recorded.
        part: a part not in the round.
        ports_free: whether the first and last link of the route must be free.
    """
    hop, best, least = parts.hop[state.at[part]], -1, np.inf
    begin, end = parts.first_route[hop], parts.first_route[hop + 1]
    drawn = np.random.randint(end - begin)
    for i in range(end - begin):
        route = begin + (drawn + i) % (end - begin)
        first, last = parts.first_link[route], parts.first_link[route + 1]
        if ports_free and (
            is_full(state.slots, parts.links[first]) or is_full(state.slots, parts.links[last - 1])
        ):
            continue
        blocked = 0.0
        for j in range(first, last):
            if is_full(state.slots, parts.links[j]):
                out = any_holder(state.slots, parts.links[j])
                blocked += _worth(parts, state, state.route[out])
        if blocked < least:
            best, least = route, blocked
    if best < 0:
        return 0.0
    gain = _worth(parts, state, best)
    for j in range(parts.first_link[best], parts.first_link[best + 1]):
        if is_full(state.slots, parts.links[j]):
            out = any_holder(state.slots, parts.links[j])
            gain -= _worth(parts, state, state.route[out])
            _note(state, out, state.route[out])
            _take_out(parts, state, out)
    _put(parts, state, part, best)
    _note(state, part, -1)
    return gain


@kernel(inlined=True)
def _note(state: Any, part: int, route: int) -> None:
    """Records that a part was taken in, or out of a route."""
    state.part[state.changed[0]], state.route_out[state.changed[0]] = part, route
    state.changed[0] += 1


@kernel(inlined=True)
def _take_out(parts: Transfers, state: Any, part: int) -> None:
    begin, end = _links_of(parts, state, part)
    release(state.slots, parts.links, begin, end, part)
    state.placed[part], state.route[part] = False, parts.route[state.at[part]]


@kernel(inlined=True)
def _put(parts: Transfers, state: Any, part: int, route: int) -> None:
    """Takes a part by a route, if that is free."""
    begin, end = parts.first_link[route], parts.first_link[route + 1]
    if claim(state.slots, parts.links, begin, end, part):
        state.placed[part], state.route[part] = True, route


@kernel(inlined=True)
def _put_anywhere(parts: Transfers, state: Any, part: int) -> None:
    """Takes a part by its planned route, or else by the hop's next route that is free."""
    hop, route = parts.hop[state.at[part]], parts.route[state.at[part]]
    begin, end = parts.first_route[hop], parts.first_route[hop + 1]
    for _ in range(end - begin):
        _put(parts, state, part, route)
        if state.placed[part]:
            break
        route = route + 1 if route + 1 < end else begin


@kernel(inlined=True)
def _worth(parts: Transfers, state: Any, route: int) -> float:
    worth = 0.0
    for j in range(parts.first_link[route], parts.first_link[route + 1]):
        worth += state.weight[parts.links[j]]
    return worth


@kernel(inlined=True)
def _send(parts: Transfers, state: Any, rounds: Integers, routes: Integers, now: int) -> None:
    """Ends the round: sends the transfers taken, and drops parts that have arrived."""
    waiting = 0
    for i in range(state.length[0]):
        part = state.waiting[i]
        if state.placed[part]:
            state.placed[part] = False
            rounds[state.at[part]], routes[state.at[part]] = now, state.route[part]
            state.route[part] = parts.route[state.at[part]]
            begin, end = _links_of(parts, state, part)
            for j in range(begin, end):
                state.left[parts.links[j]] -= 1
            state.at[part] += 1
        if state.at[part] < parts.first[part + 1]:
            state.route[part] = parts.route[state.at[part]]
            state.waiting[waiting] = part
            waiting += 1
    state.length[0] = waiting
