"""Circulant: a ring of servers with further links of fixed lengths."""

import math
from collections.abc import Sequence

import numpy as np

from gradweave.errors import TopologyError
from gradweave.topology.drawing import MAX_DRAWN, circle
from gradweave.topology.families.family import check_size, integer, spec_name
from gradweave.topology.topology import Link, Topology


def circulant(n: int, jumps: Sequence[int], *, link: Link | None = None) -> Topology:
    """Makes a circulant: n servers, server i linked to i ± j modulo n for each jump j.

    Args:
        n: number of servers, at least 2.
        jumps: different numbers from 1 to n/2, without a common divisor with n; each gives a server
            two links, n/2 only one.
        link: properties of every link; `Link()` if not given.

    Raises:
        TopologyError: naming the parameter.

    Source: Bermond, Comellas and Hsu, "Distributed loop computer networks: a survey", 1995.

    >>> circulant(16, (1, 6))
    Topology('circulant:n=16,jumps=1.6': 16 servers, 0 switches, 32 links)
    """
    n = integer("circulant", "n", n, least=2)
    steps = [integer("circulant", "jumps", jump, least=1, most=n // 2) for jump in jumps]
    name = f"circulant:n={n},jumps={'.'.join(map(str, steps))}"
    if len(set(steps)) < len(steps) or not steps:
        raise TopologyError(f"{name}: jumps must be different numbers such as (1, 6)")
    if math.gcd(n, *steps) > 1:
        raise TopologyError(f"{name}: {n} and the jumps have a common divisor: not connected")
    check_size(name, n, n * len(steps))
    server = np.arange(n)
    links = [
        np.stack([server, (server + jump) % n], axis=1)
        if 2 * jump < n
        else np.stack([server[:jump], server[jump:]], axis=1)
        for jump in steps
    ]
    return Topology.from_links(
        spec_name(name, link),
        servers=n,
        switches=0,
        links=np.concatenate(links),
        link=link,
        positions=circle(n) if n <= MAX_DRAWN else None,
    )
