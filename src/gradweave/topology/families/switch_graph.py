"""Networks given by a graph of switches with equally many servers on each."""

import numpy as np
from numpy.typing import NDArray

from gradweave.topology.drawing import circle
from gradweave.topology.families.family import check_size, integer, spec_name
from gradweave.topology.topology import Link, Topology

MAX_ARRANGED = 300
"""Most switches for which positions are computed; more would take longer than the rest."""


def servers_per_switch(family: str, count: int) -> tuple[int, str]:
    """The number of servers on each switch, checked, and how a specification states it.

    Args:
        family: the family's name, for the message.
        count: servers on each switch; 0 if there are no switches and the graph's nodes are servers.
    """
    count = integer(family, "servers_per_switch", count, least=0)
    return count, "" if count == 1 else f",servers_per_switch={count}"


def switch_graph(
    name: str, switches: int, per_switch: int, pairs: NDArray, link: Link | None
) -> Topology:
    """Puts servers on the switches of a graph; server i is on switch i // per_switch.

    Args:
        name: the network's specification, except for properties of links.
        switches: number of switches; they follow the servers.
        per_switch: servers on each switch; 0 makes the graph's nodes servers.
        pairs: [links, 2] of switches, numbered from 0.
        link: properties of every link; `Link()` if not given.
    """
    servers = switches * (per_switch or 1)
    behind = switches if per_switch else 0
    check_size(name, servers + behind, len(pairs) + servers * (behind > 0))
    server = np.arange(servers)
    if per_switch:
        access = np.stack([server, servers + server // per_switch], axis=1)
        pairs = np.concatenate([access, servers + pairs])
    positions = None
    if switches <= MAX_ARRANGED:
        first = servers if per_switch else 0
        positions = _positions(switches, per_switch, pairs[servers if per_switch else 0 :] - first)
    return Topology.from_links(
        spec_name(name, link),
        servers=servers,
        switches=behind,
        links=pairs,
        link=link,
        positions=positions,
    )


def _positions(switches: int, per_switch: int, pairs: NDArray) -> NDArray[np.float64]:
    """Switches on a circle, ordered so that linked ones are close; their servers outside."""
    place = np.empty(switches, np.int64)
    place[_circular_order(switches, pairs)] = np.arange(switches)
    if not per_switch:
        return circle(switches)[place]
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
