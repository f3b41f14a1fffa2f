"""Algorithms of stock libraries for five collectives, as phases of messages between ranks.

Sizes are total bytes: the buffer of an all-reduce or broadcast, the input of a reduce-scatter, the
output of an all-gather, and the send buffer of one rank in an all-to-all.
Broadcasts start at rank 0, where reductions to one rank end.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from gradweave.ranks.pattern import Pattern, Phase, phases_of, rings_phase
from gradweave.ranks.pattern import double_tree as double_tree_pattern
from gradweave.ranks.pattern import halving_doubling as halving_doubling_pattern
from gradweave.ranks.pattern import recursive_doubling as recursive_doubling_pattern
from gradweave.schedulers.textbook.places import Places

Maker = Callable[[int, float, float], list[Phase]]
"""Phases for a number of ranks, a size in bytes, and bytes per segment (0: not cut)."""
_KNOMIAL = 4
"""Open MPI's ``coll_tuned_bcast_algorithm_knomial_radix``."""


def linear(ranks: int, size: float, segment: float) -> list[Phase]:
    """Broadcast: rank 0 sends everything to every rank at the same time."""
    return [_phase(np.zeros(ranks - 1, np.int64), np.arange(1, ranks), size)]


def reduce_then_broadcast(ranks: int, size: float, segment: float) -> list[Phase]:
    """All-reduce: a linear reduction to rank 0, then a linear broadcast."""
    down = linear(ranks, size, 0)
    return [_phase(one.target, one.source, size) for one in down] + down


def trees_then_back(ranks: int, size: float, segment: float) -> list[Phase]:
    """All-reduce: a reduction along a binomial tree, then a broadcast along it."""
    down = binomial(ranks, size, 0)
    return [_phase(one.target, one.source, size) for one in down[::-1]] + down


def chain(ranks: int, size: float, segment: float) -> list[Phase]:
    """Broadcast: each rank sends to the next, segment after segment."""
    return _along(np.arange(ranks) - 1, size, segment)


def binary(ranks: int, size: float, segment: float) -> list[Phase]:
    """Broadcast: along the binary tree of ``ompi_coll_base_topo_build_tree``."""
    parent = np.full(ranks, -1)
    for rank in range(1, ranks):
        level = (rank + 1).bit_length() - 1
        above = 1 << (level - 1)
        parent[rank] = above - 1 + (rank - (2 * above - 1)) % above
    return _along(parent, size, segment)


def binomial(ranks: int, size: float, segment: float) -> list[Phase]:
    """Broadcast: a rank's parent lacks its highest bit; it sends to all children concurrently."""
    return _along(_highest_cleared(ranks), size, segment)


def knomial(ranks: int, size: float, segment: float) -> list[Phase]:
    """Broadcast: a rank's parent lacks its lowest digit to the base 4."""
    parent = np.full(ranks, -1)
    for rank in range(1, ranks):
        unit = 1
        while rank // unit % _KNOMIAL == 0:
            unit *= _KNOMIAL
        parent[rank] = rank - rank // unit % _KNOMIAL * unit
    return _along(parent, size, segment)


def binomial_in_turn(ranks: int, size: float, segment: float) -> list[Phase]:
    """Broadcast: in each step, every rank that has the data sends it, the farthest first."""
    return [_phase(source, target, size) for source, target, _ in _lowest_cleared(ranks)]


def scatter_doubling(ranks: int, size: float, segment: float) -> list[Phase]:
    """Broadcast: a binomial scatter, then an all-gather by recursive doubling."""
    return _scatter(ranks, size) + gather_doubling(ranks, size, 0)


def scatter_ring(ranks: int, size: float, segment: float) -> list[Phase]:
    """Broadcast: a binomial scatter, then an all-gather along a ring."""
    return _scatter(ranks, size) + gather_ring(ranks, size, 0)


def ring(ranks: int, size: float, segment: float) -> list[Phase]:
    """All-reduce: a reduce-scatter and an all-gather along a ring."""
    return [rings_phase(np.arange(ranks)[None], size)]


def halving_doubling(ranks: int, size: float, segment: float) -> list[Phase]:
    """All-reduce: halving from the nearest partner on, then doubling back (Rabenseifner)."""
    return phases_of(halving_doubling_pattern(ranks, size))


