"""Base trees under a symmetry: the compiled loop.

A hop is ready if its sender holds a piece that its receiver lacks. Ready hops are kept in one list,
from which some are drawn at random. Among those that fit, the hop whose receiver could be reached
from the fewest sides is taken, so that receivers left for the end can be reached from many.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.schedulers.kernels.slots import fits
from gradweave.schedulers.problem import HopTable, Integers

DRAWS = 6
"""Number of ready hops drawn for each choice: more draws find hops that fit better, but cost
proportionally more. Chosen by hand, and compiled in, since every choice loops this often."""


class HopOrbits(NamedTuple):
    """Hops of the whole network, with links given as orbits."""

    hops: HopTable
    """Its links are orbits."""
    root: Integers
    """[B] rank of each base tree's root."""
    capacity: Integers
    """[R] hops that each orbit carries per round."""


@kernel
def grow_base_trees(orbits: HopOrbits, most: int, seed: int, stop: NDArray[np.bool_]) -> Integers:
    """[B·(N−1), 3] round, base tree and hop; no rows if `most` rounds are too few.

    Args:
        orbits: the problem.
        most: rounds after which to give up.
        seed: the seed of every random choice.
        stop: [1] set by another thread when time is up.
    """
    np.random.seed(seed)
    target, links, first_link = orbits.hops.target, orbits.hops.links, orbits.hops.first_link
    bases, servers, hops = len(orbits.root), len(orbits.hops.first_leaving) - 1, len(target)
    holds = np.zeros((bases, servers), np.bool_)
    near = np.zeros((bases, servers), np.int32)
    ready = np.empty(bases * hops, np.int64)
    count = np.int64(0)  # a fixed type, so that callees are compiled once
    transfers = np.empty((bases * (servers - 1), 3), np.int64)
    done = 0
    for base in range(bases):
        holds[base, orbits.root[base]] = True
        count = _open(orbits, holds, near, ready, count, base, orbits.root[base])
    used = np.zeros(len(orbits.capacity), np.int64)
    at = 0
    while done < len(transfers):
        left = most - at
        if left <= 0 or len(transfers) - done > left * orbits.capacity.sum():
            return np.empty((0, 3), np.int64)
        used[:] = 0
        before = done
        while count and not stop[0]:
            place, count = _draw(orbits, holds, near, ready, count, used)
            if place < 0:
                break
            base, hop = divmod(ready[place], hops)
            for i in range(first_link[hop], first_link[hop + 1]):
                used[links[i]] += 1
            holds[base, target[hop]] = True
            transfers[done, 0], transfers[done, 1], transfers[done, 2] = at, base, hop
            done += 1
            count -= 1
            ready[place] = ready[count]
        if done == before or stop[0]:
            return np.empty((0, 3), np.int64)
        for i in range(before, done):
            base, hop = transfers[i, 1], transfers[i, 2]
            count = _open(orbits, holds, near, ready, count, base, target[hop])
        at += 1
    return transfers


@kernel(inner=True, allocates=False)
def _open(
    orbits: HopOrbits,
    holds: NDArray[np.bool_],
    near: NDArray[np.int32],
    ready: Integers,
    count: Any,
    base: int,
    server: Any,
) -> Any:
    """Adds the hops by which a server can pass a piece on; returns the number of ready hops."""
    target, leaving, first = orbits.hops.target, orbits.hops.leaving, orbits.hops.first_leaving
    hops = len(target)
    for i in range(first[server], first[server + 1]):
        hop = leaving[i]
        near[base, target[hop]] += 1
        if not holds[base, target[hop]]:
            ready[count] = base * hops + hop
            count += 1
    return count


@kernel(inner=True, allocates=False)
def _draw(
    orbits: HopOrbits,
    holds: NDArray[np.bool_],
    near: NDArray[np.int32],
    ready: Integers,
    count: Any,
    used: Integers,
) -> tuple[Any, Any]:
    """The position of the hop to take (−1 if none fits), and the number of ready hops left.

    Hops whose receiver was reached in the meantime are dropped along the way.
    """
    target = orbits.hops.target
    hops = len(target)
    best, fewest = -1, 1 << 30
    drawn = 0
    while drawn < DRAWS and count:
        place = np.random.randint(count)
        base, hop = divmod(ready[place], hops)
        if holds[base, target[hop]]:
            count -= 1
            ready[place] = ready[count]
            best, fewest = -1, 1 << 30  # the best hop may have moved
            continue
        drawn += 1
        if _room(orbits, used, hop) and near[base, target[hop]] < fewest:
            best, fewest = place, near[base, target[hop]]
    if best >= 0 or not _any_room(orbits, used):
        return best, count
    offset = np.random.randint(count) if count else 0
    place = 0
    while place < count:
        at = (place + offset) % count
        base, hop = divmod(ready[at], hops)
        if holds[base, target[hop]]:
            count -= 1
            ready[at] = ready[count]
            continue
        if _room(orbits, used, hop):
            return at, count
        place += 1
    return -1, count


@kernel(inlined=True)
def _room(orbits: HopOrbits, used: Integers, hop: Any) -> bool:
    links, first = orbits.hops.links, orbits.hops.first_link
    return fits(orbits.capacity, used, links, first[hop], first[hop + 1])


@kernel(inner=True, allocates=False)
def _any_room(orbits: HopOrbits, used: Integers) -> bool:
    for resource in range(len(used)):
        if used[resource] < orbits.capacity[resource]:
            return True
    return False
