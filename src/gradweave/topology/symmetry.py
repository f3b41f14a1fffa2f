"""Automorphisms: groups of relabellings that preserve a network and move every server.

A group acts **freely** on the servers if only the identity fixes any server; the images of one
server's schedule under the group are then the schedules of all. The translations of known families
are generated directly; for any other network pynauty (extra `symmetry`), where installed, finds the
automorphisms, and their products are combined into free groups. Every candidate is checked against
the links.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import UNLIMITED, Stop
from gradweave.errors import SpecError
from gradweave.topology.topology import LINK_PROPERTIES, Topology
from gradweave.topology.translations import grid_translations, size_in_name

MAX_ORDER = 10_000
"""Order above which an element's powers are not searched."""
MAX_GROUPS = 6
"""Most groups returned of those combined from automorphisms."""
NUM_PRODUCTS = 250
"""Random products of automorphisms tried, of each kind."""


@dataclasses.dataclass(frozen=True, eq=False)
class FreeGroup:
    """A group of automorphisms that acts freely on the servers."""

    permutations: NDArray[np.int32]
    """[G, V] where each element moves each node; the identity comes first."""

    @property
    def order(self) -> int:
        """G, the number of elements."""
        return len(self.permutations)


def free_groups(topology: Topology, *, stop: Stop = UNLIMITED) -> Iterator[FreeGroup]:
    """Finds groups that act freely on a network's servers, the largest known first.

    Args:
        topology: the network.
        stop: once it is reached, no more are looked for than one.

    Yields:
        Groups of order two or more.

    >>> import gradweave as gw
    >>> next(gw.topology.free_groups(gw.topology.bcube(n=3, k=1))).order
    9
    """
    found = False
    for moves in _family_automorphisms(topology):
        group = _closure(topology, moves)
        if group is not None and group.order > 1:
            found = True
            yield group
    if not found or not stop.reached():
        yield from _combined(topology, automorphism_generators(topology), stop)


def has_family_symmetry(topology: Topology) -> bool:
    """Whether the network's name is of a family whose relabellings are known.

    Args:
        topology: the network.
    """
    return next(_family_generators(topology), None) is not None


def is_automorphism(topology: Topology, permutation: NDArray) -> bool:
    """Whether a relabelling maps servers to servers and links to links of the same properties.

    Args:
        topology: the network.
        permutation: [V] where each node goes.
    """
    if not np.array_equal(topology.is_server[permutation], topology.is_server):
        return False
    image = moved_links(topology, permutation)
    return bool((image >= 0).all()) and all(
        np.array_equal(column[image], column)
        for column in (getattr(topology, field) for field in LINK_PROPERTIES)
    )


def moved_links(topology: Topology, permutation: NDArray) -> NDArray[np.int64]:
    """[L] the image of each link direction under a relabelling; −1 if there is no such link.

    Args:
        topology: the network.
        permutation: [V] where each node goes.
    """
    return topology.find_links(permutation[topology.source], permutation[topology.target])


def orbits_of(images: Sequence[NDArray], count: int) -> NDArray[np.int64]:
    """[n] the orbit of each of n things, numbered from 0 in the order of their first things.

    Args:
        images: [n] for each generator, the image of each thing.
        count: n.

    >>> orbits_of([np.array([2, 1, 0, 3]), np.array([0, 3, 2, 1])], 4).tolist()
    [0, 1, 0, 1]
    """
    least = np.arange(count)
    while True:  # invariant: each thing and its label are in one orbit; labels only fall
        before = least
        for image in images:
            least = np.minimum(least, least[image])
            moved = np.empty_like(least)
            moved[image] = least
            least = np.minimum(least, moved)
        least = least[least]
        if np.array_equal(least, before):
            return np.unique(least, return_inverse=True)[1].reshape(-1)


def _family_generators(topology: Topology) -> Iterator[list[NDArray]]:
    """Lists of generators, each a relabelling of the servers by rank, or of all nodes."""
    from gradweave.common.specification import parse_spec

    count = topology.num_servers
    try:
        family, values = parse_spec(topology.name)
    except SpecError:
        return
    n = size_in_name(values.get("n", ""))
    if family == "dcell" and values.get("k") == "1" and n * (n + 1) == count:
        yield from _cell_relabellings(n)
    shifts = grid_translations(family, values, count)
    if shifts is not None and shifts.num_nodes == topology.num_nodes:
        yield shifts.generators()


