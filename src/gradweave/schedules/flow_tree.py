"""Flow trees and their workloads.

A flow tree says, for the piece of one root, which server each server sends its partial sum to.
`FlowTrees` holds the trees of all pieces as one list of edges; `Workloads` is that list as
transfers with prefixes, for one stage or both.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from gradweave.schedules.schedule import COPY, REDUCE, Collective, reverse_rows
from gradweave.topology.routes import shortest_path_trees
from gradweave.topology.topology import Integers, Topology


@dataclasses.dataclass(frozen=True, eq=False)
class FlowTrees:
    """The trees of all pieces, one row per edge from a child to its parent.

    Rows are sorted by piece. `shortest_path` and `unmerged` create them; a scheduler that grows
    trees fills the columns itself.
    """

    topology: Topology
    root: Integers
    """[P] node id of each piece's root."""
    piece: Integers
    """[W] piece that the edge belongs to."""
    child: Integers
    """[W] node that sends its partial sum."""
    parent: Integers
    """[W] node that receives it."""
    route_nodes: Integers
    """The routes from child to parent, one after the other, both ends included."""
    route_offsets: Integers
    """[W+1] where each edge's route starts in `route_nodes`."""
    merged: bool = True
    """Whether a parent adds its children's contributions to its own before sending. If not, each
    edge carries one contribution."""

    @staticmethod
    def shortest_path(
        topology: Topology, root: NDArray | None = None, *, aggregating_switches: bool = False
    ) -> "FlowTrees":
        """Fixed trees along the pinned shortest paths, merged where branches meet at a server.

        Branches that meet at a switch do not merge, since switches do not aggregate unless
        `aggregating_switches` is set. The example is the paper's Figure 3: hosts A, B, C, D are 0,
        1, 2, 3; the link C–D carries nothing towards A; the flows of C and D share the link B–A, so
        B merges them into its own.

        >>> import gradweave as gw
        >>> hosts = gw.topology.Topology.from_links(
        ...     "figure 3", servers=4, switches=0, links=[(0, 1), (1, 2), (1, 3), (2, 3)]
        ... )
        >>> FlowTrees = gw.schedules.FlowTrees
        >>> FlowTrees.unmerged(hosts, root=[0]).edges()
        [(0, (1, 0)), (0, (2, 1, 0)), (0, (3, 1, 0))]
        >>> FlowTrees.shortest_path(hosts, root=[0]).edges()
        [(0, (1, 0)), (0, (2, 1)), (0, (3, 1))]
        >>> tree = gw.schedules.Workloads.of(
        ...     FlowTrees.shortest_path(hosts, root=[0]), "reduce_scatter"
        ... )
        >>> [tree.prefixes(workload) for workload in range(3)]
        [(1, 2), (), ()]

        Args:
            topology: the network.
            root: [P] root of each piece; one piece per server if not given.
            aggregating_switches: let switches add what they receive, so that branches merge there
                as well. Switches on a tree are then children and parents like servers.

        Source: section 4.1 of the paper, "Parameter server and Merge operation".
        """
        root = topology.servers if root is None else np.asarray(root, np.int32)
        stops = np.ones(topology.num_nodes, bool) if aggregating_switches else topology.is_server
        return _trees(topology, root, stops, merged=True)

    @staticmethod
    def unmerged(topology: Topology, root: NDArray | None = None) -> "FlowTrees":
        """Every contribution travels separately on its whole shortest path, also through servers.

        Source: the paper's parameter-server baseline, section 5.
        """
        root = topology.servers if root is None else np.asarray(root, np.int32)
        return _trees(topology, root, None, merged=False)

    @property
    def pieces(self) -> int:
        """P, the number of trees."""
        return len(self.root)

    def edges(self) -> list[tuple[int, tuple[int, ...]]]:
        """(piece, route from child to parent) of every edge: for display and small networks."""
        routes = np.split(self.route_nodes, self.route_offsets[1:-1])
        return [
            (int(piece), tuple(route.tolist()))
            for piece, route in zip(self.piece, routes, strict=True)
        ]


def _trees(topology: Topology, root: NDArray, stops: NDArray | None, *, merged: bool) -> FlowTrees:
    """Cuts shortest-path trees into edges that end where a flow stops: at roots and `stops`."""
    distinct, tree_of_piece = np.unique(root, return_inverse=True)
    toward_root = shortest_path_trees(topology, distinct)[tree_of_piece]
    if stops is not None and not topology.is_server[stops].all():
        used = _used_by_servers(topology, toward_root)
        piece, child = np.nonzero(used & stops & (toward_root >= 0))
    else:
        piece, child = np.nonzero(topology.is_server & (toward_root >= 0))
    walker = child.copy()
    columns = [walker]
    walking = np.ones(len(walker), bool)
    while walking.any():
        following = np.where(walking, toward_root[piece, walker], -1)
        columns.append(following)
        walker = np.where(walking, following, walker)
        arrived = walker == root[piece]
        if stops is not None:
            arrived |= stops[walker]
        walking &= ~arrived
    table = np.stack(columns, axis=1)
    inside = table >= 0
    return FlowTrees(
        topology=topology,
        root=root,
        piece=piece.astype(np.int32),
        child=child.astype(np.int32),
        parent=walker.astype(np.int32),
        route_nodes=table[inside].astype(np.int32),
        route_offsets=np.concatenate([[0], np.cumsum(inside.sum(axis=1))]),
        merged=merged,
    )


def _used_by_servers(topology: Topology, toward_root: NDArray) -> NDArray[np.bool_]:
    """[P, V] nodes of each tree that a server's flow passes."""
    used = np.broadcast_to(topology.is_server, toward_root.shape).copy()
    while True:
        piece, node = np.nonzero(used & (toward_root >= 0))
        grown = used.copy()
        grown[piece, toward_root[piece, node]] = True
        if (grown == used).all():
            return used
        used = grown


