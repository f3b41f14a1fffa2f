"""Networks as clusters have them: several switches a server, thin trunks, sites, rings of rings.

`KINDS` makes one network of each kind from a seed; `named_networks` are those that a default search
once got wrong, each with what the least number of rounds of an all-gather is known to be.
"""

import itertools
from collections.abc import Callable
from fractions import Fraction

import networkx as nx
import numpy as np

import gradweave as gw
from gradweave.topology import Topology

Pairs = list[tuple[int, int]]


def planes(servers: int, count: int) -> Topology:
    """Each server on every one of some switches that are not joined to each other."""
    links = [(s, servers + p) for s in range(servers) for p in range(count)]
    name = f"{servers} servers on {count} planes"
    return Topology.from_links(name, servers=servers, switches=count, links=links)


def dual_homed(pairs: int, per_pair: int, spines: int, trunk: int = 1) -> Topology:
    """Racks whose servers are on two leaf switches each; every leaf is linked to every spine.

    Args:
        pairs: pairs of leaves.
        per_pair: servers of each.
        spines: spine switches.
        trunk: capacity of a leaf's link to a spine.
    """
    servers, leaves = pairs * per_pair, 2 * pairs
    down = [(s, servers + 2 * (s // per_pair) + side) for s in range(servers) for side in (0, 1)]
    up = [(servers + a, servers + leaves + b) for a in range(leaves) for b in range(spines)]
    return Topology.from_links(
        f"{pairs} leaf pairs of {per_pair} dual-homed servers, {spines} spines, trunk {trunk}",
        servers=servers,
        switches=leaves + spines,
        links=[*down, *up],
        capacity=[1] * len(down) + [trunk] * len(up),
    )


def rails(boxes: int, gpus: int, inside: int, count: int) -> Topology:
    """Boxes of GPUs on a switch inside, and GPU i of every box on rail switch i mod `count`.

    Args:
        boxes: number of boxes.
        gpus: of each.
        inside: capacity of a GPU's link to its box's switch; its rail link has 1.
        count: rail switches, joined to each other by no link.
    """
    servers = boxes * gpus
    box = [(s, servers + s // gpus) for s in range(servers)]
    rail = [(s, servers + boxes + s % gpus % count) for s in range(servers)]
    return Topology.from_links(
        f"{boxes} boxes of {gpus} at {inside}, {count} rails",
        servers=servers,
        switches=boxes + count,
        links=[*box, *rail],
        capacity=[inside] * servers + [1] * servers,
    )


def joined(name: str, site: nx.Graph, sites: int, between: int, apart: nx.Graph) -> Topology:
    """Copies of a graph of servers, joined by a few links between each two neighbouring copies.

    Args:
        name: the network's name.
        site: servers 0 … n−1 of one copy.
        sites: number of copies.
        between: links between two neighbours: from server i of one to server i of the other.
        apart: which copies are neighbours.
    """
    size = len(site)
    inside = [(c * size + a, c * size + b) for c in range(sites) for a, b in site.edges]
    across = [(a * size + i, b * size + i) for a, b in apart.edges for i in range(between)]
    return Topology.from_links(name, servers=sites * size, switches=0, links=[*inside, *across])


def star_of_rings(rings: int, size: int) -> Topology:
    """Rings of servers, the first server of each on one switch."""
    servers = rings * size
    links = [(r * size + i, r * size + (i + 1) % size) for r in range(rings) for i in range(size)]
    links += [(r * size, servers) for r in range(rings)]
    name = f"star of {rings} rings of {size}"
    return Topology.from_links(name, servers=servers, switches=1, links=links)


def two_sites(size: int, between: int) -> Topology:
    """Two switches of servers each, joined by several thin links, each over a router of its own."""
    servers, left, right = 2 * size, 2 * size, 2 * size + 1
    links = [(s, left if s < size else right) for s in range(servers)]
    links += [
        link
        for router in range(right + 1, right + 1 + between)
        for link in ((left, router), (router, right))
    ]
    return Topology.from_links(
        f"two sites of {size}, {between} links between",
        servers=servers,
        switches=2 + between,
        links=links,
        capacity=[1] * len(links),
    )


def named_networks() -> dict[str, tuple[Topology, int | None]]:
    """By name: a network, and the rounds of its best all-gather where they are known."""
    grid = nx.grid_2d_graph(4, 4, periodic=True)
    torus = nx.convert_node_labels_to_integers(grid, ordering="sorted")
    pair = nx.path_graph(2)
    known: list[tuple[Topology, int | None]] = [
        (planes(17, 8), 2),
        (planes(33, 4), 8),
        (planes(16, 2), 8),
        (dual_homed(2, 8, 2, 4), 8),
        (dual_homed(2, 12, 2, 6), 12),
        (dual_homed(2, 16, 2, 8), 16),
        (dual_homed(4, 6, 2, 3), 12),
        (gw.topology.from_spec("a100:boxes=4"), 4),
        (gw.topology.from_spec("a100:boxes=8"), 8),
        (star_of_rings(5, 5), 22),
        (joined("two tori 4x4 joined by one link", torus, 2, 1, pair), 20),
        (two_sites(8, 2), None),
        (gw.topology.dragonfly(9, 4, 2, 2), None),
        (gw.topology.dragonfly(5, 4, 2), None),
        (gw.topology.from_spec("jellyfish:reference=J15"), None),
        (gw.topology.from_spec("jellyfish:reference=J20"), None),
    ]
    return {network.name: (network, rounds) for network, rounds in known}


def _planes(rng: np.random.Generator) -> Topology:
    return planes(int(rng.integers(8, 49)), int(rng.integers(2, 9)))


def _dual_homed(rng: np.random.Generator) -> Topology:
    per_pair, spines = int(rng.integers(4, 13)), int(rng.integers(1, 5))
    trunk = max(1, round(per_pair / spines / int(rng.integers(1, 3))))
    return dual_homed(int(rng.integers(2, 6)), per_pair, spines, trunk)


def _rails(rng: np.random.Generator) -> Topology:
    gpus = int(rng.choice([4, 8]))
    inside, count = int(rng.choice([1, 2, 4, 6])), int(rng.choice([gpus, gpus // 2]))
    return rails(int(rng.integers(2, 9)), gpus, inside, count)


def _leaf_spine(rng: np.random.Generator) -> Topology:
    leaves, spines, each = (int(rng.integers(*span)) for span in ((2, 7), (1, 5), (4, 11)))
    excess = Fraction(int(rng.integers(2, 9)), 2)
    return gw.topology.leaf_spine(leaves, spines, each, excess)


def _fat_tree(rng: np.random.Generator) -> Topology:
    """A k-ary fat tree in which some servers are missing, as in a half-filled hall."""
    whole = gw.topology.fat_tree(int(rng.choice([4, 6, 8])))
    gone = rng.choice(whole.servers, int(rng.integers(0, whole.num_servers // 2)), replace=False)
    kept = np.setdiff1d(np.arange(whole.num_nodes), gone)
    place = np.full(whole.num_nodes, -1)
    place[kept] = np.arange(len(kept))
    there = (place[whole.source] >= 0) & (place[whole.target] >= 0) & (whole.source < whole.target)
    return Topology.from_links(
        f"{whole.name} with {len(kept) - len(whole.switches)} servers",
        servers=len(kept) - len(whole.switches),
        switches=len(whole.switches),
        links=np.stack([place[whole.source[there]], place[whole.target[there]]], axis=1),
    )


def _dragonfly(rng: np.random.Generator) -> Topology:
    routers, each, per_port = (int(rng.integers(*span)) for span in ((2, 5), (1, 4), (1, 3)))
    groups = int(rng.integers(2, min(routers * per_port + 1, 8) + 1))
    return gw.topology.dragonfly(groups, routers, each, per_port)


def _sites(rng: np.random.Generator) -> Topology:
    size, sites, between = (int(rng.integers(*span)) for span in ((4, 13), (2, 5), (1, 5)))
    shapes = [nx.complete_graph(size), nx.cycle_graph(size), nx.circulant_graph(size, [1, 2])]
    which = int(rng.integers(len(shapes)))
    apart = [nx.path_graph(sites), nx.complete_graph(sites)][int(rng.integers(2))]
    name = f"{sites} sites of {size} ({('complete', 'ring', 'two rings')[which]}), {between} links"
    kind = "chain" if apart.number_of_edges() < sites else "mesh"
    return joined(f"{name}, {kind}", shapes[which], sites, min(between, size), apart)


def _star_of_rings(rng: np.random.Generator) -> Topology:
    return star_of_rings(int(rng.integers(2, 9)), int(rng.integers(3, 9)))


def _regular(rng: np.random.Generator) -> Topology:
    degree = int(rng.integers(3, 7))
    servers = 2 * int(rng.integers(4, 33))
    for attempt in itertools.count():
        graph = nx.random_regular_graph(degree, servers, seed=int(rng.integers(1 << 30)))
        if nx.is_connected(graph):
            break
        assert attempt < 100
    name = f"random regular graph of {servers}, degree {degree}"
    return Topology.from_links(name, servers=servers, switches=0, links=list(graph.edges))


KINDS: dict[str, Callable[[np.random.Generator], Topology]] = {
    "planes": _planes,
    "dual-homed racks": _dual_homed,
    "rails": _rails,
    "leaf–spine": _leaf_spine,
    "fat-tree": _fat_tree,
    "dragonfly": _dragonfly,
    "sites": _sites,
    "star of rings": _star_of_rings,
    "random regular": _regular,
}
"""By kind: makes a network from a generator of random numbers."""


def cluster_network(seed: int) -> tuple[str, Topology]:
    """The kind and the network of a seed; kinds take turns."""
    kind = list(KINDS)[seed % len(KINDS)]
    network = KINDS[kind](np.random.default_rng([2028, seed]))
    return kind, network
