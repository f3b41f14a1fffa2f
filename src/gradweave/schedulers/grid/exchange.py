"""The trees of one dimension, over which a line's servers reduce to each of them."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import Stop
from gradweave.errors import NoScheduleError
from gradweave.schedulers.grid.balanced_trees_kernel import balanced_trees
from gradweave.schedulers.grid.grid import Grid
from gradweave.schedulers.grid.routes_kernel import shared_routes
from gradweave.schedulers.packing.tree_program import pack_trees
from gradweave.schedulers.textbook.double_tree import mirrored, parents
from gradweave.schedules.schedule import take_rows
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True, eq=False)
class Exchange:
    """Trees among the servers of a line, identical on every line of a dimension."""

    root: NDArray[np.int64]
    """[K] coordinate of each tree's root."""
    share: NDArray[np.float64]
    """[K] share of its root's part; the shares of a root sum to one."""
    parent: NDArray[np.int64]
    """[K, m] coordinate of each server's parent; a root is its own parent."""


@dataclasses.dataclass(frozen=True, eq=False)
class LineHops:
    """Routes from each server to all others on its lines."""

    first: tuple[int, ...]
    """[D] number of the first hop of each dimension: the hop from server s to coordinate c of a
    line of m servers has the number first + s·m + c."""
    links: NDArray[np.int64]
    first_link: NDArray[np.int64]
    """[H+1] index of each hop's first link; a hop without a route through switches has none."""


def hops_of(grid: Grid) -> LineHops:
    """Finds the routes, receiver by receiver."""
    topology, servers = grid.topology, grid.topology.num_servers
    first = tuple(np.cumsum([0, *(servers * size for size in grid.sizes)]).tolist())
    ends = []
    for dimension, size in enumerate(grid.sizes):
        rank = np.repeat(np.arange(servers), size)
        ends.append((rank, grid.at(rank, dimension, np.tile(np.arange(size), servers))))
    sender, receiver = (np.concatenate([pair[k] for pair in ends]) for k in (0, 1))
    # Each receiver takes senders in the order of an exchange's rounds, so that loads even out.
    order = np.lexsort(((sender - receiver) % servers, receiver))
    links, lengths = shared_routes(
        topology.first_link,
        topology.target,
        topology.is_server,
        topology.bandwidth_bytes_per_s,
        topology.servers[sender[order]].astype(np.int64),
        np.searchsorted(receiver[order], np.arange(servers + 1)),
        topology.servers.astype(np.int64),
    )
    by_hop, first_link = take_rows(links, np.append(0, np.cumsum(lengths)), np.argsort(order))
    return LineHops(first, by_hop.astype(np.int64), first_link)


def exchanges_of(grid: Grid, hops: LineHops) -> list[Exchange]:
    """The trees of each dimension, one per root.

    If direct links connect the servers of each line, trees use these links, with balanced loads,
    and all lines must be identical. Otherwise switches join the servers, and each sends to each
    root directly.

    Raises:
        NoScheduleError: if lines differ, or are not connected.
    """
    dimensions = range(len(grid.sizes) - grid.few_roots)
    exchanges = [
        _direct(grid, hops, dimension) if line is None else _balanced(line)
        for dimension in dimensions
        for line in [_line(grid, dimension)]
    ]
    return [*exchanges, _two_trees(grid.sizes[-1])] if grid.few_roots else exchanges


def packed_exchanges(grid: Grid, exchanges: list[Exchange], stop: Stop) -> list[Exchange]:
    """The exchanges with several trees per root, packed into the links of lines with direct links.

    Links carry less than with one tree per root, by up to a quarter in a box of MI250s, but trees
    are deeper and pieces more numerous.
    """
    lines = [_line(grid, dimension) for dimension in range(len(exchanges) - grid.few_roots)]
    lines += [None] * grid.few_roots
    return [
        one if line is None else _packed(line, stop)
        for one, line in zip(exchanges, lines, strict=True)
    ]


def _two_trees(size: int) -> Exchange:
    """Two binary trees, each for half of the data; inner servers of one are leaves of the other."""
    above = np.array(parents(size))
    above[0] = 0
    order = mirrored(np.arange(size, dtype=np.int32))
    other = np.empty(size, np.int64)
    other[order] = order[above]
    return Exchange(np.array([0, order[0]]), np.ones(2), np.stack([above, other]))


def _direct(grid: Grid, hops: LineHops, dimension: int) -> Exchange:
    """Each server sends to each root directly, through switches."""
    size, (begin, end) = grid.sizes[dimension], hops.first[dimension : dimension + 2]
    missing = np.diff(hops.first_link[begin : end + 1]) == 0
    if int(missing.sum()) > grid.topology.num_servers:  # the hops from servers to themselves
        raise NoScheduleError("no switches join the servers at the same place in each group")
    root = np.arange(size)
    return Exchange(root, np.ones(size), np.repeat(root[:, None], size, axis=1))


def _line(grid: Grid, dimension: int) -> Topology | None:
    """The direct links of each line, or None if they do not connect it."""
    topology, size = grid.topology, grid.sizes[dimension]
    lines = np.moveaxis(grid.server, dimension, -1).reshape(-1, size)
    kind = _links_within(topology, topology.servers[lines[0]])
    a, b, bandwidth, capacity, latency, overhead = kind
    if size < 2 or len(np.unique(_component(size, a, b))) > 1:
        return None
    for line in lines[1:]:
        if not np.array_equal(_links_within(topology, topology.servers[line]), kind):
            raise NoScheduleError("the links inside the groups differ from group to group")
    return Topology(
        name="line",
        is_server=np.ones(size, bool),
        source=a.astype(np.int32),
        target=b.astype(np.int32),
        bandwidth_bytes_per_s=bandwidth,
        latency_s=latency,
        capacity=capacity.astype(np.int32),
        overhead_s=overhead,
    )


def _balanced(line: Topology) -> Exchange:
    """One tree per root."""
    size = line.num_servers
    bandwidth = np.zeros((size, size))
    bandwidth[line.source, line.target] = line.bandwidth_bytes_per_s
    parent = balanced_trees(bandwidth / bandwidth.max())
    return Exchange(np.arange(size), np.ones(size), parent)


def _packed(line: Topology, stop: Stop) -> Exchange:
    """Several trees per root, with unequal shares."""
    trees, size = pack_trees(line, "all_gather", stop=stop).trees, line.num_servers
    share = np.array([tree.share for tree in trees])
    root = np.array([tree.root for tree in trees])
    parent = np.array([tree.parent for tree in trees])
    parent[np.arange(len(trees)), root] = root
    return Exchange(root, share / np.bincount(root, share, size)[root], parent)


def _links_within(topology: Topology, nodes: NDArray) -> NDArray[np.float64]:
    """[6, K] the links between some servers, by the servers' positions, and their properties."""
    place = np.full(topology.num_nodes, -1)
    place[nodes] = np.arange(len(nodes))
    ends = place[topology.source], place[topology.target]
    links = np.flatnonzero((ends[0] >= 0) & (ends[1] >= 0))
    links = links[np.lexsort((ends[1][links], ends[0][links]))]
    columns = (
        *(end[links] for end in ends),
        topology.bandwidth_bytes_per_s[links],
        topology.capacity[links],
        topology.latency_s[links],
        topology.overhead_s[links],
    )
    return np.array(columns, np.float64)


def _component(size: int, a: NDArray, b: NDArray) -> NDArray[np.int64]:
    label = np.arange(size)
    for _ in range(size):
        np.minimum.at(label, b.astype(np.int64), label[a.astype(np.int64)])
    return label
