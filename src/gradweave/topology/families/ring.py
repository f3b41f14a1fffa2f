"""Ring: servers linked in a cycle."""

import numpy as np

from gradweave.topology.drawing import MAX_DRAWN, circle
from gradweave.topology.families.family import check_size, integer, spec_name
from gradweave.topology.topology import Link, Topology


def ring(n: int, *, link: Link | None = None) -> Topology:
    """Makes a ring of n servers, each linked to its predecessor and successor.

    Two servers have one link.

    Args:
        n: number of servers, at least 2.
        link: properties of every link; `Link()` if not given.

    Raises:
        TopologyError: naming the parameter.

    >>> ring(8)
    Topology('ring:n=8': 8 servers, 0 switches, 8 links)
    """
    n = integer("ring", "n", n, least=2)
    name = f"ring:n={n}"
    check_size(name, n, n)
    server = np.arange(n if n > 2 else 1)
    return Topology.from_links(
        spec_name(name, link),
        servers=n,
        switches=0,
        links=np.stack([server, (server + 1) % n], axis=1),
        link=link,
        positions=circle(n) if n <= MAX_DRAWN else None,
    )
