"""Flow trees and the workloads that they ask for, against definitions by brute force."""

from functools import cache

import numpy as np
import pytest

import gradweave as gw
from gradweave.schedules import COPY, REDUCE, FlowTrees, Workloads
from gradweave.topology import Topology, shortest_route

NETWORKS = [
    "bcube:n=3,k=1",
    "dcell:n=3,k=1",
    "fat_tree:4",
    "jellyfish:reference=J10",
    "mesh:2x3",
    "ring:5",
    "star:4",
    "torus:3x3",
]
KINDS = ["merged", "unmerged", "aggregating"]

# The paper's Figure 3: hosts A, B, C, D are 0, 1, 2, 3.
FIGURE_3 = Topology.from_links(
    "figure 3", servers=4, switches=0, links=[(0, 1), (1, 2), (1, 3), (2, 3)]
)


def trees_of(network: str | Topology, kind: str, root: list[int] | None = None) -> FlowTrees:
    topology = gw.topology.from_spec(network) if isinstance(network, str) else network
    if kind == "unmerged":
        return FlowTrees.unmerged(topology, root)
    return FlowTrees.shortest_path(topology, root, aggregating_switches=kind == "aggregating")


def parents(trees: FlowTrees, piece: int) -> dict[int, int]:
    rows = np.flatnonzero(trees.piece == piece)
    assert len(set(trees.child[rows].tolist())) == len(rows), "a child has two parents"
    return dict(zip(trees.child[rows].tolist(), trees.parent[rows].tolist(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("network", NETWORKS)
def test_every_server_reaches_the_root_and_every_route_is_the_shortest(network, kind):
    trees = trees_of(network, kind)
    topology = trees.topology
    assert trees.pieces == topology.num_servers
    assert (np.diff(trees.piece) >= 0).all()
    for (piece, route), child, parent in zip(
        trees.edges(), trees.child.tolist(), trees.parent.tolist(), strict=True
    ):
        assert (route[0], route[-1]) == (child, parent)
        assert shortest_route(topology, child, int(trees.root[piece]))[: len(route)] == route
    for piece, root in enumerate(trees.root.tolist()):
        parent = parents(trees, piece)
        assert root not in parent
        for server in topology.servers.tolist():
            steps = 0
            while server != root:
                server, steps = parent[server], steps + 1
                assert steps <= topology.num_nodes, "a loop"


@pytest.mark.parametrize("network", NETWORKS)
def test_merged_trees_have_one_edge_per_server_and_only_switches_inside(network):
    trees = trees_of(network, "merged")
    topology = trees.topology
    for piece, root in enumerate(trees.root.tolist()):
        assert set(parents(trees, piece)) == set(topology.servers.tolist()) - {root}
    assert trees.merged
    assert len(trees.piece) == topology.num_servers * (topology.num_servers - 1)
    assert topology.is_server[trees.parent].all()
    for _, route in trees.edges():
        assert not topology.is_server[list(route[1:-1])].any()


@pytest.mark.parametrize("network", NETWORKS)
def test_unmerged_contributions_travel_alone_all_the_way(network):
    trees = trees_of(network, "unmerged")
    assert not trees.merged
    assert (trees.parent == trees.root[trees.piece]).all()
    assert len(trees.piece) == trees.pieces * (trees.topology.num_servers - 1)


@pytest.mark.parametrize("network", NETWORKS)
def test_aggregating_switches_are_stops_like_servers(network):
    trees = trees_of(network, "aggregating")
    topology = trees.topology
    assert all(len(route) == 2 for _, route in trees.edges())
    for piece in range(trees.pieces):
        parent = parents(trees, piece)
        leaves = set(parent) - set(parent.values())
        assert topology.is_server[list(leaves)].all(), "a switch with nothing to add"


def test_figure_3_merges_at_b():
    merged, unmerged = (trees_of(FIGURE_3, kind, [0]) for kind in ("merged", "unmerged"))
    assert unmerged.edges() == [(0, (1, 0)), (0, (2, 1, 0)), (0, (3, 1, 0))]
    assert merged.edges() == [(0, (1, 0)), (0, (2, 1)), (0, (3, 1))]
    workloads = Workloads.of(merged, "reduce_scatter")
    assert [workloads.prefixes(w) for w in range(3)] == [(1, 2), (), ()]
    assert gw.bounds.fixed_trees(unmerged).rounds == 3
    assert gw.bounds.fixed_trees(merged).rounds == 2


def test_pieces_may_share_a_root():
    star = gw.topology.star(4)
    for kind in KINDS:
        trees = trees_of(star, kind, [2, 2, 0])
        assert trees.root.tolist() == [2, 2, 0]
        assert parents(trees, 0) == parents(trees, 1) != parents(trees, 2)


COLLECTIVES = ["reduce_scatter", "all_gather", "all_reduce"]


def prefixes_by_definition(workloads: Workloads, merged: bool) -> list[set[int]]:
    """What must be complete before: the sums that are sent on, the copy that is passed on."""
    rows = list(
        zip(
            workloads.piece.tolist(),
            workloads.source.tolist(),
            workloads.target.tolist(),
            workloads.op.tolist(),
            strict=True,
        )
    )
    result = []
    for piece, source, _, op in rows:
        into_source = [w for w, row in enumerate(rows) if (row[0], row[2]) == (piece, source)]
        at_root = source == workloads.root[piece]
        result.append(
            {w for w in into_source if (rows[w][3] == op and merged) or (op == COPY and at_root)}
        )
    return result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("network", ["bcube:n=3,k=1", "mesh:2x3", "ring:5", "star:4"])
def test_the_prefixes_are_those_of_the_definition(network, collective, kind):
    trees = trees_of(network, kind)
    workloads = Workloads.of(trees, collective)
    assert len(workloads) == len(trees.piece) * (2 if collective == "all_reduce" else 1)
    expected = prefixes_by_definition(workloads, trees.merged)
    assert [set(workloads.prefixes(w)) for w in range(len(workloads))] == expected
    assert len(workloads.prefix) == sum(map(len, expected)), "a prefix is listed twice"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("network", ["dcell:n=3,k=1", "mesh:2x3", "star:4"])
def test_a_height_is_the_longest_chain_that_a_workload_begins(network, collective, kind):
    workloads = Workloads.of(trees_of(network, kind), collective)
    waiters = [[] for _ in range(len(workloads))]
    for w in range(len(workloads)):
        for prefix in workloads.prefixes(w):
            waiters[prefix].append(w)

    @cache
    def height(w: int) -> int:
        return 1 + max(map(height, waiters[w]), default=0)

    assert workloads.heights().tolist() == [height(w) for w in range(len(workloads))]


@pytest.mark.parametrize("network", NETWORKS)
def test_copies_take_the_routes_of_the_reduces_backwards(network):
    trees = trees_of(network, "merged")
    workloads = Workloads.of(trees, "all_reduce")
    routes = np.split(workloads.route_nodes, workloads.route_offsets[1:-1])
    half = len(trees.piece)
    assert (workloads.op == np.repeat([REDUCE, COPY], half)).all()
    for w in range(half):
        assert routes[w].tolist() == routes[w + half][::-1].tolist()
        assert (workloads.source[w], workloads.target[w]) == (routes[w][0], routes[w][-1])
        assert (workloads.source[w + half], workloads.target[w + half]) == (
            routes[w][-1],
            routes[w][0],
        )


def test_the_links_of_the_workloads():
    workloads = Workloads.of(trees_of("star:3", "merged"), "all_reduce")
    links, first = workloads.links()
    topology = workloads.topology
    for w in range(len(workloads)):
        route = workloads.route_nodes[workloads.route_offsets[w] : workloads.route_offsets[w + 1]]
        ends = links[first[w] : first[w + 1]]
        assert topology.source[ends].tolist() == route[:-1].tolist()
        assert topology.target[ends].tolist() == route[1:].tolist()
