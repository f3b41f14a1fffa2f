"""Fat tree: servers under three layers of identical switches, with full bisection bandwidth."""

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import TopologyError
from gradweave.topology.drawing import MAX_DRAWN, evenly
from gradweave.topology.families.family import check_size, integer, spec_name
from gradweave.topology.topology import Link, Topology


def fat_tree(k: int, *, link: Link | None = None) -> Topology:
    """Makes a k-ary fat tree: k³/4 servers under 5k²/4 switches of k ports.

    There are k pods of k/2 edge and k/2 aggregation switches, and (k/2)² core switches. Servers are
    numbered pod by pod, k/2 to an edge switch; then come the edge switches and the aggregation
    switches, pod by pod, and the core switches. Aggregation switch a of every pod is linked to core
    switches a·k/2 … a·k/2 + k/2 − 1.

    Args:
        k: ports of every switch, even and at least 2.
        link: properties of every link; `Link()` if not given.

    Raises:
        TopologyError: naming the parameter.

    Source: Al-Fares, Loukissas and Vahdat, "A scalable, commodity data center network
        architecture", SIGCOMM 2008, section 3.

    >>> fat_tree(k=4)
    Topology('fat_tree:k=4': 16 servers, 20 switches, 48 links)
    """
    k = integer("fat_tree", "k", k, least=2)
    if k % 2:
        raise TopologyError(f"fat_tree: k must be even, got {k}")
    name, half = f"fat_tree:k={k}", k // 2
    servers, switches = k * half**2, k * k + half**2
    check_size(name, servers + switches, 3 * servers)
    edge, aggregation, core = servers, servers + k * half, servers + k * k
    server = np.arange(servers)
    # The k·(k/2)² links between two layers, as (pod, a, b) with a and b below k/2.
    pod, a, b = np.unravel_index(server, (k, half, half))
    links = [
        (server, edge + server // half),
        (edge + pod * half + a, aggregation + pod * half + b),
        (aggregation + pod * half + a, core + a * half + b),
    ]
    return Topology.from_links(
        spec_name(name, link),
        servers=servers,
        switches=switches,
        links=np.concatenate([np.stack(pair, axis=1) for pair in links]),
        link=link,
        positions=_positions(k) if servers + switches <= MAX_DRAWN else None,
    )


def _positions(k: int) -> NDArray[np.float64]:
    """Layers, servers lowest; pods side by side with a gap between them."""
    half = k // 2
    pod = np.arange(k) * (half**2 + 0.6 * half)
    pod = pod - pod.mean()
    width = pod[-1] - pod[0] + half**2
    height = max(1.0, width / 6)

    def layer(per_pod: int, level: int) -> NDArray[np.float64]:
        x = (pod[:, None] + evenly(per_pod, half**2)).ravel()
        return np.stack([x, np.full(len(x), level * height)], axis=1)

    top = np.stack([evenly(half**2, 0.8 * width), np.full(half**2, 3 * height)], axis=1)
    return np.concatenate([layer(half**2, 0), layer(half, 1), layer(half, 2), top])
