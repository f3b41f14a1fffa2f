"""Automorphisms: groups of relabellings that leave a network as it is and move every server.

A group acts **freely** on the servers if no relabelling but the identity keeps a server where it
is; then one server's schedule, moved about by the group, makes everyone's. Known families bring
their translations; for any other network pynauty (extra `symmetry`), where it is installed, finds
the automorphisms, and products of them are put together into a free group. Whatever is
proposed is checked against the links.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import SpecError
from gradweave.topology.topology import Topology

MOST_POWER = 10_000
"""Order above which an element's powers are not looked at."""
MOST_GROUPS = 6
"""Groups put together from automorphisms that are handed out."""
PRODUCTS = 250
"""Random products of automorphisms that are tried, of each kind."""


@dataclasses.dataclass(frozen=True, eq=False)
class FreeGroup:
    """A group of automorphisms that acts freely on the servers."""

    permutations: NDArray[np.int32]
    """[G, V] where each element moves each node; the identity comes first."""

    @property
    def order(self) -> int:
        """G, the number of elements."""
        return len(self.permutations)


def free_groups(topology: Topology) -> Iterator[FreeGroup]:
    """Finds groups that act freely on a network's servers, the largest known first.

    Args:
        topology: the network.

    Yields:
        Groups of order two or more.

    >>> import gradweave as gw
    >>> next(gw.topology.free_groups(gw.topology.bcube(n=3, k=1))).order
    9
    """
    for generators in _proposals(topology):
        extended = [_extended(topology, servers) for servers in generators]
        moves = [moved for moved in extended if moved is not None]
        if len(moves) == len(extended) and all(is_automorphism(topology, p) for p in moves):
            group = _closure(topology, moves)
            if group is not None and group.order > 1:
                yield group
    yield from _grown_from(topology, automorphism_generators(topology))


def is_automorphism(topology: Topology, permutation: NDArray) -> bool:
    """Whether a relabelling maps servers to servers and links to links that are alike.

    Args:
        topology: the network.
        permutation: [V] where each node goes.
    """
    if not np.array_equal(topology.is_server[permutation], topology.is_server):
        return False
    image = topology.find_links(permutation[topology.source], permutation[topology.target])
    return bool((image >= 0).all()) and all(
        np.array_equal(column[image], column)
        for column in (topology.capacity, topology.bandwidth_bytes_per_s, topology.latency_s)
    )


def _proposals(topology: Topology) -> Iterator[list[NDArray]]:
    """Lists of generators, each a relabelling of the servers by rank."""
    from gradweave.topology.spec import UNNAMED, parse_spec

    count = topology.num_servers
    try:
        family, values = parse_spec(topology.name)
    except SpecError:
        family, values = "", {}
    sizes: tuple[int, ...] = ()
    n, k = (_size(values.get(key, "")) for key in "nk")
    if family == "bcube" and k < count.bit_length():
        sizes = (n,) * (k + 1)
    elif family == "torus":
        text = values.get(UNNAMED, values.get("dimensions", ""))
        sizes = tuple(_size(size) for size in text.split("x"))
    elif family == "hypercube":
        sizes = (2,) * (count.bit_length() - 1)
    elif family in ("ring", "complete", "star"):
        sizes = (count,)
    elif family == "dcell" and k == 1 and n * (n + 1) == count:
        yield from _cell_moves(n)
    # A name may say anything: nothing is built before it is known to fit.
    if math.prod(sizes) == count:
        yield _shifts(tuple(size for size in sizes if size > 1))