def recursive_doubling(ranks: int, size: float, segment: float) -> list[Phase]:
    """All-reduce: partners 1, 2, 4, … apart exchange everything."""
    return phases_of(recursive_doubling_pattern(ranks, size))


def double_tree(ranks: int, size: float, segment: float) -> list[Phase]:
    """All-reduce: half of the data up and down one binary tree, half another, in segments."""
    parts = max(1, math.ceil(size / 2 / segment)) if segment else 1
    return phases_of(double_tree_pattern(ranks, size, parts))


def gather_ring(ranks: int, size: float, segment: float) -> list[Phase]:
    """All-gather, or reduce-scatter: every block visits every rank along a ring."""
    phase = rings_phase(np.arange(ranks)[None], size / 2)  # half of an all-reduce
    return [Phase(phase.source, phase.target, phase.size, size / ranks, (ranks - 1) / ranks, True)]


def gather_bruck(ranks: int, size: float, segment: float) -> list[Phase]:
    """All-gather: steps to ranks 1, 2, 4, … below, each with all blocks held so far."""
    return [
        _shift(ranks, -apart, min(apart, ranks - apart) * size / ranks)
        for apart in _doubling(ranks)
    ]


def gather_doubling(ranks: int, size: float, segment: float) -> list[Phase]:
    """All-gather: partners 1, 2, 4, … apart exchange all blocks held so far.

    For a number of ranks that is no power of two, libraries use Bruck's algorithm.
    """
    if ranks & (ranks - 1):
        return gather_bruck(ranks, size, 0)
    return [_exchange(ranks, apart, apart * size / ranks) for apart in _doubling(ranks)]


def gather_sparbit(ranks: int, size: float, segment: float) -> list[Phase]:
    """All-gather: steps to the farthest ranks first, while there are few blocks."""
    found = []
    for held, apart in zip(_doubling(ranks), reversed([*_doubling(ranks)]), strict=True):
        found.append(_shift(ranks, apart, min(held, ranks - held) * size / ranks))
    return found


