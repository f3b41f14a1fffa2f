"""Jellyfish: a random regular graph of switches, with servers on each."""

import functools
import json
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import TopologyError
from gradweave.topology.drawing import circle
from gradweave.topology.families.family import check_size, integer, spec_name
from gradweave.topology.families.random_graph import connected_random_graph
from gradweave.topology.topology import Link, Topology

MAX_ARRANGED = 300
"""Most switches for which positions are computed; more would take longer than the rest."""


def jellyfish(
    switches: int,
    degree: int,
    servers_per_switch: int = 1,
    seed: int = 0,
    *,
    link: Link | None = None,
) -> Topology:
    """Makes a Jellyfish: a random regular graph of switches, with equally many servers on each.

    Server i is on switch i // servers_per_switch; the switches follow the servers. Every switch has
    `degree` links to others, except that one port stays free if the sum of degrees is odd.

    Args:
        switches: number of switches, at least 2.
        degree: ports of each switch that go to other switches, less than `switches`.
        servers_per_switch: servers on each switch.
        seed: seed of the random graph; the same seed gives the same network.
        link: properties of every link; `Link()` if not given.

    Raises:
        TopologyError: naming the parameter, or no connected graph was found.

    Source: Singla et al., "Jellyfish: networking data centers randomly", NSDI 2012, section 3.

    >>> jellyfish(switches=10, degree=4, seed=0)
    Topology('jellyfish:switches=10,degree=4,seed=0': 10 servers, 10 switches, 30 links)
    """
    switches = integer("jellyfish", "switches", switches, least=2)
    degree = integer("jellyfish", "degree", degree, least=1)
    per_switch = integer("jellyfish", "servers_per_switch", servers_per_switch, least=1)
    seed = integer("jellyfish", "seed", seed, least=0, most=(1 << 63) - 1)
    if degree >= switches:
        raise TopologyError(
            f"jellyfish: degree must be less than the number of switches, {switches}; got {degree}"
        )
    several = f",servers_per_switch={per_switch}" if per_switch > 1 else ""
    name = f"jellyfish:switches={switches},degree={degree}{several},seed={seed}"
    servers = switches * per_switch
    check_size(name, servers + switches, servers + switches * degree // 2)
    pairs = connected_random_graph(name, switches, degree, np.random.default_rng(seed))
    return _attach_servers(name, switches, per_switch, pairs, link)


def jellyfish_reference(name: str, seed: int = 0, *, link: Link | None = None) -> Topology:
    """One of the fixed Jellyfish graphs behind results for "J10", "J15" and "J20".

    They have 10, 15 and 20 switches of degree 4 with one server each, server i on switch i. Those
    of J20 are one link short of regular, as in the paper.

    Args:
        name: ``"J10"``, ``"J15"`` or ``"J20"``.
        seed: which of the 20 graphs of that size.
        link: properties of every link; `Link()` if not given.

    Raises:
        TopologyError: there is no such graph.

    >>> jellyfish_reference("J20", seed=3)
    Topology('jellyfish:reference=J20,seed=3': 20 servers, 20 switches, 59 links)
    """
    graphs = _reference_graphs()
    if name not in graphs:
        raise TopologyError(
            f"jellyfish: reference must be one of {', '.join(graphs)}; got {name!r:.40}"
        )
    graph = graphs[name]
    by_seed = graph["switch_links_by_seed"]
    seed = integer("jellyfish", "seed", seed, least=0, most=len(by_seed) - 1)
    title = f"jellyfish:reference={name},seed={seed}"
    return _attach_servers(title, graph["switches"], 1, np.array(by_seed[seed]), link)


@functools.cache
def _reference_graphs() -> dict[str, Any]:
    data = resources.files("gradweave.topology.families") / "data" / "jellyfish-reference.json"
    return json.loads(data.read_text("utf-8"))


def _attach_servers(
    name: str, switches: int, per_switch: int, pairs: NDArray, link: Link | None
) -> Topology:
    servers = switches * per_switch
    server = np.arange(servers)
    links = np.concatenate(
        [np.stack([server, servers + server // per_switch], axis=1), servers + pairs]
    )
    return Topology.from_links(
        spec_name(name, link),
        servers=servers,
        switches=switches,
        links=links,
        link=link,
        positions=_positions(switches, per_switch, pairs) if switches <= MAX_ARRANGED else None,
    )


def _positions(switches: int, per_switch: int, pairs: NDArray) -> NDArray[np.float64]:
    """Switches on a circle, ordered so that linked ones are close; their servers outside."""
    place = np.empty(switches, np.int64)
    place[_circular_order(switches, pairs)] = np.arange(switches)
    rows = -(-per_switch // 4)
    angle = np.pi / 2 + 2 * np.pi * place / switches
    # Up to four servers side by side on an outer circle, more on circles farther out.
    server = np.arange(switches * per_switch)
    beside, row = server % per_switch % 4, server % per_switch // 4
    abreast = min(per_switch, 4)
    outer = np.repeat(angle, per_switch) + 2 * np.pi / switches * (
        (beside + 0.5) / abreast - 0.5
    ) * 0.8 * (abreast > 1)
    radius = 1.3 + 0.22 * row * (rows > 1)
    around = np.stack([np.cos(outer), np.sin(outer)], axis=1) * radius[:, None]
    return np.concatenate([around, circle(switches)[place]]).astype(np.float64)


def _circular_order(switches: int, pairs: NDArray) -> NDArray[np.int64]:
    """The switches by their angle in the plane of the two smoothest eigenvectors of the graph."""
    laplacian = np.zeros((switches, switches))
    laplacian[pairs[:, 0], pairs[:, 1]] = laplacian[pairs[:, 1], pairs[:, 0]] = -1
    np.fill_diagonal(laplacian, -laplacian.sum(axis=1))
    vectors = np.linalg.eigh(laplacian)[1]
    y, x = (vectors[:, 1], vectors[:, 2]) if switches > 2 else (vectors[:, 1], vectors[:, 0])
    return np.argsort(np.arctan2(y, x), kind="stable")
