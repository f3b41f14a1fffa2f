"""Slim Fly, HyperX, Xpander, Dragonfly+ and circulants, against their papers and networkx."""

import itertools
import math

import networkx as nx
import numpy as np
import pytest

import gradweave as gw
import gradweave.topology as gt
from gradweave.errors import TopologyError
from gradweave.topology.symmetry import automorphism_generators

SPECS = [
    "slim_fly:q=3",
    "slim_fly:q=5,servers_per_switch=4",
    "hyperx:2x3",
    "hyperx:4x4,servers_per_switch=0",
    "xpander:degree=3,lift=3,seed=0",
    "xpander:degree=4,lift=2,servers_per_switch=2,seed=7",
    "dragonfly_plus:groups=3,leaves_per_group=2,spines_per_group=2,servers_per_leaf=1,global_links=1",
    "circulant:n=9,jumps=1.4",
    "circulant:n=8,jumps=1.4",
    "jellyfish:switches=8,degree=3,servers_per_switch=0,seed=0",
]


def switch_graph(net: gt.Topology) -> nx.Graph:
    """The graph of the switches, or of all servers if there are none."""
    graph = gt.to_networkx(net).to_undirected()
    return graph.subgraph(net.switches.tolist()) if len(net.switches) else graph


def degrees(graph: nx.Graph) -> set[int]:
    return {degree for _, degree in graph.degree}


@pytest.mark.parametrize("spec", SPECS)
def test_names_lead_back(spec):
    net = gt.from_spec(spec)
    assert net.name == spec
    slower = gt.from_spec(f"{spec},bandwidth=10Gbit/s")
    assert gt.from_spec(slower.name).same_network(slower) and not slower.same_network(net)


@pytest.mark.parametrize("spec", SPECS)
def test_schedules_are_found(spec):
    solution = gw.solve(spec, objective="rounds", time_limit=2)
    assert solution.schedule is not None  # verified before it is returned
    assert 0 < solution.bound.rounds <= solution.rounds