@dataclasses.dataclass(frozen=True, eq=False)
class Workloads:
    """The transfers of a collective, not yet ordered, each with the transfers it waits for.

    The model: a workload occupies every link direction of its route for one round. It may start
    once its prefixes were completed in earlier rounds. Source: the paper's section 4.1, "Workload".
    """

    topology: Topology
    collective: Collective
    root: Integers
    """[P] node id of each piece's root."""
    piece: Integers
    """[W] piece that the workload moves."""
    source: Integers
    """[W] node that sends."""
    target: Integers
    """[W] node that receives."""
    op: Integers
    """[W] `REDUCE` or `COPY`."""
    route_nodes: Integers
    """The routes, one after the other, source and target included."""
    route_offsets: Integers
    """[W+1] where each workload's route starts in `route_nodes`."""
    prefix: Integers
    """The workloads' prefixes, one workload after the other."""
    prefix_offsets: Integers
    """[W+1] where each workload's prefixes start in `prefix`."""

    @staticmethod
    def of(trees: FlowTrees, collective: Collective) -> "Workloads":
        """The workloads of flow trees.

        In a merged tree, a reduce waits for all reduces into its source, and a copy for the copy
        into its source. For an all-reduce both stages are listed, reduces first, and a root's
        copies wait for the reduces into it. A barrier between the stages, if wanted, is up to the
        scheduler.

        Args:
            trees: the trees of all pieces.
            collective: a stage, or both.
        """
        edges = len(trees.piece)
        parts = []
        if collective != "all_gather":
            parts.append((trees.child, trees.parent, REDUCE, trees.route_nodes))
        if collective != "reduce_scatter":
            reverse = reverse_rows(trees.route_nodes, trees.route_offsets)
            parts.append((trees.parent, trees.child, COPY, reverse))
        lengths = np.tile(np.diff(trees.route_offsets), len(parts))
        prefix_offsets, prefix = _ragged(edges * len(parts), _waits(trees, collective))
        return Workloads(
            topology=trees.topology,
            collective=collective,
            root=trees.root,
            piece=np.tile(trees.piece, len(parts)),
            source=np.concatenate([source for source, _, _, _ in parts]),
            target=np.concatenate([target for _, target, _, _ in parts]),
            op=np.repeat(np.array([op for _, _, op, _ in parts], np.int8), edges),
            route_nodes=np.concatenate([route for _, _, _, route in parts]),
            route_offsets=np.concatenate([[0], np.cumsum(lengths)]),
            prefix=prefix,
            prefix_offsets=prefix_offsets,
        )

    def __len__(self) -> int:
        """W, the number of workloads."""
        return len(self.piece)

    def prefixes(self, workload: int) -> tuple[int, ...]:
        """The workloads that must be complete before a workload starts."""
        return tuple(
            self.prefix[self.prefix_offsets[workload] : self.prefix_offsets[workload + 1]].tolist()
        )

    def links(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Link directions of all routes, workload by workload, and [W+1] where each starts."""
        links = self.topology.links_along(self.route_nodes, self.route_offsets)
        return links, self.route_offsets - np.arange(len(self) + 1)

    def heights(self) -> NDArray[np.int32]:
        """[W] length of the longest chain of waiting workloads that starts at each, at least 1."""
        waiting = np.repeat(np.arange(len(self)), np.diff(self.prefix_offsets))
        heights = np.ones(len(self), np.int32)
        while True:
            raised = heights.copy()
            np.maximum.at(raised, self.prefix, heights[waiting] + 1)
            if (raised == heights).all():
                return heights
            heights = raised


def _waits(trees: FlowTrees, collective: Collective) -> list[tuple[NDArray, NDArray]]:
    """(workload, prefix) pairs as arrays; an all-reduce's copies are numbered after its reduces."""
    edges = len(trees.piece)
    nodes = np.int64(trees.topology.num_nodes)
    child = trees.piece * nodes + trees.child
    parent = trees.piece * nodes + trees.parent
    waits: list[tuple[NDArray, NDArray]] = []
    if collective != "all_gather" and trees.merged:
        waits.append(_pairs(child, parent))
    if collective == "all_reduce":
        at_root = np.flatnonzero(trees.parent == trees.root[trees.piece])
        workload, prefix = _pairs(trees.piece[at_root], trees.piece[at_root])
        waits.append((at_root[workload] + edges, at_root[prefix]))
    if collective != "reduce_scatter" and trees.merged:
        first_copy = edges if collective == "all_reduce" else 0
        workload, prefix = _pairs(parent, child)
        waits.append((workload + first_copy, prefix + first_copy))
    return waits


def _pairs(wanted: NDArray, keys: NDArray) -> tuple[NDArray, NDArray]:
    """All (i, j) with ``wanted[i] == keys[j]``, as two arrays."""
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    first = np.searchsorted(sorted_keys, wanted, "left")
    count = np.searchsorted(sorted_keys, wanted, "right") - first
    i = np.repeat(np.arange(len(wanted)), count)
    within = np.arange(len(i)) - np.repeat(np.cumsum(count) - count, count)
    return i, order[np.repeat(first, count) + within]


def _ragged(
    rows: int, pairs: list[tuple[NDArray, NDArray]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Offsets and values of ragged rows from (row, value) pairs."""
    row = np.concatenate([np.zeros(0, np.int64), *(row for row, _ in pairs)])
    value = np.concatenate([np.zeros(0, np.int64), *(value for _, value in pairs)])
    order = np.lexsort((value, row))
    return np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))]), value[order]
