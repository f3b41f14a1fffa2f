"""Trees packed by the linear program, and the minimum-cost arborescences that it uses."""

import dataclasses
import itertools

import networkx as nx
import numpy as np
import pytest

import gradweave as gw
from gradweave.bounds import least_seconds
from gradweave.schedulers.kernels.arborescence import minimum_arborescences
from gradweave.schedulers.kernels.paths import cheapest_paths
from gradweave.schedulers.packing import tree_program
from gradweave.schedulers.packing.parts import parts_of
from gradweave.schedulers.packing.paths import PathCosts
from gradweave.schedulers.packing.tree_program import Tree, TreeSearch, pack_trees
from gradweave.schedulers.packing.tuning import TUNING
from gradweave.topology import Topology

NEAR = (1 + TUNING.tolerance) * (1 + TUNING.slack)


def slowed(topology: Topology, server: int, factor: float) -> Topology:
    """The network with all links of one server slower, both ways."""
    bandwidth = topology.bandwidth_bytes_per_s.copy()
    bandwidth[(topology.source == server) | (topology.target == server)] *= factor
    return dataclasses.replace(topology, bandwidth_bytes_per_s=bandwidth)


def uneven(spec: str, seed: int, *, one_way: bool = False) -> Topology:
    """The network with bandwidths over a decade, equal in both directions by default."""
    topology = gw.topology.from_spec(spec)
    drawn = 10 ** np.random.default_rng(seed).uniform(9, 10, len(topology.source))
    if not one_way:
        drawn = np.minimum(drawn, drawn[topology.opposite])
    return dataclasses.replace(topology, bandwidth_bytes_per_s=drawn)


NETWORKS = {
    "half speed": slowed(gw.topology.star(8), 0, 0.5),
    "quarter speed": slowed(gw.topology.star(5), 2, 0.25),
    "torus": uneven("torus:3x3", 0),
    "one way faster": uneven("torus:3x3", 1, one_way=True),
    "fat tree": uneven("fat_tree:4", 2),
    "boxes": gw.topology.from_spec("a100:boxes=2"),
}


@pytest.mark.parametrize("seed", range(40))
def test_minimum_cost_arborescences_are_those_of_networkx(seed: int):
    rng = np.random.default_rng(seed)
    servers = int(rng.integers(2, 9))
    cost = rng.integers(0, 6, (servers, servers)).astype(float)
    cost[np.arange(servers), np.arange(servers) - 1] = 9.0  # a way round, so that trees exist
    np.fill_diagonal(cost, np.inf)
    total, parents = minimum_arborescences(cost, 1e-9)
    for root in range(servers):
        graph = nx.DiGraph(
            (u, v, {"weight": cost[u, v]})
            for u in range(servers)
            for v in range(servers)
            if u != v and v != root
        )
        least = nx.minimum_spanning_arborescence(graph).size(weight="weight")
        assert total[root] == least
        assert parents[root, root] == -1
        tree = nx.DiGraph((u, v) for v, u in enumerate(parents[root].tolist()) if v != root)
        assert nx.is_arborescence(tree) and tree.number_of_nodes() == servers


def test_paths_pass_switches_and_no_servers():
    line = Topology.from_links("line", servers=3, switches=1, links=[(0, 3), (3, 1), (1, 2)])
    dual = np.ones(len(line.source))
    first = np.searchsorted(line.source, np.arange(line.num_nodes + 1))
    cost, last = cheapest_paths(first, line.target, dual, line.servers, line.is_server)
    assert cost[:, :3].tolist() == [[0, 2, np.inf], [2, 0, 1], [np.inf, 1, 0]]
    assert line.source[last[0, 1]] == 3 and last[0, 2] == -1


def test_residual_bandwidth_counts_unless_others_are_carried_beside():
    """A server with a port of 100 behind a switch with ports of 50, 50 and 100."""
    star = Topology.from_links("star", servers=4, switches=1, links=[(s, 4) for s in range(4)])
    rate = np.array([100.0, 50.0, 50.0, 100.0])
    ends = np.minimum(star.source, star.target)
    star = dataclasses.replace(star, bandwidth_bytes_per_s=rate[ends])
    paths = PathCosts(star, residual=1.5)
    between = paths.cheapest(np.ones(len(star.source)))
    # Both slow servers together fill the fast port; between fast ones all of it is used.
    assert paths.factors(between.route(0, 1)).tolist() == [1.0, 1.0]
    assert paths.factors(between.route(0, 3)).tolist() == [1.0, 1.0]
    one = slowed(gw.topology.star(4), 1, 0.5)
    paths = PathCosts(one, residual=1.5)
    between = paths.cheapest(np.ones(len(one.source)))
    assert paths.factors(between.route(0, 1)).tolist() == [2.0 * 1.5, 1.0]
    assert not PathCosts(one, residual=0.0).leave_residual


