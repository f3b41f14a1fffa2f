"""Parts that follow given paths, in rounds: links that have most left to carry are kept busy.

In each round transfers that are ready are taken by urgency as far as links have room. Where links
must carry something in every round that is left, but do not in this one, transfers are exchanged:
one over such a link comes in, and those in its way go out, as long as the links that matter are
used no less. Where transfers take two ports each those are the alternating paths by which a
matching is made larger.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel
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
"""How much less a link counts, as an exponent, for each round that it has less left to carry than
the one that has most."""
LEAST_WEIGHT = 0.1
"""Of a link for which transfers are exchanged."""
TEMPERATURE = 0.03
"""Of exchanges: how much of what links are worth may be lost at one, about, as in annealing. Where
none may be, some rounds more were needed on BCube."""
KICKS = 20
"""Parts that are taken out and sent by other routes, at most, to bring one in. In fat-trees a
permutation of servers has routes, but few of them."""
DRAWS = 4
"""Transfers tried for such a link before the next one is looked at."""


class Transfers(NamedTuple):
    """What moves: P parts, each by transfers of which one waits for the one before."""

    first: NDArray[np.int64]
    """[P+1] where the transfers of each part start."""
    route: NDArray[np.int64]
    """[X] the route that each transfer was planned to take."""
    hop: NDArray[np.int64]
    """[X] hop from server to server; any of its routes will do as well."""
    first_route: NDArray[np.int64]
    """[H+1] where the routes of each hop start."""
    links: NDArray[np.int64]
    """Link directions of all routes, one after the other."""
    first_link: NDArray[np.int64]
    """[R+1] where those of each route start."""


class _State(NamedTuple):
    """A round, and what is left to do."""

    slots: Slots
    """The round's transfers, by part."""
    at: NDArray[np.int64]
    """[P] next transfer of each part."""
    route: NDArray[np.int64]
    """[P] the route that it takes if it is sent in this round, else the planned one."""
    left: NDArray[np.int64]
    """[L] transfers that each link has still to carry, as they were planned."""
    weight: NDArray[np.float64]
    """[L] how much it matters that the link is used in this round, up to 1."""
    waiting: NDArray[np.int64]
    """[P] parts under way, most urgent first; the first `length[0]`."""
    length: NDArray[np.int64]
    """[1] how many they are."""
    placed: NDArray[np.bool_]
    """[P] whether a part has a transfer in this round."""
    events: Events
    """To sort by."""
    over: NDArray[np.int64]
    """Parts whose next transfer uses each link, link by link."""
    first_over: NDArray[np.int64]
    """[L+1] where those of each link start."""
    part: NDArray[np.int64]
    """Parts that were taken in or out since an exchange began, one after the other."""
    route_out: NDArray[np.int64]
    """The route that each of them had; −1 where it was taken in."""
    changed: NDArray[np.int64]
    """[1] how many they are."""


@kernel
def rounds_of(
    parts: Transfers, capacity: Integers, farther: float, ahead: float, sweeps: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """The round of each transfer, and its route.

    Args:
        parts: what moves.
        capacity: [L] transfers that each link direction carries in a round.
        farther: rounds of load by which a transfer is more urgent for each further one of its part:
            what has far to go goes first, or the end waits for it.
        ahead: how much the load counts of the busiest link farther on, which must not be idle at
            first for want of parts, beside that of the transfer's own links.
        sweeps: over links that stay idle, to exchange transfers for them, a round.
        seed: of all draws.

    Returns:
        [X] rounds, [X] routes, and how many rounds there are.
    """
    count, links = len(parts.first) - 1, len(capacity)
    left, longest = np.zeros(links, np.int64), 0
    for route in range(len(parts.first_link) - 1):
        longest = max(longest, parts.first_link[route + 1] - parts.first_link[route])
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
    """How much each link matters."""
    most = 0.0
    for link in range(len(state.left)):
        most = max(most, state.left[link] / state.slots.capacity[link])
    for link in range(len(state.left)):
        less = most - state.left[link] / state.slots.capacity[link]
        state.weight[link] = np.exp(-STEEPNESS * less)


@kernel(inlined=True)
def _sort(parts: Transfers, state: Any, farther: float, ahead: float) -> None:
    """Puts the most urgent part first: much left to carry on its next links, and far to go."""
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
        urgency += np.random.random() / 2
        push_event(state.events, -urgency, part, True)
    for i in range(state.length[0]):
        state.waiting[i] = pop_event(state.events, True)


@kernel(inlined=True)
def _fill(parts: Transfers, state: Any) -> None:
    """Takes what has room, most urgent first, by the planned route where that has."""
    for i in range(state.length[0]):
        if not state.placed[state.waiting[i]]:
            _put_anywhere(parts, state, state.waiting[i])


@kernel(inlined=True)
def _links_of(parts: Transfers, state: Any, part: int) -> Any:
    """Where the links of a part's next transfer begin and end."""
    route = state.route[part]
    return parts.first_link[route], parts.first_link[route + 1]


@kernel(inlined=True)
def _find_over(parts: Transfers, state: Any) -> None:
    """Lists the parts by links of their next transfers."""
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
    """Brings transfers in over links that matter and have room."""
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
    """Takes a part in, and those in its way out; these go by other routes, if they can.

    What is in the way of those, on links between switches, is taken out as well, up to `KICKS`
    times. All is undone where too much is lost.
    """
    gain = _force(parts, state, part, False)
    waiting, kicks = 0, 0
    while waiting < state.changed[0] and kicks < KICKS:
        out = state.part[waiting]
        if state.route_out[waiting] >= 0 and not state.placed[out]:
            gain += _force(parts, state, out, True)
            kicks += 1
        waiting += 1
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
    """Takes a part by the route on which least is in its way, which is taken out; what is won.

    Args:
        parts: what moves.
        state: changed, and what has changed is noted.
        part: not in the round.
        ports_free: whether nothing may be in its way on the first and the last link of the route.
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
    """Notes that a part was taken in, or out of a route."""
    state.part[state.changed[0]], state.route_out[state.changed[0]] = part, route
    state.changed[0] += 1


@kernel(inlined=True)
def _take_out(parts: Transfers, state: Any, part: int) -> None:
    begin, end = _links_of(parts, state, part)
    release(state.slots, parts.links, begin, end, part)
    state.placed[part], state.route[part] = False, parts.route[state.at[part]]


@kernel(inlined=True)
def _put(parts: Transfers, state: Any, part: int, route: int) -> None:
    """Takes a part by a route, if that has room."""
    begin, end = parts.first_link[route], parts.first_link[route + 1]
    if claim(state.slots, parts.links, begin, end, part):
        state.placed[part], state.route[part] = True, route


@kernel(inlined=True)
def _put_anywhere(parts: Transfers, state: Any, part: int) -> None:
    """Takes a part by its planned route, or else by the next of its hop that has room."""
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
    """Ends the round: what was taken is sent, and parts that have arrived wait no more."""
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
