"""Hypercube: servers whose ids differ in one bit are linked."""

import numpy as np

from gradweave.topology.drawing import MAX_DRAWN, oblique
from gradweave.topology.families.family import check_size, integer, spec_name
from gradweave.topology.topology import MAX_NODES, Link, Topology


def hypercube(dimension: int, *, link: Link | None = None) -> Topology:
    """Makes a hypercube of 2^dimension servers, linked where their ids differ in exactly one bit.

    Args:
        dimension: links of each server, at least 1.
        link: properties of every link; `Link()` if not given.

    Raises:
        TopologyError: naming the parameter.

    >>> hypercube(dimension=3)
    Topology('hypercube:dimension=3': 8 servers, 0 switches, 12 links)
    """
    dimension = integer(
        "hypercube", "dimension", dimension, least=1, most=MAX_NODES.bit_length() - 1
    )
    name = f"hypercube:dimension={dimension}"
    nodes = 1 << dimension
    check_size(name, nodes, nodes // 2 * dimension)
    node, bit = np.divmod(np.arange(nodes * dimension), dimension)
    lower = (node >> bit & 1) == 0
    links = np.stack([node, node | 1 << bit], axis=1)[lower]
    bits = np.arange(nodes)[:, None] >> np.arange(dimension)[::-1] & 1
    return Topology.from_links(
        spec_name(name, link),
        servers=nodes,
        switches=0,
        links=links,
        link=link,
        positions=oblique(bits, [2] * dimension) if nodes <= MAX_DRAWN else None,
    )
