"""What an all-reduce sends between ranks, and what that takes on a network's routes."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.textbook.double_tree import mirrored, parents
from gradweave.schedulers.textbook.places import Places
from gradweave.schedulers.textbook.steps import routes_between
from gradweave.topology.topology import Floats, Integers, Topology


class Routes(NamedTuple):
    """The pinned route between each two servers, by their places in order of id. Of N servers."""

    servers: int
    """N."""
    first: Integers
    """[N·N + 1] where the links of the route from i to j begin, at i·N + j; none where i = j."""
    links: Integers
    """Link directions of all routes."""
    seconds_per_byte: Floats
    """[L] of each link direction."""
    fixed_s: Floats
    """[N, N] latency and overhead of a message, whatever its size."""
    slowest: Floats
    """[N, N] seconds that a byte takes on the route's scarcest link; 0 where i = j."""
    padding: Floats
    """[N, N] bytes that a message could have sent while it holds its route for its overhead."""
    least_padding: Floats
    """[N, N] the same where every link of the route has as many messages in a round as it can
    carry, so that each is as slow as it may be."""


class Pattern(NamedTuple):
    """Flows between ranks in phases that follow each other: P phases, F flows."""

    first: Integers
    """[P + 1] where each phase's flows begin."""
    source: Integers
    """[F] rank that sends."""
    target: Integers
    """[F] rank that receives."""
    size: Floats
    """[F] bytes."""
    piece: Floats
    """[P] bytes of a message."""
    times: Floats
    """[P] how often messages follow each other; of a ring, how often a piece goes round."""
    is_ring: NDArray[np.bool_]
    """[P] whether pieces go round rings of the phase's flows, so that what all hops of a ring take
    together counts; else the slowest message."""
    rings: Floats
    """[P] of so many rings side by side, of which the mean counts."""


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


def routes_of(topology: Topology) -> Routes:
    """The routes of all pairs, as the textbook strategies take them.

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
    """The all-reduce of rings side by side, each of its own gradient.

    A piece makes 2·(n−1) hops, one after the other; on average over all pieces each hop of its ring
    2·(n−1)/n times.

    Args:
        rings: [R, n] ranks in the order of travel.
        gradient_bytes: size of each ring's gradient.
        parts: how many each of its n pieces is cut into.
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
    """One ring of all ranks, from each to the next, or to the one before."""
    ranks = np.arange(servers)[:: -1 if backward else 1]
    return pattern_of([rings_phase(ranks[None], gradient_bytes, parts)])


def halving_doubling(servers: int, gradient_bytes: float) -> Pattern:
    """Exchanges of halves, quarters, … between ranks 1, 2, 4, … apart, and back.

    Ranks above the largest power of two are folded, as `gradweave.schedulers.HalvingDoubling` says.
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
        # The same partners exchange as much when they double.
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
    """Half of the gradient up and down one binary tree, half another, parts following each other.

    All edges are busy at once; the latencies of the longest way up and down come on top.
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
    """Ranks at the places of the largest hypercube, those folded, and who stands for them."""
    places = Places.in_turn(np.arange(servers, dtype=np.int32))
    core, folded, stand_in = places.core, places.folded, places.stand_in
    return core.astype(np.int64), folded.astype(np.int64), stand_in.astype(np.int64)
