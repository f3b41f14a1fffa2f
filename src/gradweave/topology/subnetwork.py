"""The network of some of a network's servers."""

import numpy as np
from numpy.typing import NDArray

from gradweave.topology.routes import server_routes
from gradweave.topology.topology import Topology


def subnetwork(
    topology: Topology, members: NDArray[np.integer], users: NDArray[np.int64] | None = None
) -> tuple[Topology, NDArray[np.int32]]:
    """The network of some servers, and the whole network's id of each of its nodes.

    If all are linked to each other directly, it consists of them and these links. Otherwise it also
    has all switches that join two of its nodes, and the other servers on their routes, which
    forward.

    Args:
        topology: the whole network.
        members: node ids of servers, ascending.
        users: [L] groups that share each link direction.
    """
    one, other = np.nonzero(~np.eye(len(members), dtype=bool))
    keep = np.zeros(topology.num_nodes, bool)
    keep[members] = True
    if (topology.find_links(members[one], members[other]) < 0).any():
        ranks = topology.rank[members]
        *_, nodes, _ = server_routes(topology, ranks[one], ranks[other])
        on_routes = keep.copy()
        on_routes[nodes] = True
        keep = _pruned(topology, on_routes | ~topology.is_server, on_routes)
    links = np.flatnonzero(keep[topology.source] & keep[topology.target])
    new = np.cumsum(keep) - 1
    nodes = np.flatnonzero(keep).astype(np.int32)
    shared = np.ones(len(topology.source), np.int64) if users is None else users
    return Topology(
        name=f"{len(members)} of {topology.name}",
        is_server=np.isin(nodes, members),
        source=new[topology.source[links]],
        target=new[topology.target[links]],
        bandwidth_bytes_per_s=topology.bandwidth_bytes_per_s[links] / shared[links],
        latency_s=topology.latency_s[links],
        capacity=topology.capacity[links],
        overhead_s=topology.overhead_s[links],
        labels=tuple(topology.labels[node] for node in nodes) if topology.labels else (),
    ), nodes


def _pruned(
    topology: Topology, keep: NDArray[np.bool_], needed: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """[V] without nodes that are not needed and have fewer than two neighbours left."""
    keep = keep.copy()
    while True:
        inside = keep[topology.source] & keep[topology.target]
        degree = np.bincount(topology.source[inside], minlength=topology.num_nodes)
        bare = keep & ~needed & (degree < 2)
        if not bare.any():
            return _reached(topology, keep, needed)
        keep &= ~bare


def _reached(
    topology: Topology, keep: NDArray[np.bool_], needed: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """[V] what is joined to the needed nodes."""
    reached = needed.copy()
    while True:
        entered = topology.target[reached[topology.source] & keep[topology.target]]
        before = int(reached.sum())
        reached[entered] = True
        if int(reached.sum()) == before:
            return reached
