"""The trees of an earlier schedule on the changed network, and replacements for lost hops."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.packing.paths import CheapestPaths
from gradweave.schedulers.packing.tree_program import Tree
from gradweave.schedules.schedule import COPY, REDUCE, Schedule, Stage, distinct_rows
from gradweave.topology.topology import Topology
from gradweave.topology.units import ROUNDING


@dataclasses.dataclass(frozen=True, eq=False)
class KnownTree:
    """A tree over which an earlier schedule sends some pieces."""

    tree: Tree
    """The tree on the changed network, with the share of all its pieces; a lost hop has parent −1
    and no links."""
    lost: NDArray[np.bool_]
    """[N] servers whose hop is lost, or passes through other servers."""
    slowed: NDArray[np.bool_]
    """[N] servers whose hop passes a link that is slower than it was."""

    @property
    def whole(self) -> bool:
        """Whether no hop is lost."""
        return not self.lost.any()


def known_trees(
    old: Schedule, topology: Topology, now: NDArray[np.int64]
) -> tuple[KnownTree, ...] | None:
    """The trees of an earlier schedule, with equal trees merged.

    Args:
        old: the schedule.
        topology: the changed network, with fewer nodes and links or other bandwidths.
        now: [V of the old network] id of each node on it; −1 for nodes that are gone.

    Returns:
        For each stage of the schedule, trees whose shares sum to one: those whose roots are gone
        are dropped, and the others' shares raised. None if the pieces do not each move over one
        tree to the root and one tree from it, or no root is left.
    """
    columns = _Columns.of(old, topology, now)
    whole = columns.shares.sum()
    if not whole:
        return None
    trees: list[KnownTree] = []
    ops: dict[Stage, int] = {"reduce_scatter": REDUCE, "all_gather": COPY}
    for stage, op in ops.items():
        if old.collective not in (stage, "all_reduce"):
            if (old.op == op).any():
                return None
            continue
        of_stage = _of_stage(old, topology, columns, stage, op)
        if of_stage is None:
            return None
        trees += of_stage
    return tuple(
        dataclasses.replace(
            one, tree=dataclasses.replace(one.tree, share=one.tree.share / float(whole))
        )
        for one in trees
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Columns:
    """A schedule's transfers, on the changed network."""

    root: NDArray[np.int64]
    """[P] rank of each root; −1 if it is gone."""
    shares: NDArray[np.float64]
    """[P] share of each piece; 0 if its root is gone."""
    source: NDArray[np.int64]
    """[T] rank of each sender; −1 if it is gone."""
    target: NDArray[np.int64]
    links: tuple[tuple[int, ...], ...]
    """[routes] links of each distinct route; empty if one is lost or a server would forward."""
    route: NDArray[np.int64]
    """[T] number of each transfer's route."""
    slowed: NDArray[np.bool_]
    """[routes] whether a link of the route is slower than it was."""

    @classmethod
    def of(cls, old: Schedule, topology: Topology, now: NDArray[np.int64]) -> "_Columns":
        rank = np.where(now >= 0, topology.rank[now], -1).astype(np.int64)
        first, route = distinct_rows(old.route_nodes, old.route_offsets)
        slow = _slowed(old.topology, topology, now)
        links, slowed = [], []
        for row in first.tolist():
            here = now[np.array(old.route(row))]
            after = topology.find_links(here[:-1], here[1:])
            gone = (here < 0).any() or (after < 0).any() or topology.is_server[here[1:-1]].any()
            links.append(() if gone else tuple(after.tolist()))
            slowed.append(bool(not gone and slow[after].any()))
        root = rank[old.root]
        return cls(
            root,
            np.where(root >= 0, old.share, 0.0),
            rank[old.source],
            rank[old.target],
            tuple(links),
            route,
            np.array(slowed),
        )