def _family_automorphisms(topology: Topology) -> Iterator[list[NDArray[np.int32]]]:
    """Generators of the network's family, as automorphisms; none if one changes a link."""
    for generators in _family_generators(topology):
        extended = [_extended(topology, moved) for moved in generators]
        moves = [moved for moved in extended if moved is not None]
        if len(moves) == len(extended) and all(is_automorphism(topology, p) for p in moves):
            yield moves


def known_generators(topology: Topology) -> list[NDArray[np.int32]]:
    """Automorphisms that generate the largest group known.

    They are those of `automorphism_generators` or, if it finds none, of the network's family.

    Args:
        topology: the network.

    Returns:
        [V] each; empty if only the identity is known.
    """
    return automorphism_generators(topology) or [
        move for moves in _family_automorphisms(topology) for move in moves
    ]


def _cell_relabellings(n: int) -> Iterator[list[NDArray]]:
    """Relabellings of DCell(n, 1) that come from relabelling its n+1 cells.

    A server is an ordered pair of cells: its cell and the cell that it is linked to. Relabelling
    cells by x → ax + b modulo a prime moves every pair; adding b alone does so for any number.
    """
    cells = n + 1
    own, link = np.divmod(np.arange(n * cells), n)
    other = link + (link >= own)

    def moved(cell: NDArray) -> NDArray:
        to, toward = cell[own], cell[other]
        return to * n + toward - (toward > to)

    shift = (np.arange(cells) + 1) % cells
    if cells > 2 and all(cells % factor for factor in range(2, cells)):
        # A primitive root: with its powers as a, each pair of cells is moved to each other by
        # exactly one element.
        for factor in range(2, cells):
            if len({pow(factor, power, cells) for power in range(cells - 1)}) == cells - 1:
                yield [moved(shift), moved(np.arange(cells) * factor % cells)]
                break
    yield [moved(shift)]


def _extended(topology: Topology, servers: NDArray) -> NDArray[np.int32] | None:
    """A relabelling of the servers, extended to switches: each goes where its neighbours go.

    None if that does not determine it, or if it is not a relabelling of these servers. A
    relabelling of all nodes is returned as it is.
    """
    if len(servers) == topology.num_nodes:
        return servers.astype(np.int32)
    if len(servers) != topology.num_servers:
        return None
    permutation = np.full(topology.num_nodes, -1, np.int32)
    permutation[topology.servers] = topology.servers[servers]
    neighbours = np.split(topology.target, topology.first_link[1:-1])
    known = topology.is_server.copy()
    while not known.all():
        images = _switch_images(topology, permutation, known, neighbours)
        if not images:
            return None
        for switch, image in images.items():
            permutation[switch] = image
            known[switch] = True
    if not np.array_equal(np.sort(permutation), np.arange(topology.num_nodes)):
        return None
    return permutation


def _switch_images(
    topology: Topology, permutation: NDArray, known: NDArray, neighbours: list[NDArray]
) -> dict[int, int]:
    """Where unassigned switches go: to the only switch next to the images of their neighbours.

    Args:
        topology: the network.
        permutation: [V] where each node goes, as far as `known`.
        known: [V] whether a node's image is known.
        neighbours: of each node.
    """
    assigned = {
        switch: [v for v in neighbours[switch].tolist() if known[v]]
        for switch in topology.switches.tolist()
    }
    by_neighbours: dict[frozenset[int], list[int]] = {}
    for switch, nodes in assigned.items():
        by_neighbours.setdefault(frozenset(nodes), []).append(switch)
    images = {}
    for switch in np.flatnonzero(~known).tolist():
        nodes = assigned[switch]
        candidates = by_neighbours.get(frozenset(permutation[nodes].tolist()), [])
        if len(candidates) == 1 and nodes:
            images[switch] = candidates[0]
    return images


def _closure(topology: Topology, generators: Iterable[NDArray]) -> FreeGroup | None:
    """All products of the generators, or None if they do not act freely on the servers."""
    generators, first = list(generators), int(topology.servers[0])
    # A free group has at most one element for each image of a server.
    elements = np.empty((topology.num_servers, topology.num_nodes), np.int32)
    elements[0] = np.arange(topology.num_nodes)
    place = {first: 0}
    done = 0
    while done < len(place):
        for generator in generators:
            product = generator[elements[done]]
            known = place.get(int(product[first]))
            if known is None:
                known = place[int(product[first])] = len(place)
                elements[known] = product
            elif not np.array_equal(elements[known], product):
                return None
        done += 1
    fixed = any(
        (element[topology.servers] == topology.servers).any() for element in elements[1:done]
    )
    return (
        None if fixed else FreeGroup(elements if done == len(elements) else elements[:done].copy())
    )


