"""Complete network: a direct link between every two servers."""

import numpy as np

from gradweave.topology.drawing import MAX_DRAWN, circle
from gradweave.topology.families.family import check_size, integer, spec_name
from gradweave.topology.topology import Link, Topology


def complete(n: int, *, link: Link | None = None) -> Topology:
    """Makes a complete network: n servers and a direct link between every two of them.

    Args:
        n: number of servers, at least 2.
        link: properties of every link; `Link()` if not given.

    Raises:
        TopologyError: naming the parameter.

    >>> complete(8)
    Topology('complete:n=8': 8 servers, 0 switches, 28 links)
    """
    n = integer("complete", "n", n, least=2)
    name = f"complete:n={n}"
    check_size(name, n, n * (n - 1) // 2)
    return Topology.from_links(
        spec_name(name, link),
        servers=n,
        switches=0,
        links=np.stack(np.triu_indices(n, 1), axis=1),
        link=link,
        positions=circle(n) if n <= MAX_DRAWN else None,
    )
