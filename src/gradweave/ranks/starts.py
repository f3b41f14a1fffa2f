"""Initial orders for a search, with near servers next to each other."""

import numpy as np
from numpy.typing import NDArray

from gradweave.ranks.pattern import Routes
from gradweave.topology.topology import LINK_PROPERTIES, Topology


def by_nearness(routes: Routes) -> NDArray[np.int64]:
    """[N] servers in the order of a hierarchy: servers that are joined first are adjacent.

    Repeatedly joins the two clusters with the fastest hop between them, by its scarcest link and
    then by the sum of its links. Boxes, racks and pods of any size stay together without further
    information. The joined cluster starts with the part that has the lower server.

    Args:
        routes: routes of all pairs.

    Source: single-linkage clustering by a minimum spanning tree (Gower and Ross 1969).
    """
    count = routes.servers
    along = np.zeros(count * count)
    lengths = np.diff(routes.first)
    pair = np.repeat(np.arange(count * count), lengths)
    np.add.at(along, pair, routes.seconds_per_byte[routes.links])
    distance = np.maximum(routes.slowest, routes.slowest.T).ravel() + 1e-3 * along
    distance = distance.reshape(count, count)
    distance = np.maximum(distance, distance.T)
    members = [[server] for server in range(count)]
    cluster = np.arange(count)
    for one, other in _spanning_tree(distance):
        a, b = sorted((int(cluster[one]), int(cluster[other])), key=lambda c: min(members[c]))
        cluster[members[b]] = a
        members[a] = members[a] + members[b]
        members[b] = []
    return np.array(members[int(cluster[0])], np.int64)


def _spanning_tree(distance: NDArray[np.float64]) -> list[tuple[int, int]]:
    """The edges of a minimum spanning tree by Prim's algorithm, shortest first."""
    count = len(distance)
    near, to = distance[0].copy(), np.zeros(count, np.int64)
    done = np.zeros(count, bool)
    done[0] = True
    edges = []
    for _ in range(count - 1):
        new = int(np.argmin(np.where(done, np.inf, near)))
        edges.append((float(near[new]), int(to[new]), new))
        done[new] = True
        closer = distance[new] < near
        near[closer], to[closer] = distance[new][closer], new
    return [(one, other) for _, one, other in sorted(edges)]


def twins(topology: Topology) -> NDArray[np.int64]:
    """[N] the previous identical server, or −1: both are on one switch by identical links.

    Exchanging twins does not change the time.

    Args:
        topology: the network.
    """
    before = np.full(topology.num_servers, -1, np.int64)
    latest: dict[tuple[float, ...], int] = {}
    for rank, server in enumerate(topology.servers.tolist()):
        first, end = topology.first_link[server : server + 2].tolist()
        if end - first != 1:
            continue
        up, down = first, int(topology.opposite[first])
        alike = (getattr(topology, field)[[up, down]] for field in LINK_PROPERTIES)
        key = (int(topology.target[up]), *np.concatenate([*alike]).tolist())
        before[rank] = latest.get(key, -1)
        latest[key] = rank
    return before