def _slowed(before: Topology, topology: Topology, now: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[L] which links have become slower relative to the median change.

    On a runtime all links may seem slower, which is no reason to avoid them.
    """
    place = topology.find_links(now[before.source], now[before.target])
    there = (now[before.source] >= 0) & (now[before.target] >= 0) & (place >= 0)
    ratio = np.ones(len(topology.source))
    after = topology.bandwidth_bytes_per_s[place[there]]
    ratio[place[there]] = after / before.bandwidth_bytes_per_s[there]
    return ratio < np.median(ratio) * (1 - ROUNDING)


def _of_stage(
    old: Schedule, topology: Topology, columns: _Columns, stage: Stage, op: int
) -> list[KnownTree] | None:
    """The trees of one stage, or None if its transfers do not form trees."""
    rows = np.flatnonzero(old.op == op)
    ends = columns.source, columns.target
    child, parent = ends if stage == "reduce_scatter" else ends[::-1]
    names = old.source if stage == "reduce_scatter" else old.target
    servers_then = old.topology.num_servers
    cells = old.piece[rows].astype(np.int64) * old.topology.num_nodes + names[rows]
    # Every server except the root sends, or receives, each piece exactly once: in a valid schedule,
    # such transfers form a tree.
    alone = len(np.unique(cells)) == len(cells) == old.pieces * (servers_then - 1)
    if not alone or (names[rows] == old.root[old.piece[rows]]).any():
        return None
    servers = topology.num_servers
    parents, routes = np.full((2, old.pieces, servers), -1, np.int64)
    there = rows[child[rows] >= 0]
    cell = old.piece[there], child[there]
    known = np.array([bool(links) for links in columns.links])[columns.route[there]]
    parents[cell] = np.where(known, parent[there], -1)
    routes[cell] = np.where(known, columns.route[there], -1)
    alike: dict[bytes, list[int]] = {}
    for piece in np.flatnonzero(columns.shares > 0).tolist():
        key = np.int64(columns.root[piece]).tobytes() + parents[piece].tobytes()
        alike.setdefault(key + routes[piece].tobytes(), []).append(piece)
    return [
        _known(stage, columns, parents[pieces[0]], routes[pieces[0]], pieces)
        for pieces in alike.values()
    ]


def _known(
    stage: Stage,
    columns: _Columns,
    parent: NDArray[np.int64],
    route: NDArray[np.int64],
    pieces: Sequence[int],
) -> KnownTree:
    """A known tree, with the pieces that move over it."""
    root = int(columns.root[pieces[0]])
    links = tuple(() if number < 0 else columns.links[number] for number in route.tolist())
    share = float(columns.shares[list(pieces)].sum())
    lost = route < 0
    lost[root] = False
    slowed = np.where(route >= 0, columns.slowed[route], False)
    return KnownTree(Tree(stage, root, parent, links, share), lost, slowed)


def regrown(
    known: KnownTree, without: NDArray[np.bool_], paths: CheapestPaths, hold: float
) -> tuple[Tree, float] | None:
    """Replaces some hops of a tree: the cheapest tree in which its other hops are free.

    Args:
        known: the tree.
        without: [N] servers whose hops are dropped; it must include lost hops.
        paths: the cheapest paths between servers.
        hold: extra cost of replacing a hop, relative to the mean of all paths: the higher, the
            fewer hops are replaced.

    Returns:
        The tree and the share of its hops that are unchanged, or None if servers are cut off.

    Source: Edmonds' algorithm, with kept hops as free arcs.
    """
    from gradweave.schedulers.kernels.arborescence import minimum_arborescence

    tree, towards = known.tree, known.tree.stage == "reduce_scatter"
    cost = paths.cost.T if towards else paths.cost
    finite = np.isfinite(cost)
    arcs = np.where(finite, cost + hold * float(cost[finite].mean()), np.inf)
    stays = np.flatnonzero(~without & (tree.parent >= 0))
    arcs[tree.parent[stays], stays] = 0.0
    total, parent = minimum_arborescence(np.ascontiguousarray(arcs), 0.0, tree.root)
    if not np.isfinite(total):
        return None
    kept = ~without & (parent == tree.parent)
    kept[tree.root] = True
    anew = paths.routes(np.where(kept, -1, parent), towards)
    routes = tuple(
        old if as_before else new
        for old, new, as_before in zip(tree.routes, anew, kept.tolist(), strict=True)
    )
    made = Tree(tree.stage, tree.root, parent, routes, tree.share)
    return made, float((kept.sum() - 1) / max(len(parent) - 1, 1))
