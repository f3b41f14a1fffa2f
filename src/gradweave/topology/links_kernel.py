"""Looking up the links of very many routes: the loop, compiled."""

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.topology.topology import Integers


@kernel
def links_along(
    first_link: Integers, target: Integers, nodes: Integers, offsets: Integers
) -> NDArray[np.int64]:
    """Link directions of ragged routes, as `Topology.links_along` gives them.

    Args:
        first_link: [V+1] index of each node's first outgoing link direction.
        target: [L] target of each link direction; ascending among those of one source.
        nodes: the routes' nodes, one route after the other.
        offsets: [M+1] where each route starts.
    """
    links = np.empty(len(nodes) - len(offsets) + 1, np.int64)
    count = 0
    for route in range(len(offsets) - 1):
        for place in range(offsets[route], offsets[route + 1] - 1):
            node, following = nodes[place], nodes[place + 1]
            low, high = first_link[node], first_link[node + 1]
            while low < high:
                middle = (low + high) // 2
                if target[middle] < following:
                    low = middle + 1
                else:
                    high = middle
            there = low < first_link[node + 1] and target[low] == following
            links[count] = low if there else -1
            count += 1
    return links
