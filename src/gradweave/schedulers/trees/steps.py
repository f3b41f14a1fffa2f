"""Steps in sequence: the minimum, and the steps by which each piece may reach each server."""

import numpy as np
from numpy.typing import NDArray

from gradweave.common.wording import counted
from gradweave.errors import NoScheduleError
from gradweave.schedulers.hops import Hops
from gradweave.topology.topology import Topology


def distances(hops: Hops, servers: int) -> NDArray[np.int16]:
    """[N, N] fewest steps from each server to each other; −1 if there is no path.

    Args:
        hops: between N servers.
        servers: N.
    """
    # Floats, since matrix products of integers do not use BLAS; only signs of the counts matter.
    near = np.zeros((servers, servers), np.float32)
    near[hops.source, hops.target] = 1
    distance = np.where(np.eye(servers, dtype=bool), 0, -1).astype(np.int16)
    reached, step = np.eye(servers, dtype=np.float32), 0
    while True:
        step += 1
        new = (reached @ near > 0) & (distance < 0)
        if not new.any():
            return distance
        distance[new] = step
        reached = new.astype(np.float32)


def fewest_steps(topology: Topology) -> int:
    """Fewest steps in sequence with which a piece reaches all servers.

    Args:
        topology: the network.

    >>> import gradweave as gw
    >>> fewest_steps(gw.topology.from_spec("dgx1v"))
    2
    """
    return int(distances(Hops.of(topology), topology.num_servers).max())


def steps_allowed(hops: Hops, root: NDArray, steps: int) -> NDArray[np.int16]:
    """[N, P] most steps by which a piece may reach a server, such that it still reaches all.

    In a shortest-path tree from the piece's root, a server's height is the number of levels below
    it; that many steps must remain. A server's parent in the tree has a larger height, so it can
    still send the piece on in time, whatever path the piece took to it.

    Args:
        hops: between N servers.
        root: [P] rank of each piece's root.
        steps: total number of steps in sequence.

    Raises:
        NoScheduleError: if more steps are needed.
    """
    servers = int(max(hops.source.max(), hops.target.max())) + 1
    distance = distances(hops, servers)
    if steps < distance.max():
        raise NoScheduleError(
            f"grown: steps: a piece needs {counted(int(distance.max()), 'transfer')} in sequence "
            f"to reach all servers, got {steps}"
        )
    height = np.zeros((servers, servers), np.int16)
    order = np.lexsort((hops.source, hops.target))
    source, target = hops.source[order], hops.target[order]
    for level in range(int(distance.max()), 0, -1):
        on_way = (distance[:, source] == level - 1) & (distance[:, target] == level)
        start, hop = np.nonzero(on_way)
        _, first = np.unique(start * servers + target[hop], return_index=True)
        start, hop = start[first], hop[first]
        above = height[start, target[hop]] + 1
        np.maximum.at(height, (start, source[hop]), above.astype(np.int16))
    return np.ascontiguousarray((steps - height).T[:, root], np.int16)