def automorphism_generators(topology: Topology) -> list[NDArray[np.int32]]:
    """Relabellings that generate all automorphisms.

    Links of different properties become nodes of different colours.

    Args:
        topology: the network.

    Returns:
        [V] each; empty where pynauty is not installed, or the two directions of a link differ.

    Source: McKay and Piperno, nauty, through pynauty.
    """
    try:
        import pynauty
    except ImportError:
        return []
    properties = np.stack([getattr(topology, field) for field in LINK_PROPERTIES], axis=1)
    if not np.array_equal(properties, properties[topology.opposite]):
        return []
    neighbours, colours = _coloured_graph(topology, properties)
    graph = pynauty.Graph(
        sum(map(len, colours)),
        adjacency_dict=neighbours,
        vertex_coloring=[colour for colour in colours if colour],
    )
    generators = pynauty.autgrp(graph)[0]
    return [np.array(generator[: topology.num_nodes], np.int32) for generator in generators]


def _coloured_graph(
    topology: Topology, properties: NDArray
) -> tuple[dict[int, list[int]], list[set[int]]]:
    """Neighbours by node, and the nodes of each colour: servers, switches, then links by kind.

    Links become nodes only where their properties, [L, K], are not all the same.
    """
    nodes, links = topology.num_nodes, np.flatnonzero(topology.source < topology.target)
    _, kind = np.unique(properties[links], axis=0, return_inverse=True)
    ends = zip(topology.source[links].tolist(), topology.target[links].tolist(), strict=True)
    colours = [set(topology.servers.tolist()), set(topology.switches.tolist())]
    neighbours: dict[int, list[int]] = {}
    if kind.max() == 0:
        for a, b in ends:
            neighbours.setdefault(a, []).append(b)
    else:
        neighbours |= {nodes + number: [a, b] for number, (a, b) in enumerate(ends)}
        colours += [
            set((np.flatnonzero(kind == k) + nodes).tolist()) for k in range(kind.max() + 1)
        ]
    return neighbours, colours


def _combined(
    topology: Topology, generators: list[NDArray[np.int32]], stop: Stop
) -> list[FreeGroup]:
    """Free groups generated by products of automorphisms, one of each order, largest first.

    A smaller one may be better where the largest fixes links, which then carry too little.
    """
    if not generators:
        return []
    by_order: dict[int, FreeGroup] = {}
    chosen: list[NDArray[np.int32]] = []
    for element in _products(topology, generators):
        for free in _free_powers(topology, element):
            largest = max(by_order, default=1)
            for more in ([*chosen, free], [free]):
                group = _closure(topology, more)
                if group is not None and by_order.setdefault(group.order, group).order > largest:
                    largest, chosen = group.order, more
        if topology.num_servers in by_order or (by_order and stop.reached()):
            break
    return [by_order[order] for order in sorted(by_order, reverse=True)[:MAX_GROUPS]]


def _products(
    topology: Topology, generators: list[NDArray[np.int32]]
) -> Iterator[NDArray[np.int32]]:
    """Products of generators that may act freely, at random.

    In turn: a random walk; all generators, each once; those that fix all switches, each once; and
    those that move only servers which none before them moves. Where the servers of one switch are
    interchangeable, generators swap two of them, and only a product over all switches moves every
    server.
    """
    rng = np.random.default_rng(0)
    identity = np.arange(topology.num_nodes, dtype=np.int32)
    walked = identity
    for _ in range(NUM_PRODUCTS):
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
    """The first power of an automorphism under which all servers are in cycles of one length."""
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
    if whole > MAX_ORDER:
        return
    # The d-th power has cycles of length n / gcd(n, d) where the element has cycles of length n.
    for divisor in range(1, whole):
        if whole % divisor == 0 and len(np.unique(distinct // np.gcd(distinct, divisor))) == 1:
            powered = np.arange(topology.num_nodes, dtype=np.int32)
            for _ in range(divisor):
                powered = element[powered]
            yield powered
            return
