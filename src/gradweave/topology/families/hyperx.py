"""HyperX: switches on a grid, fully connected along every dimension."""

import math
from collections.abc import Sequence

import numpy as np

from gradweave.errors import TopologyError
from gradweave.topology.families.family import check_size
from gradweave.topology.families.switch_graph import servers_per_switch as checked_servers
from gradweave.topology.families.switch_graph import switch_graph
from gradweave.topology.families.torus import grid_sizes
from gradweave.topology.topology import Link, Topology


def hyperx(
    dimensions: Sequence[int], servers_per_switch: int = 1, *, link: Link | None = None
) -> Topology:
    """Makes a HyperX: switches of a grid, linked if they differ in exactly one coordinate.

    A hypercube is the case of all sizes 2, a flattened butterfly that of equal sizes. Switches are
    numbered with the last dimension running fastest.

    Args:
        dimensions: size of each dimension, at least 2.
        servers_per_switch: servers on each switch; 0: no switches, but servers linked directly.
        link: properties of every link; `Link()` if not given.

    Raises:
        TopologyError: naming the parameter.

    Source: Ahn, Binkert, Davis, McLaren and Schreiber, "HyperX: topology, routing, and packaging of
        efficient large-scale networks", SC 2009.

    >>> hyperx((4, 4), servers_per_switch=0)
    Topology('hyperx:4x4,servers_per_switch=0': 16 servers, 0 switches, 48 links)
    """
    sizes = grid_sizes("hyperx", dimensions)
    per_switch, several = checked_servers("hyperx", servers_per_switch)
    name = f"hyperx:{'x'.join(map(str, sizes))}{several}"
    if min(sizes) < 2:
        raise TopologyError(f"{name}: dimensions must be at least 2")
    switches = math.prod(sizes)
    ports = sum(size - 1 for size in sizes)
    check_size(name, switches * (per_switch + 1), switches * (per_switch + ports))
    ids = np.arange(switches).reshape(sizes)
    pairs = []
    for axis, size in enumerate(sizes):
        along = np.moveaxis(ids, axis, 0).reshape(size, -1)
        a, b = np.triu_indices(size, 1)
        pairs.append(np.stack([along[a].ravel(), along[b].ravel()], axis=1))
    return switch_graph(name, switches, per_switch, np.concatenate(pairs), link)