def loads(topology: Topology, trees: tuple[Tree, ...]) -> np.ndarray:
    load = np.zeros(len(topology.source))
    for tree in trees:
        for route in tree.routes:
            np.add.at(load, list(route), tree.share)
    return load


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter", "all_gather"])
def test_trees_take_the_least_time_that_another_linear_program_proves(name: str, collective):
    topology = NETWORKS[name]
    shares = "any" if collective == "all_reduce" else "equal"
    least = float(least_seconds(topology, 1.0, collective, shares=shares).duals.seconds_per_byte)
    packing = pack_trees(topology, collective)
    assert least * (1 - 1e-9) <= packing.seconds_per_byte <= least * NEAR
    busiest = (loads(topology, packing.trees) / topology.bandwidth_bytes_per_s).max()
    assert busiest <= packing.seconds_per_byte * (1 + 1e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_trees_span_and_both_stages_root_alike(name: str):
    topology = NETWORKS[name]
    rooted = {stage: np.zeros(topology.num_servers) for stage in ("reduce_scatter", "all_gather")}
    for tree in pack_trees(topology).trees:
        rooted[tree.stage][tree.root] += tree.share
        up = nx.DiGraph((v, u) for v, u in enumerate(tree.parent.tolist()) if v != tree.root)
        assert nx.is_arborescence(up.reverse()) and up.number_of_nodes() == topology.num_servers
        for server, route in enumerate(tree.routes):
            ends = (server, int(tree.parent[server]))
            source, target = ends if tree.stage == "reduce_scatter" else ends[::-1]
            if server == tree.root:
                assert not route
                continue
            nodes = [int(topology.source[route[0]]), *topology.target[list(route)].tolist()]
            assert (nodes[0], nodes[-1]) == (topology.servers[source], topology.servers[target])
            assert not topology.is_server[nodes[1:-1]].any()
    for shares in rooted.values():
        assert shares.sum() == pytest.approx(1)
    assert rooted["reduce_scatter"] == pytest.approx(rooted["all_gather"], abs=1e-6)


@pytest.mark.parametrize("name", ["half speed", "quarter speed", "fat tree"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
def test_what_duals_prove_where_bandwidth_is_residual_no_packing_undercuts(
    monkeypatch, name: str, collective
):
    """Weak duality: any positive duals bound the time, whatever packing the search ends with."""
    topology = NETWORKS[name]
    shares = "any" if collective == "all_reduce" else "equal"
    least = least_seconds(topology, 1.0, collective, shares=shares)
    exact = dataclasses.replace(tree_program.TUNING, tolerance=1e-9)
    monkeypatch.setattr(tree_program, "TUNING", exact)
    search = TreeSearch(topology, collective, least, PathCosts(topology, residual=1.5))
    search.run()
    best = search._length
    rng = np.random.default_rng(0)
    for _ in range(20):
        search._least = 0.0
        search._add_columns(rng.uniform(0.1, 1, (1, len(topology.source))))
        assert 0 < search._least <= best * (1 + 1e-9)


def test_the_bound_of_duals_by_hand():
    """With free roots, each pays the cheapest root's cost; with equal parts, each pays its cost."""
    star = gw.topology.star(3)  # six link directions of one unit
    duals = np.array([[0.5, 1.0, 1.5, 0.5, 1.0, 1.5]])
    for collective, shares, proved in (("all_reduce", "any", 12 / 6), ("all_gather", "equal", 3.0)):
        least = least_seconds(star, 1.0, collective, shares=shares)
        search = TreeSearch(star, collective, least, PathCosts(star, residual=0.0))
        search._least = 0.0
        search._take_bound(duals, np.array([12.0, 18.0, 24.0]))
        assert search._least == proved and (search._best_duals == duals).all()
        search._take_bound(duals, np.array([6.0, 6.0, 6.0]))  # proves less
        assert search._least == proved


def test_a_route_is_as_fast_as_its_slowest_link_and_waits_for_all():
    """A hop has its links' smallest rate, largest overhead, and total latency."""
    tree = NETWORKS["fat tree"]
    rng = np.random.default_rng(0)
    drawn = {
        field: rng.uniform(1e-6, 1e-3, len(tree.source)) for field in ("latency_s", "overhead_s")
    }
    tree = dataclasses.replace(tree, **drawn)
    parts = parts_of(tree, "all_reduce")
    lengths = np.diff(parts.wires.first)
    assert lengths.min() >= 2 and lengths.max() > 2  # over one switch, and over more
    for hop, (low, high) in enumerate(itertools.pairwise(parts.wires.first.tolist())):
        links = parts.wires.links[low:high]
        assert tree.target[links[:-1]].tolist() == tree.source[links[1:]].tolist()
        ends = tree.servers[parts.source[hop]], tree.servers[parts.target[hop]]
        assert ends == (tree.source[links[0]], tree.target[links[-1]])
        assert parts.wires.rate[hop] == tree.bandwidth_bytes_per_s[links].min()
        assert parts.wires.overhead[hop] == tree.overhead_s[links].max()
        assert parts.wires.latency[hop] == pytest.approx(tree.latency_s[links].sum(), rel=1e-12)
