"""BCube: servers with several ports, connected level by level through small switches."""

import numpy as np
from numpy.typing import NDArray

from gradweave.topology.drawing import MAX_DRAWN, circle, oblique
from gradweave.topology.families.family import check_size, integer, spec_name
from gradweave.topology.topology import MAX_NODES, Link, Topology


def bcube(n: int, k: int, *, link: Link | None = None) -> Topology:
    """Makes BCube(n, k): n^(k+1) servers and (k+1)·n^k switches of n ports.

    The server with address a_k…a_1a_0 has id Σ a_i·n^i. The switches follow the servers, level by
    level; switch s of level i joins the n servers whose addresses differ only in digit i and,
    without it, read s.

    Args:
        n: servers per switch, at least 2.
        k: highest level, at least 0; every server has k+1 links.
        link: properties of every link; `Link()` if not given.

    Raises:
        TopologyError: naming the parameter.

    Source: Guo et al., "BCube: a high performance, server-centric network architecture for modular
        data centers", SIGCOMM 2009, section 3.1.

    >>> bcube(n=3, k=1)
    Topology('bcube:n=3,k=1': 9 servers, 6 switches, 18 links)
    """
    n = integer("bcube", "n", n, least=2)
    # Beyond this k even n = 2 is too large, and n^k would take long to compute.
    k = integer("bcube", "k", k, least=0, most=MAX_NODES.bit_length())
    name = f"bcube:n={n},k={k}"
    servers, switches = n ** (k + 1), (k + 1) * n**k
    check_size(name, servers + switches, servers * (k + 1))
    server = np.arange(servers)
    links = []
    for level in range(k + 1):
        weight = n**level
        switch = server // (weight * n) * weight + server % weight
        links.append(np.stack([server, servers + level * n**k + switch], axis=1))
    return Topology.from_links(
        spec_name(name, link),
        servers=servers,
        switches=switches,
        links=np.concatenate(links),
        link=link,
        positions=_positions(n, k) if servers + switches <= MAX_DRAWN else None,
    )


def _positions(n: int, k: int) -> NDArray[np.float64]:
    if k == 0:
        return np.concatenate([circle(n), np.zeros((1, 2))])
    if k == 1:
        return _grid_positions(n)
    servers = np.arange(n ** (k + 1))
    digits = np.stack([servers // n**i % n for i in range(k, -1, -1)], axis=1)
    points = oblique(digits, [n] * (k + 1))
    beside = np.array([[0.0, 0.42], [0.42, 0.0], [0.3, -0.3]])
    levels = []
    for level in range(k + 1):
        # The servers of one switch side by side: the axis of digit `level` moved last.
        groups = np.moveaxis(points.reshape(*[n] * (k + 1), 2), k - level, -2).reshape(-1, n, 2)
        levels.append(groups.mean(axis=1) + beside[level % 3])
    return np.concatenate([points, *levels])


def _grid_positions(n: int) -> NDArray[np.float64]:
    """Servers in a grid, a row to each switch of level 0 and a column to each of level 1.

    A switch is next to the middle of its row or column, and the ends of these bend towards it, so
    its links fan out and pass over no other node.
    """
    row, column = np.divmod(np.arange(n * n), n)
    place, inner = np.arange(n), (n - 1) // 2
    # In the square in the middle that both kinds share, they are in opposite corners.
    near, far = 0.33, 0.67
    servers = np.stack([column, row], axis=1)
    rows = np.stack([np.full(n, inner + far), place + near], axis=1)
    columns = np.stack([place + near, np.full(n, inner + far)], axis=1)
    points = np.concatenate([servers, rows, columns])
    middle = (n - 1) / 2
    bend = 0.06 * (n - 1) * ((points[:, ::-1] - middle) / middle) ** 2
    return (points + bend) * [1.0, -1.0]
