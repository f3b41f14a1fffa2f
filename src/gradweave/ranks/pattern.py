"""The flows of an all-reduce between ranks, and their time on a network's routes."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.textbook.double_tree import mirrored, parents
from gradweave.schedulers.textbook.places import Places
from gradweave.topology.routes import routes_between
from gradweave.topology.topology import Floats, Integers, Topology


class Routes(NamedTuple):
    """The pinned routes between all pairs of N servers, by their indices in order of id."""

    servers: int
    """N."""
    first: Integers
    """[N·N + 1] where the links of the route from i to j start, at i·N + j; none if i = j."""
    links: Integers
    """Link directions of all routes."""
    seconds_per_byte: Floats
    """[L] seconds per byte of each link direction."""
    fixed_s: Floats
    """[N, N] latency and overhead of a message of any size."""
    slowest: Floats
    """[N, N] seconds per byte on the route's scarcest link; 0 if i = j."""
    padding: Floats
    """[N, N] bytes that could be sent while a message's overhead holds its route."""
    least_padding: Floats
    """[N, N] the same if every link of the route has as many messages in a round as its capacity,
    so that each message is as slow as possible."""


class Pattern(NamedTuple):
    """Flows between ranks in consecutive phases: P phases, F flows."""

    first: Integers
    """[P + 1] where each phase's flows start."""
    source: Integers
    """[F] rank that sends."""
    target: Integers
    """[F] rank that receives."""
    size: Floats
    """[F] bytes."""
    piece: Floats
    """[P] bytes of a message."""
    times: Floats
    """[P] number of consecutive messages; for a ring, how often a piece goes around."""
    is_ring: NDArray[np.bool_]
    """[P] whether pieces go around rings of the phase's flows, so that the total time of a ring's
    hops counts; otherwise the slowest message counts."""
    rings: Floats
    """[P] number of parallel rings, of which the mean counts."""