def _size(text: str) -> int:
    """A size in a name; 0 where it is none that a network can have."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _shifts(sizes: tuple[int, ...]) -> list[NDArray]:
    """One step along each axis of a grid that wraps round, ranks in row-major order."""
    ranks = np.arange(math.prod(sizes)).reshape(sizes)
    return [np.roll(ranks, -1, axis).ravel() for axis in range(len(sizes))]


def _cell_moves(n: int) -> Iterator[list[NDArray]]:
    """Relabellings of DCell(n, 1) that come from relabelling its n+1 cells.

    A server is an ordered pair of cells: its own, and the one that it links to. Relabelling cells
    by x → ax + b modulo a prime moves every pair; adding b alone does so for any number.
    """
    cells = n + 1
    own, link = np.divmod(np.arange(n * cells), n)
    other = link + (link >= own)

    def moved(cell: NDArray) -> NDArray:
        to, toward = cell[own], cell[other]
        return to * n + toward - (toward > to)

    shift = (np.arange(cells) + 1) % cells
    if cells > 2 and all(cells % factor for factor in range(2, cells)):
        for factor in range(2, cells):
            if len({pow(factor, power, cells) for power in range(cells - 1)}) == cells - 1:
                yield [moved(shift), moved(np.arange(cells) * factor % cells)]
                break
    yield [moved(shift)]


def _extended(topology: Topology, servers: NDArray) -> NDArray[np.int32] | None:
    """A relabelling of the servers, extended to switches: each goes where its neighbours go.

    None where that does not determine it, or where it is no relabelling of these servers.
    """
    if len(servers) != topology.num_servers:
        return None
    permutation = np.full(topology.num_nodes, -1, np.int32)
    permutation[topology.servers] = topology.servers[servers]
    neighbours = np.split(topology.target, topology.first_link[1:-1])
    known = topology.is_server.copy()
    while not known.all():
        place = {}
        for switch in topology.switches.tolist():
            seen = [v for v in neighbours[switch].tolist() if known[v]]
            place.setdefault(frozenset(seen), []).append(switch)
        settled = []
        for switch in np.flatnonzero(~known).tolist():
            seen = [v for v in neighbours[switch].tolist() if known[v]]
            found = place.get(frozenset(permutation[seen].tolist()), [])
            if len(found) == 1 and seen:
                settled.append((switch, found[0]))
        if not settled:
            return None
        for switch, image in settled:
            permutation[switch] = image
            known[switch] = True
    if not np.array_equal(np.sort(permutation), np.arange(topology.num_nodes)):
        return None
    return permutation


def _closure(topology: Topology, generators: Iterable[NDArray]) -> FreeGroup | None:
    """All products of the generators; None where they do not act freely on the servers."""
    identity = np.arange(topology.num_nodes, dtype=np.int32)
    first = int(topology.servers[0])
    elements = {first: identity}
    queue = [identity]
    generators = list(generators)
    for element in queue:
        for generator in generators:
            product = generator[element]
            known = elements.get(int(product[first]))
            if known is None:
                elements[int(product[first])] = product
                queue.append(product)
            elif not np.array_equal(known, product):
                return None
    permutations = np.stack(queue)
    moved = permutations[1:, topology.servers] != topology.servers
    return FreeGroup(permutations) if moved.all() else None


def automorphism_generators(topology: Topology) -> list[NDArray[np.int32]]:
    """Relabellings that generate all automorphisms.

    Links of different capacity, bandwidth or latency become nodes of different colours.

    Args:
        topology: the network.

    Returns:
        [V] each; none where pynauty is not installed, or where some link's two directions differ.

    Source: McKay and Piperno, nauty, through pynauty.
    """
    try:
        import pynauty
    except ImportError:
        return []
    properties = np.stack(
        [topology.capacity, topology.bandwidth_bytes_per_s, topology.latency_s], axis=1
    )
    if not np.array_equal(properties, properties[topology.opposite]):
        return []
    nodes, links = topology.num_nodes, np.flatnonzero(topology.source < topology.target)
    _, kind = np.unique(properties[links], axis=0, return_inverse=True)
    ends = list(zip(topology.source[links].tolist(), topology.target[links].tolist(), strict=True))
    colours = [set(topology.servers.tolist()), set(topology.switches.tolist())]
    neighbours: dict[int, list[int]] = {}
    for number, (one, other) in enumerate(ends):
        if kind.max() == 0:
            neighbours.setdefault(one, []).append(other)
        else:
            neighbours[nodes + number] = [one, other]
    if kind.max() > 0:
        colours += [
            set((np.flatnonzero(kind == k) + nodes).tolist()) for k in range(int(kind.max()) + 1)
        ]
    graph = pynauty.Graph(
        sum(map(len, colours)),
        adjacency_dict=neighbours,
        vertex_coloring=[colour for colour in colours if colour],
    )
    generators = pynauty.autgrp(graph)[0]
    return [np.array(generator[:nodes], np.int32) for generator in generators]


def _grown_from(topology: Topology, generators: list[NDArray[np.int32]]) -> list[FreeGroup]:
    """Free groups put together from products of automorphisms, one of each order, largest first.

    A smaller one may serve where the largest keeps links in place, which then carry too little.
    """
    found: dict[int, FreeGroup] = {}
    if not generators:
        return []
    chosen: list[NDArray[np.int32]] = []
    for element in _products(topology, generators):
        for free in _free_powers(topology, element):
            largest = max(found, default=1)
            for more in ([*chosen, free], [free]):
                group = _closure(topology, more)
                if group is not None and found.setdefault(group.order, group).order > largest:
                    largest, chosen = group.order, more
        if topology.num_servers in found:
            break
    return [found[order] for order in sorted(found, reverse=True)[:MOST_GROUPS]]


def _products(
    topology: Topology, generators: list[NDArray[np.int32]]
) -> Iterator[NDArray[np.int32]]:
    """Products of generators that may act freely, at random.

    In turn: a random walk; all generators, each once; those that keep the switches where they are,
    each once; and those that move servers which none before them moves. Where servers of one switch
    are alike, generators swap two of them, and only a product over all switches moves everyone.
    """
    rng = np.random.default_rng(0)
    identity = np.arange(topology.num_nodes, dtype=np.int32)
    walked = identity
    for _ in range(PRODUCTS):
        walked = generators[rng.integers(len(generators))][walked]
        every, inside, apart = identity, identity, identity
        for number in rng.permutation(len(generators)).tolist():
            move = generators[number]
            changes = move != identity
            every = move[every]
            if not changes[topology.switches].any():
                inside = move[inside]
            if not (changes & (apart != identity))[topology.servers].any():
                apart = move[apart]
        yield from (walked, every, inside, apart)


def _free_powers(topology: Topology, element: NDArray[np.int32]) -> Iterator[NDArray[np.int32]]:
    """The powers of an automorphism under which all servers run through cycles of one length."""
    lengths = np.zeros(topology.num_servers, np.int64)
    moved, power = element, 1
    while (lengths == 0).any() and power <= topology.num_servers:
        back = moved[topology.servers] == topology.servers
        lengths[back & (lengths == 0)] = power
        moved, power = element[moved], power + 1
    if (lengths == 0).any():
        return
    distinct = np.unique(lengths)
    whole = int(np.lcm.reduce(distinct))
    if whole > MOST_POWER:
        return
    for divisor in range(1, whole):
        if whole % divisor == 0 and len(np.unique(distinct // np.gcd(distinct, divisor))) == 1:
            powered = np.arange(topology.num_nodes, dtype=np.int32)
            for _ in range(divisor):
                powered = element[powered]
            yield powered
            return
