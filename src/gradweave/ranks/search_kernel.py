"""Search for rank orders, compiled: the cost of an order, local search, and all rings."""

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.ranks import pattern as patterns  # the module: kernels are cached by its file
from gradweave.topology.topology import Floats, Integers

TIE = 2e-4
"""Weight of the total load of links, per server, relative to the busiest link: it decides between
orders that load the busiest link equally, and is too small to matter otherwise."""
SPREAD = 0.3
"""Weight in annealing of the mean load of links, weighted by load: it rewards moves that relieve
busy links before the busiest link is relieved. With 0.3, halving and doubling on a random regular
network of 40 servers took 9.80 ms, without it 10.15."""
MOVES = 3
"""Kinds of moves: exchange of two ranks, reversal of a stretch, move of a stretch."""


@kernel(inner=True, allocates=False)
def _cost(
    order: Integers, routes: patterns.Routes, pattern: patterns.Pattern, load: Floats
) -> tuple[float, float, float]:
    """Seconds of an order in the steady state, the total load of links, and their mean load.

    A phase takes as long as its busiest link, or as a ring's piece on its way around. The array
    `load` is 0 before and after.
    """
    total_s, work_s, mean_s = 0.0, 0.0, 0.0
    for p in range(len(pattern.piece)):
        busiest, together, longest, all_s, squares = 0.0, 0.0, 0.0, 0.0, 0.0
        for f in range(pattern.first[p], pattern.first[p + 1]):
            i, j = order[pattern.source[f]], order[pattern.target[f]]
            pair = i * routes.servers + j
            size = pattern.size[f] * (1.0 + routes.padding[i, j] / pattern.piece[p])
            for k in range(routes.first[pair], routes.first[pair + 1]):
                link = routes.links[k]
                taken = size * routes.seconds_per_byte[link]
                squares += taken * (2.0 * load[link] + taken)
                load[link] += taken
                all_s += taken
                busiest = max(busiest, load[link])
            longest = max(longest, routes.fixed_s[i, j])
            together += routes.fixed_s[i, j] + pattern.piece[p] * routes.slowest[i, j]
        for f in range(pattern.first[p], pattern.first[p + 1]):
            pair = order[pattern.source[f]] * routes.servers + order[pattern.target[f]]
            for k in range(routes.first[pair], routes.first[pair + 1]):
                load[routes.links[k]] = 0.0
        if pattern.is_ring[p]:
            total_s += max(busiest, pattern.times[p] * together / pattern.rings[p])
        else:
            total_s += busiest + pattern.times[p] * longest
        work_s += all_s
        mean_s += squares / max(all_s, 1e-300)
    return float(total_s), float(work_s / routes.servers), float(mean_s)


@kernel
def steady_seconds(order: Integers, routes: patterns.Routes, pattern: patterns.Pattern) -> float:
    """Seconds of an order in the steady state.

    Args:
        order: [N] the server at each rank, by its index in order of id.
        routes: routes of all pairs.
        pattern: flows of the all-reduce.
    """
    return _cost(order, routes, pattern, np.zeros(len(routes.seconds_per_byte)))[0]


@kernel(inner=True, allocates=False)
def _move(order: Integers, kind: int, a: int, b: int, c: int) -> None:
    """Exchanges ranks a and b, reverses a to b, or moves a to b so that c is before it; a ≤ b."""
    if kind == 0:
        order[a], order[b] = order[b], order[a]
    elif kind == 1:
        _reverse(order, a, b)
    else:
        # Three reversals move a stretch: of a to b, of b + 1 to c, then of both together.
        _reverse(order, a, b)
        _reverse(order, b + 1, c)
        _reverse(order, a, c)


@kernel(inner=True, allocates=False)
def _reverse(order: Integers, a: int, b: int) -> None:
    while a < b:
        order[a], order[b] = order[b], order[a]
        a, b = a + 1, b - 1