@pytest.mark.parametrize("q", [3, 5, 7, 11, 13, 17])
def test_slim_fly_has_the_papers_counts_and_diameter_two(q):
    graph = switch_graph(gt.slim_fly(q, servers_per_switch=0))
    delta = 1 if q % 4 == 1 else -1
    assert graph.number_of_nodes() == 2 * q * q
    assert degrees(graph) == {(3 * q - delta) // 2}
    assert nx.diameter(graph) == 2


def test_slim_fly_of_five_is_the_hoffman_singleton_graph():
    net = gt.slim_fly(5, servers_per_switch=4)
    graph = switch_graph(net)
    assert (graph.number_of_nodes(), degrees(graph), nx.diameter(graph)) == (50, {7}, 2)
    assert nx.is_isomorphic(graph, nx.hoffman_singleton_graph())
    assert (net.num_servers, len(net.switches)) == (200, 50)  # the paper's example, half of 7 up


@pytest.mark.parametrize("sizes", [(4, 4), (2, 3, 4), (5,), (2, 2, 2)])
def test_hyperx_is_the_product_of_complete_graphs(sizes):
    graph = switch_graph(gt.hyperx(sizes))
    product = nx.complete_graph(sizes[0])
    for size in sizes[1:]:
        product = nx.cartesian_product(product, nx.complete_graph(size))
    assert nx.is_isomorphic(graph, product)
    assert degrees(graph) == {sum(size - 1 for size in sizes)}
    assert nx.diameter(graph) == len(sizes)


@pytest.mark.parametrize(
    ("degree", "lift", "seed"), [(3, 16, 0), (4, 32, 1), (7, 16, 2), (9, 30, 3)]
)
def test_xpander_is_a_lift_with_a_gap_near_the_ramanujan_bound(degree, lift, seed):
    graph = switch_graph(gt.xpander(degree, lift, servers_per_switch=0, seed=seed))
    assert graph.number_of_nodes() == (degree + 1) * lift and degrees(graph) == {degree}
    group = {node: node // lift for node in graph}
    assert all(group[a] != group[b] for a, b in graph.edges)
    for node in graph:  # it covers the complete graph: one neighbour in every other group
        assert sorted(group[near] for near in graph[node]) == [
            other for other in range(degree + 1) if other != group[node]
        ]
    second = np.sort(np.linalg.eigvalsh(nx.to_numpy_array(graph, weight=None)))[-2]
    assert second < 1.08 * 2 * math.sqrt(degree - 1)
    # A torus of equal degree, the usual alternative, has almost no gap.
    if degree == 4:
        torus = nx.grid_graph((10, 16), periodic=True)
        other = np.sort(np.linalg.eigvalsh(nx.to_numpy_array(torus)))[-2]
        assert degree - second > 3 * (degree - other)


def test_xpander_depends_on_its_seed_alone():
    one, same, other = (gt.xpander(4, 4, seed=seed) for seed in (1, 1, 2))
    assert one.same_network(same) and not one.same_network(other)


@pytest.mark.parametrize(("radix", "groups"), [(4, 5), (4, 3), (6, 10), (8, 17)])
def test_dragonfly_plus_has_the_papers_counts_and_diameter(radix, groups):
    """Switches of radix k: k/2 leaves and spines per group, k/2 ports each way."""
    half = radix // 2
    net = gt.dragonfly_plus(groups, half, half, half, half)
    assert net.num_servers == groups * half**2
    assert len(net.switches) == groups * 2 * half
    leaves = net.switches[: groups * half].tolist()
    graph = gt.to_networkx(net).to_undirected()
    switches = graph.subgraph(net.switches.tolist())
    longest = max(nx.shortest_path_length(switches, a, b) for a in leaves for b in leaves)
    assert longest == 3  # leaf, spine, spine, leaf
    used = np.bincount(net.source, net.capacity, net.num_nodes)
    assert used[net.switches].max() <= radix
    if groups == half * half + 1:  # the largest: one link between every two groups
        assert set(used[net.switches]) == {radix}
        group = {
            node: number % (groups * half) // half
            for number, node in enumerate(net.switches.tolist())
        }
        across = sorted(
            tuple(sorted((group[a], group[b]))) for a, b in switches.edges if group[a] != group[b]
        )
        assert across == list(itertools.combinations(range(groups), 2))


@pytest.mark.parametrize(
    ("n", "jumps"), [(5, (1, 2)), (8, (1, 4)), (9, (2, 3)), (13, (1, 5)), (16, (1, 6)), (2, (1,))]
)
def test_circulants_are_those_of_networkx(n, jumps):
    net = gt.circulant(n, jumps)
    wanted = nx.circulant_graph(n, list(jumps))
    assert set(gt.to_networkx(net).to_undirected().edges) == set(wanted.edges)


@pytest.mark.parametrize(
    ("n", "diameter"), [(5, 1), (13, 2), (25, 3), (41, 4), (61, 5), (6, 2), (14, 3), (26, 4)]
)
def test_circulants_of_degree_four_have_the_known_least_diameter(n, diameter):
    """Boesch and Wang, 1985: ⌈(√(2n−1) − 1)/2⌉, which d and d+1 as jumps attain."""
    assert math.ceil((math.sqrt(2 * n - 1) - 1) / 2) == diameter
    net = gt.circulant(n, (diameter, diameter + 1))
    assert gt.hop_distances(net).max() == diameter


@pytest.mark.parametrize(
    ("spec", "order"),
    [
        ("slim_fly:q=5,servers_per_switch=0", 252_000),  # Hoffman–Singleton: PΣU(3, 5)
        ("hyperx:3x3,servers_per_switch=0", 72),  # (S₃)² and the exchange of the dimensions
        ("hyperx:4x4,servers_per_switch=0", 1152),
        ("circulant:n=13,jumps=1.5", 52),  # x → ax + b with a⁴ = 1
        ("circulant:n=8,jumps=1.4", 16),  # the Möbius ladder of 8
        ("trn2", 384),  # the hypercube of 4 dimensions: 2⁴·4!
        ("mi300x", 40_320),
    ],
)
def test_known_numbers_of_automorphisms(spec, order):
    pytest.importorskip("pynauty")
    groups = pytest.importorskip("sympy.combinatorics")

    net = gt.from_spec(spec)
    permutations = [groups.Permutation(p.tolist()) for p in automorphism_generators(net)]
    assert groups.PermutationGroup(permutations).order() == order


@pytest.mark.parametrize("spec", ["circulant:n=12,jumps=1.3.5", "hyperx:3x4", "hyperx:2x2x3"])
def test_translations_are_free_groups(spec):
    net = gt.from_spec(spec)
    assert next(gt.free_groups(net)).order == net.num_servers


@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        (lambda: gt.slim_fly(9), "q must be an odd prime such as 3, 5, 7 or 11, got 9"),
        (lambda: gt.slim_fly(4), "q must be an odd prime"),
        (lambda: gt.slim_fly(10**5), "nodes; at most"),
        (lambda: gt.slim_fly(5, -1), "servers_per_switch must be at least 0"),
        (lambda: gt.hyperx((4, 1)), "dimensions must be at least 2"),
        (lambda: gt.hyperx((1 << 10, 1 << 10, 4)), "nodes; at most"),
        (lambda: gt.xpander(1, 4), "degree must be at least 2"),
        (lambda: gt.xpander(4, 0), "lift must be at least 1"),
        (lambda: gt.dragonfly_plus(6, 2, 2, 2, 2), "groups must be at most spines_per_group"),
        (lambda: gt.dragonfly_plus(2, 0, 2, 2), "leaves_per_group must be at least 1"),
        (lambda: gt.circulant(8, (2, 4)), "have a common divisor: not connected"),
        (lambda: gt.circulant(8, (1, 1)), "jumps must be different numbers"),
        (lambda: gt.circulant(8, (1, 5)), "jumps must be at most 4, got 5"),
        (lambda: gt.circulant(8, ()), "jumps must be different numbers"),
    ],
)
def test_refusals_name_the_culprit(make, culprit):
    with pytest.raises(TopologyError) as caught:
        make()
    assert culprit in str(caught.value)
