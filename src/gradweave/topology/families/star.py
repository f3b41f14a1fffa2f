"""Star: servers on one switch."""

import numpy as np

from gradweave.topology.drawing import MAX_DRAWN, circle
from gradweave.topology.families.family import check_size, integer, spec_name
from gradweave.topology.topology import Link, Topology


def star(n: int, *, link: Link | None = None) -> Topology:
    """Makes a star of n servers around one switch, which is node n.

    Args:
        n: number of servers, at least 2.
        link: properties of every link; `Link()` if not given.

    Raises:
        TopologyError: naming the parameter.

    >>> star(8)
    Topology('star:n=8': 8 servers, 1 switch, 8 links)
    """
    n = integer("star", "n", n, least=2)
    name = f"star:n={n}"
    check_size(name, n + 1, n)
    server = np.arange(n)
    return Topology.from_links(
        spec_name(name, link),
        servers=n,
        switches=1,
        links=np.stack([server, np.full(n, n)], axis=1),
        link=link,
        positions=np.concatenate([circle(n), np.zeros((1, 2))]) if n < MAX_DRAWN else None,
    )
