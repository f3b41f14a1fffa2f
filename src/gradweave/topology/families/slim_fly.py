"""Slim Fly: switches linked as in the graphs of McKay, Miller and Širáň, of diameter two."""

import numpy as np

from gradweave.errors import TopologyError
from gradweave.topology.families.family import check_size, integer
from gradweave.topology.families.switch_graph import servers_per_switch as checked_servers
from gradweave.topology.families.switch_graph import switch_graph
from gradweave.topology.topology import Link, Topology


def slim_fly(q: int, servers_per_switch: int = 1, *, link: Link | None = None) -> Topology:
    """Makes a Slim Fly: 2q² switches of degree (3q ∓ 1)/2, two links from each other.

    Switch (s, x, y) has number (s·q + x)·q + y. Two with s = 0 and equal x are linked if their y
    differ by an element of X; two with s = 1 and equal x if by one of X′; (0, x, y) and (1, m, c)
    if y = m·x + c, modulo q.

    Args:
        q: an odd prime; powers of primes, for which the graphs also exist, are left out.
        servers_per_switch: servers on each switch; 0: no switches, but servers linked directly.
            The paper has half of the degree, rounded up.
        link: properties of every link; `Link()` if not given.

    Raises:
        TopologyError: naming the parameter.

    Source: Besta and Hoefler, "Slim Fly: a cost effective low-diameter network topology", SC 2014;
        X and X′ as in Hafner, "Geometric realisation of the graphs of McKay–Miller–Širáň", 2004.

    >>> slim_fly(5, servers_per_switch=4)
    Topology('slim_fly:q=5,servers_per_switch=4': 200 servers, 50 switches, 375 links)
    """
    q = integer("slim_fly", "q", q, least=3)
    per_switch, several = checked_servers("slim_fly", servers_per_switch)
    name = f"slim_fly:q={q}{several}"
    check_size(name, 2 * q * q * (1 + per_switch), q * q * (per_switch + 3 * q))
    if any(q % factor == 0 for factor in range(2, int(q**0.5) + 1)) or q % 2 == 0:
        raise TopologyError(f"slim_fly: q must be an odd prime such as 3, 5, 7 or 11, got {q}")
    root = next(r for r in range(2, q) if len({pow(r, e, q) for e in range(q - 1)}) == q - 1)
    powers = np.array([pow(root, exponent, q) for exponent in range(q - 1)])
    half = (q - 1) // 2
    if q % 4 == 1:
        even, odd = powers[0::2], powers[1::2]
    else:  # −1 is no square: half of the squares, half of the others, closed under negation
        even = np.concatenate([powers[0:half:2], powers[half::2]])
        odd = np.concatenate([powers[1 : half + 1 : 2], powers[half + 1 :: 2]])
    x, y = np.divmod(np.arange(q * q), q)
    pairs = []
    for side, differences in enumerate((even, odd)):
        first = side * q * q + x * q
        for difference in differences.tolist():
            pairs.append(np.stack([first + y, first + (y + difference) % q], axis=1))
    for m in range(q):
        pairs.append(np.stack([x * q + (m * x + y) % q, q * q + m * q + y], axis=1))
    links = np.unique(np.sort(np.concatenate(pairs), axis=1), axis=0)
    return switch_graph(name, 2 * q * q, per_switch, links, link)