def gather_neighbor(ranks: int, size: float, segment: float) -> list[Phase]:
    """All-gather: neighbours exchange one block, then two with the neighbours of each side."""
    found, block = [], size / ranks
    for step in range(ranks // 2):
        even = np.arange(step % 2, ranks + step % 2, 2)
        source, target = even % ranks, (even + 1) % ranks
        ends = np.concatenate([source, target]), np.concatenate([target, source])
        found.append(_phase(*ends, block * (1 + (step > 0))))
    return found


def all_pairs(ranks: int, size: float, segment: float) -> list[Phase]:
    """All-to-all: all messages at once."""
    source, target = np.nonzero(~np.eye(ranks, dtype=bool))
    return [_phase(source, target, size / ranks)]


def pairwise(ranks: int, size: float, segment: float) -> list[Phase]:
    """All-to-all, or reduce-scatter: in step s, each rank sends a block to the rank s above."""
    return [_shift(ranks, apart, size / ranks) for apart in range(1, ranks)]


def bruck(ranks: int, size: float, segment: float) -> list[Phase]:
    """All-to-all: steps to ranks 1, 2, 4, … above, each with about half of the blocks."""
    blocks = np.arange(ranks)
    return [
        _shift(ranks, apart, int((blocks & apart > 0).sum()) * size / ranks)
        for apart in _doubling(ranks)
    ]


def scatter_far_halving(ranks: int, size: float, segment: float) -> list[Phase]:
    """Reduce-scatter: partners exchange halves, then quarters, the farthest partner first."""
    return _halving(ranks, size, nearest_first=False)


def scatter_butterfly(ranks: int, size: float, segment: float) -> list[Phase]:
    """Reduce-scatter: halving from the nearest partner on; a last step puts blocks in order."""
    found = _halving(ranks, size, nearest_first=True)
    bits = ranks.bit_length() - 1
    place = np.arange(1 << bits)
    mirror = np.array([int(f"{one:0{bits}b}"[::-1], 2) for one in place])
    moved = place != mirror
    return [*found, _phase(place[moved], mirror[moved], size / ranks)] if moved.any() else found


def reduce_then_scatter(ranks: int, size: float, segment: float) -> list[Phase]:
    """Reduce-scatter: a reduction along a binomial tree to rank 0, which sends every block."""
    up = [_phase(one.target, one.source, size) for one in binomial(ranks, size, 0)[::-1]]
    return [*up, _phase(np.zeros(ranks - 1, np.int64), np.arange(1, ranks), size / ranks)]


def _phase(source: NDArray, target: NDArray, size: float, times: float = 1.0) -> Phase:
    """Flows of `times` consecutive messages of `size` bytes each."""
    ends = np.asarray(source, np.int64), np.asarray(target, np.int64)
    return Phase(ends[0], ends[1], np.full(len(source), size * times), size, times)


def _shift(ranks: int, apart: int, size: float) -> Phase:
    source = np.arange(ranks)
    return _phase(source, (source + apart) % ranks, size)


def _exchange(ranks: int, apart: int, size: float) -> Phase:
    source = np.arange(ranks)
    return _phase(source, source ^ apart, size)


def _doubling(ranks: int) -> Iterator[int]:
    """1, 2, 4, … below the number of ranks; can be reversed as a list."""
    return iter([1 << step for step in range((ranks - 1).bit_length())])


def _along(parent: NDArray, size: float, segment: float) -> list[Phase]:
    """A broadcast along a tree: the first segment level by level, then one segment per step."""
    segments = max(1, math.ceil(size / segment)) if segment else 1
    piece = size / segments
    depth = np.zeros(len(parent), np.int64)
    for node in range(1, len(parent)):  # a parent's number is lower
        depth[node] = depth[parent[node]] + 1
    levels = [np.flatnonzero(depth == level) for level in range(1, int(depth.max()) + 1)]
    found = [_phase(parent[level], level, piece) for level in levels]
    if segments > 1:
        below = np.flatnonzero(parent >= 0)
        found.append(_phase(parent[below], below, piece, segments - 1))
    return found


def _highest_cleared(ranks: int) -> NDArray[np.int64]:
    parent = np.arange(ranks)
    parent[1:] -= 1 << (np.floor(np.log2(parent[1:])).astype(np.int64))
    parent[0] = -1
    return parent


def _lowest_cleared(ranks: int) -> list[tuple[NDArray, NDArray, NDArray]]:
    """Steps of a binomial tree, the farthest first: sender, receiver, size of its subtree."""
    found = []
    for apart in reversed([*_doubling(ranks)]):
        source = np.arange(0, ranks - apart, 2 * apart)
        below = np.minimum(apart, ranks - source - apart)
        found.append((source, source + apart, below))
    return found


def _scatter(ranks: int, size: float) -> list[Phase]:
    """A binomial scatter: each message has the blocks of the receiver's subtree."""
    found = []
    for source, target, below in _lowest_cleared(ranks):
        sizes = below * (size / ranks)
        found.append(Phase(source, target, sizes, float(sizes.max()), 1.0))
    return found


def _halving(ranks: int, size: float, *, nearest_first: bool) -> list[Phase]:
    """Recursive halving, with ranks above a power of two folded onto others."""
    places = Places.in_turn(np.arange(ranks, dtype=np.int32))
    core, folded, stand_in = places.core, places.folded, places.stand_in
    found, part, place = [], size, np.arange(len(core))
    if len(folded):
        found.append(_phase(folded, stand_in, size))
    apart = [*_doubling(len(core))]
    for distance in apart if nearest_first else apart[::-1]:
        part /= 2
        found.append(_phase(core, core[place ^ distance], part))
    if len(folded):
        found.append(_phase(stand_in, folded, size / ranks))
    return found


def messages(pattern: Pattern, ranks: int) -> tuple[float, float, float]:
    """Steps in sequence, messages at the busiest rank (sent and received), and messages of all.

    Args:
        pattern: phases of messages.
        ranks: number of ranks.
    """
    phase = np.repeat(np.arange(len(pattern.times)), np.diff(pattern.first))
    along_ring = pattern.size[pattern.first[:-1]] / pattern.piece
    steps = np.where(pattern.is_ring, along_ring, pattern.times)
    each = steps[phase]
    both = sum(np.bincount(end, each, ranks) for end in (pattern.source, pattern.target))
    return float(steps.sum()), float(np.max(both)), float(each.sum())
