"""DCell: cells of servers around a switch, each server linked to one of another cell."""

import itertools

import numpy as np
from numpy.typing import NDArray

from gradweave.topology.drawing import MAX_DRAWN, circle, rotated
from gradweave.topology.families.family import check_size, integer, spec_name
from gradweave.topology.topology import MAX_NODES, Link, Topology


def dcell(n: int, k: int, *, link: Link | None = None) -> Topology:
    """Makes DCell(n, k): cells of n servers on a switch, linked server to server level by level.

    A DCell of level 0 is one cell; one of level l is t_(l−1) + 1 DCells of level l−1, every two of
    them linked, where t_l is the number of servers of level l. Servers are numbered consecutively
    (the paper's uid), and the switches follow in order of cell. Between sub-cells i < j of a DCell,
    the server with uid j−1 in sub-cell i is linked to the server with uid i in sub-cell j.

    Args:
        n: servers per cell, at least 2.
        k: level, at least 0; every server has at most k+1 links.
        link: properties of every link; `Link()` if not given.

    Raises:
        TopologyError: naming the parameter.

    Source: Guo et al., "DCell: a scalable and fault-tolerant network structure for data centers",
        SIGCOMM 2008, sections 3.1 and 3.2 (BuildDCells).

    >>> dcell(n=4, k=1)
    Topology('dcell:n=4,k=1': 20 servers, 5 switches, 30 links)
    """
    n = integer("dcell", "n", n, least=2)
    # t_k grows doubly exponentially: level 5 of n = 2 is already too large.
    k = integer("dcell", "k", k, least=0, most=MAX_NODES.bit_length())
    name = f"dcell:n={n},k={k}"
    sizes = [n]
    for _ in range(k):
        sizes.append((sizes[-1] + 1) * sizes[-1])
        check_size(name, sizes[-1] + sizes[-1] // n, sizes[-1])
    servers = sizes[-1]
    switches = servers // n
    check_size(name, servers + switches, servers * (k + 2) // 2)
    server = np.arange(servers)
    links = [np.stack([server, servers + server // n], axis=1)]
    for within, size in itertools.pairwise(sizes):
        i, j = np.triu_indices(within + 1, 1)
        pairs = np.stack([i * within + j - 1, j * within + i], axis=1)
        starts = np.arange(0, servers, size)
        links.append((starts[:, None, None] + pairs).reshape(-1, 2))
    return Topology.from_links(
        spec_name(name, link),
        servers=servers,
        switches=switches,
        links=np.concatenate(links),
        link=link,
        positions=_positions(n, sizes) if servers + switches <= MAX_DRAWN else None,
    )


def _positions(n: int, sizes: list[int]) -> NDArray[np.float64]:
    """Cells on a circle, circles on a larger circle, each rotated to face the centre."""
    servers = circle(n) if len(sizes) == 1 else _cell(n)
    switches = np.zeros((1, 2)) if len(sizes) == 1 else np.array([[0.0, 0.9]])
    reach = 1.0
    for within in sizes[:-1]:
        cells = within + 1
        # Far enough out that neighbouring cells do not touch.
        radius = 1.35 * reach / np.sin(np.pi / max(cells, 3))
        centres = circle(cells, radius)
        angles = 2 * np.pi * np.arange(cells) / cells
        places = list(zip(centres, angles, strict=True))
        # Server m of cell i takes the place of server m − i of cell 0: peers are as many cells on.
        shift = [i if within == sizes[0] else 0 for i in range(cells)]
        servers = np.concatenate(
            [
                rotated(np.roll(servers, i, axis=0), angle) + centre
                for (centre, angle), i in zip(places, shift, strict=True)
            ]
        )
        switches = np.concatenate([rotated(switches, angle) + centre for centre, angle in places])
        reach = radius + reach
    return np.concatenate([servers, switches])


def _cell(n: int) -> NDArray[np.float64]:
    """[n, 2] where to draw the servers of a circle's topmost cell: on an arc facing its middle.

    Server 0 of cell 0 is linked to the next cell of the circle, server 1 to the cell after that,
    and so on.
    """
    angle = np.pi + np.pi * np.arange(n) / max(n - 1, 1)
    return 0.9 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
