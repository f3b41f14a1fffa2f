"""Leaf and spine: a two-level fat tree whose upper links may be oversubscribed."""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gradweave.topology.drawing import MAX_DRAWN, evenly
from gradweave.topology.families.family import check_size, integer, spec_name
from gradweave.topology.rated import LinkGroup, exact_rate, rated_topology
from gradweave.topology.topology import Link, Topology


def leaf_spine(
    leaves: int,
    spines: int,
    servers_per_leaf: int,
    oversubscription: float | Fraction | str = 1,
    *,
    link: Link | None = None,
) -> Topology:
    """Makes a two-level fat tree: servers under leaf switches, each linked to every spine switch.

    A leaf's links to the spines together have the bandwidth of its servers' links divided by the
    oversubscription: 1 is non-blocking, 3 is the 3:1 of many clusters. Capacities are the
    bandwidths divided by their greatest common unit. Servers are numbered leaf by leaf; then come
    the leaves and the spines.

    Args:
        leaves: number of leaf switches, at least 2.
        spines: number of spine switches, at least 1.
        servers_per_leaf: servers of each leaf, at least 1.
        oversubscription: ratio of the bandwidth of a leaf's servers to that of its links to the
            spines; a number, or a fraction such as ``"3/2"``.
        link: properties of a server's link, `Link()` if not given; the latency is that of every
            link, the capacity that of a link at the greatest common unit.

    Raises:
        TopologyError: naming the parameter.

    >>> net = leaf_spine(leaves=4, spines=2, servers_per_leaf=6, oversubscription=3)
    >>> net, sorted(set(net.capacity.tolist()))
    (Topology('leaf_spine:leaves=4,spines=2,servers_per_leaf=6,oversubscription=3': 24 servers,
     6 switches, 32 links), [1])
    """
    leaves = integer("leaf_spine", "leaves", leaves, least=2)
    spines = integer("leaf_spine", "spines", spines, least=1)
    per_leaf = integer("leaf_spine", "servers_per_leaf", servers_per_leaf, least=1)
    excess = exact_rate("leaf_spine", "oversubscription", oversubscription)
    name = f"leaf_spine:leaves={leaves},spines={spines},servers_per_leaf={per_leaf}"
    if excess != 1:
        name += f",oversubscription={excess}"
    servers = leaves * per_leaf
    check_size(name, servers + leaves + spines, servers + leaves * spines)
    server = np.arange(servers)
    leaf, spine = np.divmod(np.arange(leaves * spines), spines)
    down = np.stack([server, servers + server // per_leaf], axis=1)
    up = np.stack([servers + leaf, servers + leaves + spine], axis=1)
    drawn = servers + leaves + spines <= MAX_DRAWN
    return rated_topology(
        spec_name(name, link),
        [LinkGroup(down, Fraction(1)), LinkGroup(up, Fraction(per_leaf, spines) / excess)],
        servers=servers,
        switches=leaves + spines,
        link=link or Link(),
        positions=_positions(leaves, spines, per_leaf) if drawn else None,
    )


def _positions(leaves: int, spines: int, per_leaf: int) -> NDArray[np.float64]:
    """Layers, servers lowest, with a gap between the servers of different leaves."""
    width = leaves * (per_leaf + 0.6)
    centre = evenly(leaves, width)
    x = [
        (centre[:, None] + evenly(per_leaf, per_leaf)).ravel(),
        centre,
        evenly(spines, 0.8 * width),
    ]
    height = max(1.0, width / 6)
    return np.concatenate(
        [np.stack([row, np.full(len(row), level * height)], axis=1) for level, row in enumerate(x)]
    )
