"""Rounds for transfers that wait for nothing: guided ejection search.

Each transfer goes to the place with the lightest transfers in its way. These are ejected and placed
elsewhere in turn. A transfer that found no free place before gets a higher weight, so that it stays
where it is and others, which have more places, make way. A round is added if this goes on for long
without fewer transfers being left.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.schedulers.flows.rounds_kernel import Transfers
from gradweave.topology.topology import Integers

WEIGHT = 10
"""Initial weight of a transfer in the way; it rises by one each time the transfer finds no free
place. With 1, two or three light transfers were ejected for a heavy one, and ever more were
left."""
MORE_ROUNDS = 0.25
"""Share of the initial rounds that may be added."""


class _State(NamedTuple):
    """The transfer in each slot, and the transfers still to place."""

    first_slot: NDArray[np.int64]
    """[L+1] index of each link's first slot in a round; a link has as many slots as capacity."""
    holder: NDArray[np.int32]
    """[T, slots] transfer in each slot; −1 if it is free."""
    rounds: NDArray[np.int64]
    """[X] round of each transfer; −1 if it is still to be placed."""
    routes: NDArray[np.int64]
    """[X] route of each transfer."""
    weight: NDArray[np.int64]
    """[X] weight of each transfer."""
    left: NDArray[np.int64]
    """Transfers still to be placed; the first `length[0]` entries count."""
    length: NDArray[np.int64]
    """[1] number of transfers still to be placed."""


def rounds_by_ejection(
    parts: Transfers, capacity: Integers, least: int, patience: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """The round of each transfer, and its route.

    Args:
        parts: the parts, each of one transfer.
        capacity: [L] transfers that each link direction carries per round.
        least: number of rounds to begin with.
        patience: placements, per transfer, without fewer transfers being left before a round is
            added.
        seed: the seed of all draws.

    Returns:
        [X] rounds, [X] routes, and the number of rounds; 0 if they became too many.

    Source: Nagata and Bräysy, "A powerful route minimization heuristic for the vehicle routing
        problem with time windows", 2009, section 3: guided ejection search.
    """
    count, most = len(parts.route), int(least * (1 + MORE_ROUNDS)) + 1
    first_slot = np.append(0, np.cumsum(capacity))
    state = _State(
        first_slot,
        np.full((most, first_slot[-1]), -1, np.int32),
        np.full(count, -1),
        parts.route.copy(),
        np.full(count, WEIGHT),
        np.arange(count),
        np.array([count]),
    )
    made = place_all(parts, state, least, most, patience * count, seed)
    return state.rounds, state.routes, made


@kernel
def place_all(
    parts: Transfers, state: Any, rounds: int, most: int, patience: int, seed: int
) -> int:
    """Places all transfers; returns the number of rounds, or 0 if it exceeds `most`."""
    np.random.seed(seed)
    for last in range(len(state.left) - 1, 0, -1):  # compiles faster than a permutation
        drawn = np.random.randint(0, last + 1)
        state.left[last], state.left[drawn] = state.left[drawn], state.left[last]
    return _place_all(parts, state, rounds, most, patience)


@kernel(inner=True, allocates=False)
def _place_all(parts: Transfers, state: Any, rounds: int, most: int, patience: int) -> int:
    fewest, vain = state.length[0], 0
    while state.length[0]:
        state.length[0] -= 1
        _place(parts, state, state.left[state.length[0]], rounds)
        vain += 1
        if state.length[0] < fewest:
            fewest, vain = state.length[0], 0
        elif vain > patience:
            rounds, fewest, vain = rounds + 1, state.length[0], 0
            for x in range(len(state.weight)):
                state.weight[x] = WEIGHT
            if rounds > most:
                return 0
    return rounds


@kernel(inner=True, allocates=False)
def _place(parts: Transfers, state: Any, x: int, rounds: int) -> None:
    """Places a transfer where the weight in its way is smallest, and ejects the latter."""
    begin, end = parts.first_route[parts.hop[x]], parts.first_route[parts.hop[x] + 1]
    drawn, alike = np.random.randint(rounds), 0
    least, at, best = np.iinfo(np.int64).max, 0, begin
    for after in range(rounds):
        now = (drawn + after) % rounds
        for route in range(begin, end):
            weight = _in_way(parts, state, now, route, least)
            if weight < least:
                least, at, best, alike = weight, now, route, 1
            elif weight == least:
                # Each of the equal places is the last one drawn with the same probability.
                alike += 1
                if np.random.randint(alike) == 0:
                    at, best = now, route
        if not least:
            break
    if least:
        state.weight[x] += 1
    for i in range(parts.first_link[best], parts.first_link[best + 1]):
        slot = _lightest(state, at, parts.links[i])
        if state.holder[at, slot] >= 0:
            _take_out(parts, state, state.holder[at, slot])
        state.holder[at, slot] = x
    state.rounds[x], state.routes[x] = at, best


@kernel(inner=True, allocates=False)
def _in_way(parts: Transfers, state: Any, now: int, route: int, enough: int) -> int:
    """Total weight in a route's way; the sum stops early once it exceeds `enough`.

    The last link is checked first: links of servers are usually the ones that are full.
    """
    weight, first, last = 0, parts.first_link[route], parts.first_link[route + 1] - 1
    for i in range(first - 1, last):
        link = parts.links[i if i >= first else last]
        holder = state.holder[now, _lightest(state, now, link)]
        if holder >= 0:
            weight += state.weight[holder]
        if weight > enough:
            break
    return weight


@kernel(inlined=True)
def _lightest(state: Any, now: int, link: int) -> int:
    """The free slot of a link, or else the slot with the lightest transfer."""
    begin = state.first_slot[link]
    best, least = begin, np.iinfo(np.int64).max
    for slot in range(begin, state.first_slot[link + 1]):
        holder = state.holder[now, slot]
        weight = state.weight[holder] if holder >= 0 else 0
        if weight < least:
            best, least = slot, weight
    return best


@kernel(inner=True, allocates=False)
def _take_out(parts: Transfers, state: Any, x: int) -> None:
    route, now = state.routes[x], state.rounds[x]
    for i in range(parts.first_link[route], parts.first_link[route + 1]):
        link = parts.links[i]
        for slot in range(state.first_slot[link], state.first_slot[link + 1]):
            if state.holder[now, slot] == x:
                state.holder[now, slot] = -1
    state.rounds[x] = -1
    state.left[state.length[0]] = x
    state.length[0] += 1
