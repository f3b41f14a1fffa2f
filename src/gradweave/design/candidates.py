"""Networks of servers with direct links: members of families, circulants and random graphs."""

import dataclasses
from collections.abc import Iterator

import networkx as nx
import numpy as np

from gradweave.design.bound import every_network
from gradweave.design.graphs import best_circulants, score, with_links_swapped
from gradweave.errors import OptionError
from gradweave.topology.families.family import spec_name
from gradweave.topology.families.random_graph import connected_random_graph
from gradweave.topology.families.switch_graph import switch_graph
from gradweave.topology.spec import from_spec
from gradweave.topology.topology import Link, Topology

MOST_SERVERS = 256
"""Most servers for which networks are compared."""
PER_FAMILY = 2
"""Most networks of one family, those of least diameter and mean distance; of circulants as well."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A network of N servers with at most d links each."""

    network: Topology
    family: str
    bundle: int
    """Parallel links that each link stands for, as its bandwidth says."""
    diameter: int
    mean_hops: float
    """Mean distance between two servers."""
    also: tuple[str, ...] = ()
    """Other specifications of the same graph."""

    @property
    def degree(self) -> int:
        """Most links of a server, parallel ones counted."""
        return _degree(self.network) * self.bundle


def candidates(
    servers: int, degree: int, *, link: Link | None = None, seed: int = 0
) -> list[Candidate]:
    """Networks of that many servers, directly linked, with at most that many links each.

    They are the families' members of exactly that size, of each the `PER_FAMILY` best; the best
    circulants (`best_circulants`); a random regular graph, and one improved by swaps of links. A
    network with half of the links or fewer gets bundles of parallel ones. Isomorphic networks are
    listed once.

    Args:
        servers: 2 to `MOST_SERVERS`.
        degree: most links of a server.
        link: properties of each link; `Link()` if not given.
        seed: the only source of random choices.

    Raises:
        OptionError: naming the parameter.
    """
    link = link or Link()
    if not 2 <= servers <= MOST_SERVERS:
        raise OptionError(f"design: expected 2 to {MOST_SERVERS} servers, got {servers}")
    if not (1 if servers == 2 else 2) <= degree <= 1024:
        raise OptionError(f"design: expected 2 to 1024 links per server, got {degree}")
    found: list[Candidate] = []
    for family, specs in _specifications(servers, degree, seed).items():
        members = [_candidate(family, from_spec(spec), degree, link) for spec in specs]
        ranked = sorted(filter(None, members), key=lambda one: (one.diameter, one.mean_hops))
        for member in ranked[:PER_FAMILY]:
            _add(found, member)
    if 2 < degree < servers - 1:
        member = _candidate("swapped", _swapped(servers, degree, seed), degree, link)
        assert member is not None
        _add(found, member)
    return found


def _specifications(servers: int, degree: int, seed: int) -> dict[str, list[str]]:
    """Each family's networks of that many servers; those with too many links are sorted out later.

    For large grids this is done here, before they are made.
    """
    factors = list(_factorizations(servers))
    tori = [sizes for sizes in factors if sum(min(size - 1, 2) for size in sizes) <= degree]
    grids = [sizes for sizes in factors if sum(size - 1 for size in sizes) <= degree]
    direct = "servers_per_switch=0"
    families = {
        "torus": [f"torus:{_grid(sizes)}" for sizes in tori],
        "ring": [f"ring:{servers}"],
        "complete": [f"complete:{servers}"] * (servers <= degree + 1),
        "hypercube": [f"hypercube:{servers.bit_length() - 1}"] * (servers & servers - 1 == 0),
        "hyperx": [f"hyperx:{_grid(sizes)},{direct}" for sizes in grids],
        "slim_fly": [f"slim_fly:q={q},{direct}" for q in (3, 5, 7, 11) if 2 * q * q == servers],
        "xpander": [
            f"xpander:degree={d},lift={servers // (d + 1)},{direct},seed={seed}"
            for d in range(3, degree + 1)
            if servers % (d + 1) == 0 and servers > d + 1
        ],
    }
    if servers > 2:
        random = np.random.default_rng(seed)
        families["circulant"] = [
            f"circulant:n={servers},jumps={'.'.join(map(str, jumps))}"
            for jumps in best_circulants(servers, degree, PER_FAMILY, random)
        ]
    if 2 < degree < servers - 1:
        drawn = f"jellyfish:switches={servers},degree={degree},{direct},seed={seed}"
        families["jellyfish"] = [drawn]
    return families


def _grid(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def _factorizations(number: int, most: int | None = None) -> Iterator[tuple[int, ...]]:
    """Ways to write a number as a product of factors from 2 on, in descending order."""
    if number == 1:
        yield ()
    for factor in range(min(number, most or number), 1, -1):
        if number % factor == 0:
            for rest in _factorizations(number // factor, factor):
                yield (factor, *rest)


def _swapped(servers: int, degree: int, seed: int) -> Topology:
    """A random regular graph whose links are swapped as long as distances do not grow."""
    random, name = np.random.default_rng(seed), f"random graph with swapped links, seed {seed}"
    pairs = connected_random_graph(name, servers, degree, random)
    bound = every_network(servers, degree, 1.0, Link())
    pairs = with_links_swapped(pairs, servers, (bound.hops, servers * bound.total_hops), random)
    return switch_graph(name, servers, 0, pairs, None)


def _degree(network: Topology) -> int:
    return int(np.diff(network.first_link).max())


def _candidate(family: str, network: Topology, degree: int, link: Link) -> Candidate | None:
    """The network with these links, bundled if there is room, unless a server has too many."""
    bundle = degree // _degree(network)
    if not bundle:
        return None
    each = dataclasses.replace(
        link, bandwidth_bytes_per_s=bundle * link.bandwidth_bytes_per_s, capacity=1
    )
    columns = {
        "bandwidth_bytes_per_s": each.bandwidth_bytes_per_s,
        "latency_s": each.latency_s,
        "overhead_s": each.overhead_s,
    }
    neighbours = np.split(network.target, network.first_link[1:-1])
    diameter, total = score([near.tolist() for near in neighbours])
    return Candidate(
        dataclasses.replace(
            network,
            name=spec_name(network.name, each) if family != "swapped" else network.name,
            **{key: np.full(len(network.source), value) for key, value in columns.items()},
        ),
        family,
        bundle,
        int(diameter),
        total / (network.num_servers * (network.num_servers - 1)),
    )


def _add(found: list[Candidate], member: Candidate) -> None:
    """Adds a network, or its name to the isomorphic one that is there already."""
    for place, other in enumerate(found):
        if (other.diameter, other.degree) == (member.diameter, member.degree) and _same_graph(
            other.network, member.network
        ):
            also = (*other.also, member.network.name)
            found[place] = dataclasses.replace(other, also=also)
            return
    found.append(member)


def _same_graph(one: Topology, other: Topology) -> bool:
    graphs = [
        nx.Graph(zip(t.source.tolist(), t.target.tolist(), strict=True)) for t in (one, other)
    ]
    # Isomorphic graphs have the same eigenvalues; almost all other pairs differ in them.
    spectra = [np.linalg.eigvalsh(nx.to_numpy_array(graph)) for graph in graphs]
    return (
        len(spectra[0]) == len(spectra[1])
        and bool(np.allclose(*spectra, atol=1e-8))
        and nx.vf2pp_is_isomorphic(graphs[0], graphs[1])
    )