@dataclasses.dataclass(frozen=True, eq=False)
class Phase:
    """One phase of a pattern, before phases are joined."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    size: NDArray[np.float64]
    piece: float
    times: float
    is_ring: bool = False
    rings: int = 1


def pattern_of(phases: Sequence[Phase]) -> Pattern:
    """Joins phases.

    Args:
        phases: at least one.
    """
    counts = [len(phase.source) for phase in phases]
    return Pattern(
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        np.concatenate([phase.source for phase in phases]).astype(np.int64),
        np.concatenate([phase.target for phase in phases]).astype(np.int64),
        np.concatenate([phase.size for phase in phases]).astype(np.float64),
        np.array([phase.piece for phase in phases], np.float64),
        np.array([phase.times for phase in phases], np.float64),
        np.array([phase.is_ring for phase in phases], np.bool_),
        np.array([phase.rings for phase in phases], np.float64),
    )


def phases_of(pattern: Pattern) -> list[Phase]:
    """The phases of a pattern; the inverse of `pattern_of`.

    Args:
        pattern: flows in consecutive phases.
    """
    bounds = zip(pattern.first[:-1].tolist(), pattern.first[1:].tolist(), strict=True)
    return [
        Phase(
            pattern.source[begin:end].astype(np.int64),
            pattern.target[begin:end].astype(np.int64),
            pattern.size[begin:end].astype(np.float64),
            float(pattern.piece[number]),
            float(pattern.times[number]),
            bool(pattern.is_ring[number]),
            int(pattern.rings[number]),
        )
        for number, (begin, end) in enumerate(bounds)
    ]


def routes_of(topology: Topology) -> Routes:
    """The routes of all pairs, as the textbook strategies use them.

    Args:
        topology: the network.
    """
    count, servers = topology.num_servers, topology.servers
    one, other = np.nonzero(~np.eye(count, dtype=bool))
    nodes, offsets = routes_between(topology, servers[one], servers[other])
    links = topology.links_along(nodes, offsets)
    first_link = offsets - np.arange(len(offsets))
    pair = one * count + other
    lengths = np.zeros(count * count, np.int64)
    lengths[pair] = np.diff(first_link)
    per_byte = 1.0 / topology.bandwidth_bytes_per_s
    starts = first_link[:-1]
    overhead = np.maximum.reduceat(topology.overhead_s[links], starts)
    slowest = np.maximum.reduceat(per_byte[links], starts)
    shared = np.maximum.reduceat((topology.capacity * per_byte)[links], starts)

    def table(values: NDArray[np.float64]) -> NDArray[np.float64]:
        square = np.zeros(count * count)
        square[pair] = values
        return square.reshape(count, count)

    return Routes(
        count,
        np.concatenate([[0], np.cumsum(lengths)]),
        links.astype(np.int64),
        per_byte,
        table(np.add.reduceat(topology.latency_s[links], starts) + overhead),
        table(slowest),
        table(overhead / slowest),
        table(overhead / np.maximum(shared, slowest)),
    )


def ring_bytes(servers: int, gradient_bytes: float) -> float:
    """Bytes that each server of a ring sends to the next: 2·(N−1)/N of the gradient."""
    return 2 * (servers - 1) / servers * gradient_bytes


def rings_phase(rings: NDArray[np.int64], gradient_bytes: float, parts: int = 1) -> Phase:
    """The all-reduces of parallel rings, each for a separate gradient.

    A piece makes 2·(n−1) hops, one after the other: on average over all pieces, each hop of its
    ring 2·(n−1)/n times.

    Args:
        rings: [R, n] ranks in the order of travel.
        gradient_bytes: size of each ring's gradient.
        parts: number of parts that each of its n pieces is cut into.
    """
    count, size = rings.shape
    return Phase(
        rings.ravel(),
        np.roll(rings, -1, axis=1).ravel(),
        np.full(rings.size, ring_bytes(size, gradient_bytes)),
        piece=gradient_bytes / size / parts,
        times=2 * (size - 1) / size,
        is_ring=True,
        rings=count,
    )


def ring(servers: int, gradient_bytes: float, parts: int, *, backward: bool = False) -> Pattern:
    """One ring of all ranks, from each to the next, or to the previous one."""
    ranks = np.arange(servers)[:: -1 if backward else 1]
    return pattern_of([rings_phase(ranks[None], gradient_bytes, parts)])


def halving_doubling(servers: int, gradient_bytes: float) -> Pattern:
    """Halving–doubling: ranks 1, 2, 4, … apart exchange a half, a quarter, … and then the reverse.

    Ranks above the largest power of two are folded as in `gradweave.schedulers.HalvingDoubling`.
    """
    core, folded, stand_in = _places(servers)
    phases = []
    if len(folded):
        whole = np.full(len(folded), gradient_bytes)
        phases += [Phase(folded, stand_in, whole, gradient_bytes, 1.0)]
        phases += [Phase(stand_in, folded, whole, gradient_bytes, 1.0)]
    place, part = np.arange(len(core)), gradient_bytes
    for exchange in range(len(core).bit_length() - 1):
        part /= 2
        partner = core[place ^ (1 << exchange)]
        # In the doubling, the same partners exchange the same amounts.
        size = np.full(len(core), 2 * part)
        phases.append(Phase(core, partner, size, part, 2.0))
    return pattern_of(phases)


def recursive_doubling(servers: int, gradient_bytes: float) -> Pattern:
    """Exchanges of the whole gradient between ranks 1, 2, 4, … apart."""
    core, folded, stand_in = _places(servers)
    whole = np.full(len(core), gradient_bytes)
    phases = []
    for source, target in ((folded, stand_in), (stand_in, folded)):
        if len(folded):
            phases.append(Phase(source, target, whole[: len(folded)], gradient_bytes, 1.0))
    place = np.arange(len(core))
    for exchange in range(len(core).bit_length() - 1):
        phases.append(Phase(core, core[place ^ (1 << exchange)], whole, gradient_bytes, 1.0))
    return pattern_of(phases)


def double_tree(servers: int, gradient_bytes: float, parts: int) -> Pattern:
    """Half of the gradient up and down one binary tree and half another, in pipelined parts.

    All edges are busy at the same time; the latencies of the longest path up and down are added.
    """
    above = np.array(parents(servers))
    below = np.arange(1, servers)
    ranks = np.arange(servers, dtype=np.int32)
    source, target = [], []
    for order in (ranks, mirrored(ranks)):
        lower, upper = order[below], order[above[below]]
        source += [lower, upper]
        target += [upper, lower]
    depth = int(servers).bit_length()
    flows = 4 * len(below)
    return pattern_of(
        [
            Phase(
                np.concatenate(source),
                np.concatenate(target),
                np.full(flows, gradient_bytes / 2),
                piece=gradient_bytes / 2 / parts,
                times=2.0 * depth,
            )
        ]
    )


def _places(servers: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Ranks in the largest hypercube, the folded ranks, and the ranks that stand in for them."""
    places = Places.in_turn(np.arange(servers, dtype=np.int32))
    core, folded, stand_in = places.core, places.folded, places.stand_in
    return core.astype(np.int64), folded.astype(np.int64), stand_in.astype(np.int64)
