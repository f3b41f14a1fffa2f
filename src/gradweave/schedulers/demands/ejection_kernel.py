"""Rounds for transfers that wait for nothing: each goes where least is in its way.

What is in its way is taken out and goes elsewhere in turn. What was in vain to find a free place
for before counts more, so that it stays where it is, and others, for which there are more places,
make room. Rounds are added where that goes on for long without fewer being left.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel
from gradweave.schedulers.demands.rounds_kernel import Transfers
from gradweave.topology.topology import Integers

WEIGHT = 10
"""Of a transfer in the way, at first; one more each time that it found no free place. With 1, twos
and threes of light ones went for one heavy one, and ever more were left."""
MORE_ROUNDS = 0.25
"""Share of the rounds by which they may become more."""


class _State(NamedTuple):
    """What is where, and what is left."""

    first_slot: NDArray[np.int64]
    """[L+1] where the slots of each link start, in a round: one for each of its capacity."""
    holder: NDArray[np.int32]
    """[T, slots] transfer in each; −1 where there is room."""
    rounds: NDArray[np.int64]
    """[X] round of each transfer; −1 of those left."""
    routes: NDArray[np.int64]
    """[X] route of each."""
    weight: NDArray[np.int64]
    """[X] of each that is in the way."""
    left: NDArray[np.int64]
    """Transfers that are left; the first `length[0]`."""
    length: NDArray[np.int64]
    """[1] how many they are."""


def rounds_by_ejection(
    parts: Transfers, capacity: Integers, least: int, patience: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """The round of each transfer, and its route.

    Args:
        parts: of one transfer each.
        capacity: [L] transfers that each link direction carries in a round.
        least: rounds to begin with.
        patience: transfers put somewhere, for each, without fewer being left, before a round more.
        seed: of all draws.

    Returns:
        [X] rounds, [X] routes, and how many rounds there are; 0 where they became too many.

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
    """Puts all transfers somewhere; how many rounds there are then, or 0 if more than `most`."""
    np.random.seed(seed)
    for last in range(len(state.left) - 1, 0, -1):  # compiles sooner than a permutation
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
    """Puts a transfer where least is in its way, and takes that out."""
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
    """Weight of what is in a route's way; less is summed once it is more than `enough`.

    The last link is the first looked at: servers' links are the ones that are mostly full.
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
    """Slot of a link that is free, or that has the lightest transfer."""
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
