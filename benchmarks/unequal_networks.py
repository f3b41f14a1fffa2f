"""Networks whose links differ: thin trunks, slowed links, wide areas, boxes with network cards.

`KINDS` makes one network of each kind from a seed; those of wide areas are published tables
(`wide_area_tables.py`).
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import networkx as nx
import numpy as np

from benchmarks.wide_area_tables import ABILENE, GEANT, GEANT_2012_LINKS, GEANT_2012_SITES
from gradweave.topology import Topology
from gradweave.topology.families.places.cities import CITIES
from gradweave.topology.topology import DEVICE_OVERHEAD_S

GBIT = 1e3
"""In Mbit/s."""
KM_PER_MS = 200.0
"""How far light goes in fibre."""
LIT_FIBRE = 40 * GBIT
"""Taken where GÉANT's map gives no rate: four wavelengths of 10 Gbit/s, SNDlib's module."""
EARTH_KM = 6371.0

Joined = tuple[int, int, float, float]
"""A link: two nodes, milliseconds, Mbit/s."""
Place = tuple[str, str, float, float]
"""The same between named places."""


def network(name: str, servers: int, switches: int, links: Sequence[Joined]) -> Topology:
    """A network of links that differ, alike in both directions.

    Args:
        name: the network's name.
        servers: number of servers; they are nodes 0 … servers−1.
        switches: number of switches; they follow the servers.
        links: two nodes, latency in ms and bandwidth in Mbit/s of each.
    """
    made = Topology.from_links(
        name, servers=servers, switches=switches, links=[link[:2] for link in links]
    )
    by_ends = {frozenset(link[:2]): link[2:] for link in links}
    ends = zip(made.source.tolist(), made.target.tolist(), strict=True)
    latency, rate = np.array([by_ends[frozenset(pair)] for pair in ends]).T
    return dataclasses.replace(made, latency_s=latency * 1e-3, bandwidth_bytes_per_s=rate * 125e3)


def racks(rng: np.random.Generator) -> Topology:
    """Racks on a switch each, every switch on one core by a trunk that is too thin for its rack."""
    count, each = int(rng.integers(2, 5)), int(rng.integers(4, 8))
    rate, excess = float(rng.choice([10, 25, 100])) * GBIT, float(rng.uniform(1.5, 8))
    trunk = rate * each / excess
    slow = float(rng.choice([1, 0.5, 0.25]))
    near, far = _log_uniform(rng, 0.01, 0.1), _log_uniform(rng, 0.01, 0.5)
    servers = count * each
    links = [(s, servers + s // each, near, rate) for s in range(servers)]
    links += [
        (servers + r, servers + count, far, trunk * (slow if r == 0 else 1)) for r in range(count)
    ]
    name = f"{count} racks of {each}, trunks {excess:.1f}:1"
    return network(name + f", one at {slow:g}" * (slow < 1), servers, count + 1, links)


def slowed(rng: np.random.Generator) -> Topology:
    """A ring, mesh or torus with one to three links at a part of their speed."""
    rows, columns = (
        (1, int(rng.integers(8, 17))) if rng.random() < 0.4 else (4, int(rng.integers(3, 6)))
    )
    torus = rows > 1 and bool(rng.random() < 0.4)
    grid = nx.cycle_graph(columns) if rows == 1 else nx.grid_2d_graph(rows, columns, periodic=torus)
    graph = nx.convert_node_labels_to_integers(grid, ordering="sorted")
    edges, delay = sorted(graph.edges), _log_uniform(rng, 0.01, 1)
    factors = dict.fromkeys(rng.permutation(len(edges))[: int(rng.integers(1, 4))].tolist(), 1.0)
    for chosen in factors:
        factors[chosen] = float(rng.choice([0.125, 0.25, 0.5, 0.75, 0.875]))
    links = [(a, b, delay, 25 * GBIT * factors.get(i, 1.0)) for i, (a, b) in enumerate(edges)]
    shape = (
        f"ring of {columns}" if rows == 1 else f"{'torus' if torus else 'mesh'} {rows}x{columns}"
    )
    slow = ", ".join(f"{edges[i][0]}–{edges[i][1]} at {f:g}" for i, f in sorted(factors.items()))
    return network(f"{shape}, {slow}", len(graph), 0, links)


def random_graph(rng: np.random.Generator) -> Topology:
    """A random connected graph; bandwidths over two decades, latencies around one of its own."""
    servers, degree = int(rng.integers(8, 19)), float(rng.uniform(2.5, 4))
    order = rng.permutation(servers).tolist()
    graph = nx.Graph((order[i], order[int(rng.integers(i))]) for i in range(1, servers))
    while graph.number_of_edges() < degree * servers / 2:
        graph.add_edge(*rng.choice(servers, 2, replace=False).tolist())
    delay = _log_uniform(rng, 0.01, 10)
    links = [
        (a, b, delay * _log_uniform(rng, 1, 3), _log_uniform(rng, 1, 100) * GBIT)
        for a, b in sorted(map(sorted, graph.edges))
    ]
    name = f"random graph of {servers}, {len(links)} links of 1 to 100 Gbit/s, {delay:.2g} ms"
    return network(name, servers, 0, links)


def boxes(rng: np.random.Generator) -> Topology:
    """Boxes of eight GPUs on a switch inside, with one, four or eight network cards each."""
    count, cards = int(rng.integers(2, 4)), int(rng.choice([1, 4, 8]))
    card, slow = float(rng.choice([100, 200, 400])) * GBIT, float(rng.choice([1, 0.5, 0.25]))
    servers, delay = 8 * count, _log_uniform(rng, 0.01, 0.05)
    fabric = servers + count + cards * count
    links = [(s, servers + s // 8, 0.01, 2400 * GBIT) for s in range(servers)]
    for each in range(cards * count):
        box, place, here = each // cards, each % cards, servers + count + each
        if cards == 1:
            links.append((servers + box, here, 0.01, 8 * card))
        else:
            gpus = range(box * 8 + place * 8 // cards, box * 8 + (place + 1) * 8 // cards)
            links += [(gpu, here, 0.01, card) for gpu in gpus]
        links.append((here, fabric, delay, card * (slow if each == 0 else 1)))
    name = f"{count} boxes of 8 with {cards} card{'s' * (cards > 1)} of {card / GBIT:g} Gbit/s"
    name += f", one at {slow:g}" * (slow < 1)
    made = network(name, servers, count + cards * count + 1, links)
    return dataclasses.replace(made, overhead_s=np.full(len(made.source), DEVICE_OVERHEAD_S))


def halves(rng: np.random.Generator) -> Topology:
    """Two switches of servers, or two rings or complete graphs, joined by one or two thin links."""
    size, between = int(rng.integers(4, 9)), int(rng.integers(1, 3))
    shape = str(rng.choice(["star", "ring", "complete graph"]))
    rate, thin = float(rng.choice([10, 25])) * GBIT, 1 / float(rng.choice([2, 5, 10, 20]))
    near, far = _log_uniform(rng, 0.01, 0.2), _log_uniform(rng, 0.1, 30)
    servers, unlike = 2 * size, float(rng.choice([1, 0.5]))
    if shape == "star":
        links = [(s, servers + s // size, near, rate) for s in range(servers)]
        ends = [(servers, servers + 2 + i, servers + 1) for i in range(between)]
    else:
        graph = nx.cycle_graph(size) if shape == "ring" else nx.complete_graph(size)
        links = [(h * size + a, h * size + b, near, rate) for h in (0, 1) for a, b in graph.edges]
        ends = [(i * size // 2, servers + i, size + i * size // 2) for i in range(between)]
    for i, (left, router, right) in enumerate(ends):
        over = rate * thin * (unlike if i else 1)
        links += [(left, router, far / 2, over), (router, right, far / 2, over)]
    name = f"two {shape}s of {size} joined by {'one link' if between == 1 else 'two links'}"
    name += f" at {thin:g}" + f" and {thin * unlike:g}" * (between == 2) + f", {far:.2g} ms"
    return network(name, servers, (2 if shape == "star" else 0) + between, links)


def wide_areas() -> list[Topology]:
    """Ten networks of cities, from published tables."""
    cities, geant = _cities(), _geant_2012()
    fast = [link for link in geant if link[3] >= 2500]
    six = {"Virginia", "Ohio", "Oregon", "London", "Frankfurt", "Ireland"}
    capitals = ("NL", "DK", "PL", "DE", "FR", "IT", "HU", "ES", "UK", "SE", "RO", "GR")
    return [
        _placed("ten cities", cities),
        _placed("GÉANT 2012", geant),
        _placed("Abilene", _with_lengths(ABILENE)),
        _placed("six cities", [link for link in cities if six >= set(link[:2])]),
        _placed("GÉANT 2012, links of 2.5 Gbit/s or more", fast),
        _placed("twelve capitals on GÉANT 2012", [*geant, *_servers(capitals, 10 * GBIT)]),
        _placed("Abilene, two servers a site", _twice(_with_lengths(ABILENE), 0.05, 10 * GBIT)),
        _placed("ten cities, three fastest links each", _fastest(cities, 3)),
        _placed("GÉANT", _with_lengths(GEANT, 40 * GBIT)),
        _placed("ten cities, two servers each", _twice(cities, 2.5, 2 * GBIT)),
    ]


def _rows(text: str, width: int) -> Iterable[list[str]]:
    words = text.split()
    return (words[i : i + width] for i in range(0, len(words), width))


def _cities() -> list[Place]:
    """Half of each delay, which is a round trip's."""
    return [(a, b, float(ms) / 2, float(gbit) * GBIT) for a, b, ms, gbit in _rows(CITIES, 4)]