@kernel
def improve(
    start: Integers,
    routes: patterns.Routes,
    pattern: patterns.Pattern,
    tries: int,
    warmth: float,
    most: int,
    seed: int,
    flag: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Simulated annealing from an order.

    Args:
        start: [N] the server at each rank.
        routes: routes of all pairs.
        pattern: flows of the all-reduce.
        tries: maximum number of moves.
        warmth: initial temperature, relative to the best cost.
        most: number of orders to keep.
        seed: seed of the moves.
        flag: [1] ends the search.

    Returns:
        [kept, N] the orders with the lowest steady-state time plus total load (`TIE`), ascending.
    """
    np.random.seed(seed)
    count = len(start)
    load = np.zeros(len(routes.seconds_per_byte))
    order = start.astype(np.int64)
    seconds, work, mean = _cost(order, routes, pattern, load)
    now, best = seconds + TIE * work + SPREAD * mean, seconds + TIE * work
    costs, kept, trial = np.full(most, np.inf), np.zeros((most, count), np.int64), order.copy()
    costs[0], kept[0] = best, order
    since = 0
    for attempt in range(tries):
        if flag[0] or since > tries // 4:
            break
        temperature = warmth * best * (1.0 - attempt / tries) ** 2
        kind = np.random.randint(MOVES)
        a, b = np.random.randint(count), np.random.randint(count)
        if kind == 2:
            b = min(a + np.random.randint(max(count // 4, 1)), count - 1)
        if a > b:
            a, b = b, a
        if a == b and kind < 2:
            continue
        c = 0
        if kind == 2:
            if b + 1 >= count:
                continue
            c = np.random.randint(b + 1, count)
        trial[:] = order
        _move(trial, kind, a, b, c)
        seconds, work, mean = _cost(trial, routes, pattern, load)
        cost = seconds + TIE * work
        guide = cost + SPREAD * mean
        since += 1
        if guide <= now or np.random.random() < np.exp((now - guide) / max(temperature, 1e-300)):
            order[:] = trial
            now = guide
            if cost < best * (1 - 1e-4):
                since = 0
            best = min(best, cost)
            if cost < costs[most - 1]:
                _keep(cost, order, costs, kept)
    return kept[: np.searchsorted(costs, np.inf)]


@kernel(inner=True)
def _keep(cost: float, order: Integers, costs: Floats, kept: Integers) -> None:
    """Inserts an order into those kept, by ascending cost, unless it is there already."""
    place = len(costs) - 1
    while place > 0 and costs[place - 1] > cost:
        place -= 1
    other = place - 1
    while other >= 0 and costs[other] >= cost * (1 - 1e-12):
        if (kept[other] == order).all():
            return
        other -= 1
    for other in range(len(costs) - 1, place, -1):
        costs[other] = costs[other - 1]
        kept[other] = kept[other - 1]
    costs[place] = cost
    kept[place] = order


@kernel
def every_ring(
    routes: patterns.Routes,
    size: float,
    piece: float,
    times: float,
    twin: Integers,
    most: int,
    below: float,
    flag: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.int64], bool]:
    """The best of all rings, by branch and bound.

    A ring starts at the first server, and is extended hop by hop as long as it may be among the
    best: added hops never lower the load of a link, and each server without a hop takes at least
    its cheapest hop.

    Args:
        routes: routes of all pairs.
        size: bytes of each hop.
        piece: bytes of a message.
        times: how often a piece goes around; see `Pattern`.
        twin: [N] the previous server among identical ones, which must come first on the ring; or
            −1.
        most: number of rings to keep.
        below: rings that take at least this long are left out.
        flag: [1] ends the search.

    Returns:
        Steady-state seconds of the best rings, with `TIE`, ascending; the rings; and whether all
        rings were compared.
    """
    count = routes.servers
    delay, work = np.zeros((count, count)), np.zeros((count, count))
    cheapest, lightest = np.full(count, np.inf), np.full(count, np.inf)
    for i in range(count):
        for j in range(count):
            if i == j:
                continue
            delay[i, j] = times * (routes.fixed_s[i, j] + piece * routes.slowest[i, j])
            for k in range(routes.first[i * count + j], routes.first[i * count + j + 1]):
                taken = size + size / piece * routes.padding[i, j]
                work[i, j] += TIE * taken * routes.seconds_per_byte[routes.links[k]] / count
            cheapest[i] = min(cheapest[i], delay[i, j])
            lightest[i] = min(lightest[i], work[i, j])
    load = np.zeros(len(routes.seconds_per_byte))
    costs, orders = np.full(most, below), np.zeros((most, count), np.int64)
    kept = 0
    order, used = np.zeros(count + 1, np.int64), np.zeros(count, np.bool_)
    busiest, together, light = np.zeros(count + 1), np.zeros(count + 1), np.zeros(count + 1)
    together[0], light[0] = cheapest.sum(), lightest.sum()
    following = np.zeros(count + 1, np.int64)
    used[0] = True
    # Unpacked from their tuple, since each access in an allocating loop counts references.
    first, links, padding, each_s = (
        routes.first,
        routes.links,
        routes.padding,
        routes.seconds_per_byte,
    )
    depth = 0  # number of hops so far; the ring is closed after N
    steps = 0
    while depth >= 0:
        steps += 1
        if steps % 4096 == 0 and flag[0]:
            return costs[:kept], orders[:kept], False
        last, j = order[depth], following[depth]
        if depth < count - 1:
            while j < count and (used[j] or (twin[j] >= 0 and not used[twin[j]])):
                j += 1
            if j == count:
                depth = _back(depth, order, used, routes, load, size, piece)
                continue
            following[depth] = j + 1
        else:
            if j > 0:  # closed before
                depth = _back(depth, order, used, routes, load, size, piece)
                continue
            following[depth] = 1
            j = 0
        most_s = busiest[depth]
        padded = size + size / piece * padding[last, j]
        for k in range(first[last * count + j], first[last * count + j + 1]):
            link = links[k]
            load[link] += padded
            most_s = max(most_s, load[link] * each_s[link])
        slow_s = together[depth] - cheapest[last] + delay[last, j]
        light_s = light[depth] - lightest[last] + work[last, j]
        cost = max(most_s, slow_s) + light_s
        if cost >= costs[most - 1] * (1 - 1e-12):
            _unload(last, j, routes, load, size, piece)
        elif depth == count - 1:
            _unload(last, j, routes, load, size, piece)
            place = min(kept, most - 1)
            while place > 0 and costs[place - 1] > cost:
                costs[place] = costs[place - 1]
                orders[place] = orders[place - 1]
                place -= 1
            costs[place] = cost
            orders[place] = order[:count]
            kept = min(kept + 1, most)
        else:
            depth += 1
            order[depth], used[j] = j, True
            busiest[depth], together[depth], light[depth] = most_s, slow_s, light_s
            following[depth] = 0
    return costs[:kept], orders[:kept], True


@kernel(inner=True, allocates=False)
def _unload(
    i: int, j: int, routes: patterns.Routes, load: Floats, size: float, piece: float
) -> None:
    """Removes a hop from its links."""
    pair, padded = i * routes.servers + j, size + size / piece * routes.padding[i, j]
    for k in range(routes.first[pair], routes.first[pair + 1]):
        load[routes.links[k]] -= padded


@kernel(inner=True, allocates=False)
def _back(
    depth: int,
    order: Integers,
    used: NDArray[np.bool_],
    routes: patterns.Routes,
    load: Floats,
    size: float,
    piece: float,
) -> int:
    """Undoes the last hop; returns the previous depth, −1 at the start."""
    if depth > 0:
        _unload(order[depth - 1], order[depth], routes, load, size, piece)
        used[order[depth]] = False
    return depth - 1
