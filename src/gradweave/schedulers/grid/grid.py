"""Servers as places of a grid: one dimension inside the smallest groups, one per level."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import NoScheduleError
from gradweave.topology.groups import Groups, nested_groups
from gradweave.topology.topology import Topology

NOWHERE = 1 << 40
"""Sentinel for a server with no switch outside its group nearby."""


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """Places of the servers in a grid; servers that differ in one dimension only form a line."""

    topology: Topology
    place: NDArray[np.int64]
    """[N, D] coordinates of each server, by rank; the place in its smallest group first."""
    sizes: tuple[int, ...]
    """[D] number of servers of each line."""
    server: NDArray[np.int64]
    """[sizes] rank of the server at each place."""
    few_roots: bool = False
    """Whether the last dimension is one part of a dimension with too many servers; each of its
    lines reduces by two trees only."""

    @staticmethod
    def of(topology: Topology) -> "Grid":
        """The grid of a network's nested groups.

        Raises:
            NoScheduleError: if it has no groups, or their sizes differ on a level.
        """
        levels = nested_groups(topology)
        if not levels:
            raise NoScheduleError("the network has no groups of equally many servers")
        below, columns = np.arange(topology.num_servers), []
        key = _nearest_outside(topology, levels[0])
        for level in levels:
            group = level.group[topology.servers]
            columns.append(_numbers(group, below, key))
            below, key = group, np.zeros(len(group), np.int64)
        columns.append(below)
        place = np.stack(columns, axis=1)
        sizes = tuple(int(most) + 1 for most in place.max(axis=0))
        if np.prod(sizes) != topology.num_servers:
            raise NoScheduleError("the groups have unequally many members")
        server = np.empty(sizes, np.int64)
        server[tuple(place.T)] = np.arange(topology.num_servers)
        return Grid(topology, place, sizes, server)

    def split(self, most_roots: int) -> "Grid":
        """The grid with its last dimension split in two, the first part as large as allowed.

        Args:
            most_roots: maximum number of servers, and so of roots, in the first part.
        """
        size = self.sizes[-1]
        inner = max(part for part in range(1, size + 1) if size % part == 0 and part <= most_roots)
        if inner == size:
            return self
        outer, place = np.divmod(self.place[:, -1], inner)
        places = np.column_stack([self.place[:, :-1], place, outer])
        sizes = (*self.sizes[:-1], inner, size // inner)
        server = np.empty(sizes, np.int64)
        server[tuple(places.T)] = np.arange(len(places))
        return Grid(self.topology, places, sizes, server, few_roots=True)

    def at(self, rank: NDArray, dimension: int, coordinate: NDArray) -> NDArray[np.int64]:
        """For some servers, those at given coordinates on their lines in a dimension."""
        place = self.place[rank]
        place[..., dimension] = coordinate
        return self.server[tuple(np.moveaxis(place, -1, 0))]


def _numbers(group: NDArray, below: NDArray, key: NDArray) -> NDArray[np.int64]:
    """[N] number of each server's member within its group, sorted by key, then by order."""
    members, first = np.unique(below, return_index=True)
    order = np.lexsort((members, key[first], group[first]))
    of_group = group[first][order]
    start = np.searchsorted(of_group, of_group)
    number = np.empty(len(members), np.int64)
    number[order] = np.arange(len(members)) - start
    return number[np.searchsorted(members, below)]


def _nearest_outside(topology: Topology, level: Groups) -> NDArray[np.int64]:
    """[N] the rail of each server: its switch between groups, directly or over its card."""
    nearest = np.full(topology.num_nodes, NOWHERE)
    leaves = (level.group[topology.source] >= 0) & (level.group[topology.target] < 0)
    np.minimum.at(nearest, topology.source[leaves], topology.target[leaves])
    own = nearest.copy()
    beside = ~topology.is_server[topology.target]
    np.minimum.at(own, topology.source[beside], nearest[topology.target[beside]])
    return own[topology.servers]