def _with_lengths(text: str, rate: float | None = None) -> list[Place]:
    """Links with lengths; with a rate of their own where none is given for all."""
    rows = _rows(text, 3 if rate else 4)
    return [(a, b, float(km) / KM_PER_MS, rate or float(own[0])) for a, b, km, *own in rows]


def _geant_2012() -> list[Place]:
    at = {
        site: (math.radians(float(north)), math.radians(float(east)))
        for site, north, east in _rows(GEANT_2012_SITES, 3)
    }
    return [
        (a, b, _great_circle_km(at[a], at[b]) / KM_PER_MS, float(rate) or LIT_FIBRE)
        for a, b, rate in _rows(GEANT_2012_LINKS, 3)
    ]


def _great_circle_km(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Between two places in radians north and east."""
    (north, east), (there, along) = one, other
    cosine = math.cos(north) * math.cos(there) * math.cos(along - east)
    return EARTH_KM * math.acos(min(1.0, math.sin(north) * math.sin(there) + cosine))


def _fastest(links: list[Place], count: int) -> list[Place]:
    """Those that are among the fastest of one of their ends."""
    kept: set[Place] = set()
    for place in dict.fromkeys(itertools.chain.from_iterable(link[:2] for link in links)):
        own = [link for link in links if place in link[:2]]
        kept |= set(sorted(own, key=lambda link: -link[3])[:count])
    return [link for link in links if link in kept]


def _servers(places: Iterable[str], rate: float) -> list[Place]:
    """A server on the router of each place, 0.05 ms away."""
    return [(f"server {place}", place, 0.05, rate) for place in places]


def _twice(links: list[Place], delay: float, rate: float) -> list[Place]:
    """Two servers on the router of each place."""
    places = dict.fromkeys(itertools.chain.from_iterable(link[:2] for link in links))
    local = [(f"server {place} {i}", place, delay, rate) for place in places for i in (1, 2)]
    return [*links, *local]


def _placed(name: str, links: list[Place]) -> Topology:
    """A network of named places: servers, or routers where there are servers on them."""
    places = list(dict.fromkeys(itertools.chain.from_iterable(link[:2] for link in links)))
    servers = [place for place in places if place.startswith("server ")] or places
    order = [*servers, *(place for place in places if place not in servers)]
    rank = {place: i for i, place in enumerate(order)}
    joined = [(rank[a], rank[b], ms, rate) for a, b, ms, rate in links]
    made = network(name, len(servers), len(order) - len(servers), joined)
    return dataclasses.replace(made, labels=tuple(one.removeprefix("server ") for one in order))


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(low * (high / low) ** rng.random())


KINDS: dict[str, Callable[[np.random.Generator], Topology] | None] = {
    "racks": racks,
    "slowed links": slowed,
    "random graph": random_graph,
    "wide area": None,
    "boxes": boxes,
    "two halves": halves,
}
"""By kind: makes a network from a generator of random numbers; None for the published ones."""
SMALL_LATENCY = 0.1
"""Share of the bound up to which latency counts as small."""
COUNT = 60
"""As many of each kind as there are published ones."""


def by_kind(rows: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Rows of measurements: where latency is small, by kind and all; and the rest.

    Args:
        rows: each with its ``kind``, and ``latency_share``: of the bound.
    """
    small = [row for row in rows if row["latency_share"] < SMALL_LATENCY]
    large = [row for row in rows if row["latency_share"] >= SMALL_LATENCY]
    groups = [(kind, [row for row in small if row["kind"] == kind]) for kind in KINDS]
    groups += [("all where latency is small", small), ("latency a tenth or more", large)]
    return [(name, group) for name, group in groups if group]


def unequal_network(seed: int) -> tuple[str, Topology]:
    """The kind and the network of a seed; kinds take turns.

    Args:
        seed: 0 to 59 are the networks on which choices were made; from 60 on others like them,
            wide areas of sites drawn from GÉANT's.
    """
    kind = list(KINDS)[seed % len(KINDS)]
    make = KINDS[kind]
    if make is not None:
        return kind, make(np.random.default_rng([2030, seed]))
    if seed < COUNT:
        return kind, wide_areas()[seed // len(KINDS)]
    return kind, drawn_sites(np.random.default_rng([2030, seed]))


def drawn_sites(rng: np.random.Generator) -> Topology:
    """Some of GÉANT's sites, each joined to its nearest ones; bandwidths over two decades.

    Half the time each site has two servers, else it is one.
    """
    places = {site: (float(north), float(east)) for site, north, east in _rows(GEANT_2012_SITES, 3)}
    chosen = sorted(rng.choice(sorted(places), int(rng.integers(6, 17)), replace=False).tolist())
    at = {site: (math.radians(places[site][0]), math.radians(places[site][1])) for site in chosen}
    graph = nx.Graph()
    for site in chosen:
        near = sorted(chosen, key=lambda other: _great_circle_km(at[site], at[other]))
        graph.add_edges_from((site, other) for other in near[1 : 1 + int(rng.integers(2, 4))])
    while not nx.is_connected(graph):
        parts = [sorted(part) for part in nx.connected_components(graph)]
        graph.add_edge(parts[0][0], parts[1][0])
    links = [
        (a, b, _great_circle_km(at[a], at[b]) / KM_PER_MS, _log_uniform(rng, 0.4, 40) * GBIT)
        for a, b in sorted(map(sorted, graph.edges))
    ]
    twice = rng.random() < 0.5
    name = f"{len(chosen)} sites drawn from GÉANT's, {len(links)} links of .4 to 40 Gbit/s"
    name += ", two servers each" if twice else ""
    return _placed(name, _twice(links, 0.5, 10 * GBIT) if twice else links)
