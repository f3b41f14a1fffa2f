"""Machines, leaf–spine and dragonfly: wiring, closed forms, published throughputs, names."""

import itertools
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest

import gradweave.topology as gt
from gradweave.errors import GradweaveError, TopologyError
from gradweave.topology import Link
from gradweave.topology.families.accelerator_tori import TPU_LINKS
from gradweave.topology.families.machines import BOXES

LEAF_SPINES = [
    "leaf_spine:leaves=2,spines=1,servers_per_leaf=1",
    "leaf_spine:leaves=4,spines=2,servers_per_leaf=4,oversubscription=3",
    "leaf_spine:leaves=3,spines=3,servers_per_leaf=4,oversubscription=3/2",
]
SPECS = [
    "dgx1v",
    "mi250",
    "a100",
    "a100:nvswitches=6",
    "a100:boxes=2",
    "a100:boxes=3,nvswitches=6,rails=8,nic=400Gbit/s",
    "h100",
    "h100:boxes=4,rails=8,boxes_per_leaf=2,spines=4,oversubscription=2",
    "b200:boxes=2,nvswitches=2,rails=2,spines=1",
    "gb200_nvl72",
    "gb200_nvl72:boxes=2,rails=4",
    "mi300x",
    "mi300x:boxes=2,rails=8",
    "dgx1v:boxes=2,nic=100Gbit/s",
    "trn2",
    "trn2:instances=4",
    "tpu_v4:4x4x4",
    "tpu_v4:4x4x8,wrap=twisted",
    "tpu_v4:4x8x8,wrap=twisted",
    "tpu_v5p:2x2x4,wrap=slice",
    "tpu_v5e:4x4",
    "tpu_v5p:2x3x2",
    "tpu_v6e:8",
    *LEAF_SPINES,
    "dragonfly:groups=9,routers_per_group=4,servers_per_router=2,global_links=2",
    "dragonfly:groups=3,routers_per_group=2,servers_per_router=1,global_links=1",
    "dragonfly:groups=1,routers_per_group=4,servers_per_router=3,global_links=1",
    "dragonfly:groups=2,routers_per_group=2,servers_per_router=1,global_links=4",
]


def undirected(net, weight):
    """networkx's view: one edge a link, weighted by a column, which is alike both ways."""
    graph = nx.Graph()
    values = getattr(net, weight)
    assert np.array_equal(values, values[net.opposite])
    graph.add_weighted_edges_from(
        zip(net.source.tolist(), net.target.tolist(), values.tolist(), strict=True)
    )
    return graph


def ports(net, weight="capacity"):
    """[V] what leaves each node, all links together."""
    return np.bincount(net.source, getattr(net, weight), net.num_nodes)


def all_gather_seconds_a_byte(net):
    """The bound of ForestColl: the largest, over cuts, of the share inside ÷ the bandwidth out.

    Every set of servers is tried; its switches are where a minimum cut puts them.
    """
    graph = nx.DiGraph()
    for a, b, w in zip(net.source.tolist(), net.target.tolist(), net.capacity, strict=True):
        graph.add_edge(a, b, capacity=int(w))
    unit = Fraction(net.bandwidth_bytes_per_s[0]) / int(net.capacity[0])
    servers = net.servers.tolist()
    worst = Fraction(0)
    for bits in range(1, 2 ** len(servers) - 1):
        inside = [server for i, server in enumerate(servers) if bits >> i & 1]
        graph.remove_nodes_from(["from", "to"])
        for server in servers:
            ends = ("from", server) if server in inside else (server, "to")
            graph.add_edge(*ends)  # no capacity: unlimited
        out = nx.maximum_flow_value(graph, "from", "to")
        worst = max(worst, Fraction(len(inside), len(servers)) / out)
    return worst / unit


@pytest.mark.parametrize("spec", SPECS)
def test_names_lead_back(spec):
    net = gt.from_spec(spec)
    assert net.name == spec
    for changes in ("bandwidth=100Gbit/s", "latency=5us,capacity=3", "bandwidth=1GB/s,latency=0s"):
        changed = gt.from_spec(spec + ("," if ":" in spec else ":") + changes)
        again = gt.from_spec(changed.name)
        assert again.same_network(changed) and again.name == changed.name
        assert not again.same_network(net) or changed.name == spec


def test_stated_properties_leave_the_others_of_the_machine():
    net = gt.from_spec("dgx1v:latency=5us")
    assert set(net.bandwidth_bytes_per_s) == {20e9, 40e9} and set(net.latency_s) == {5e-6}
    assert gt.from_spec("tpu_v5p:4x4,latency=5us").bandwidth_bytes_per_s.max() == 100e9
    assert gt.from_spec("dgx1v:bandwidth=25GB/s").bandwidth_bytes_per_s.max() == 50e9
    assert gt.from_spec("a100:capacity=2").capacity.tolist() == [2] * 16


@pytest.mark.parametrize("spec", SPECS)
def test_bandwidths_are_in_proportion_to_capacities(spec):
    net = gt.from_spec(spec)
    assert np.gcd.reduce(net.capacity) == 1
    unit = net.bandwidth_bytes_per_s / net.capacity
    assert np.allclose(unit, unit[0], rtol=1e-12)


@pytest.mark.parametrize("suffix", [".json", ".graphml", ".edges"])
@pytest.mark.parametrize("spec", SPECS)
def test_files_keep_them(tmp_path, spec, suffix):
    net = gt.from_spec(spec)
    gt.save(net, tmp_path / f"net{suffix}")
    assert gt.read(tmp_path / f"net{suffix}").same_network(net)


def test_dgx1v_is_the_hybrid_cube_mesh():
    net = gt.gpu_boxes("dgx1v")
    assert (net.num_servers, len(net.switches), net.num_links) == (8, 0, 16)
    assert ports(net).tolist() == [6] * 8  # six NVLinks a GPU
    assert ports(net, "bandwidth_bytes_per_s").tolist() == [120e9] * 8
    graph = undirected(net, "capacity")
    for quad in (range(4), range(4, 8)):
        assert graph.subgraph(quad).number_of_edges() == 6  # all joined
    assert all(graph.has_edge(i, i + 4) for i in range(4))
    double = nx.Graph([(a, b) for a, b, w in graph.edges.data("weight") if w == 2])
    assert nx.is_isomorphic(double, nx.cycle_graph(8))
    single = nx.Graph([(a, b) for a, b, w in graph.edges.data("weight") if w == 1])
    assert dict(single.degree) == dict.fromkeys(range(8), 2)


def test_dgx1v_all_gather_takes_the_known_time():
    assert all_gather_seconds_a_byte(gt.gpu_boxes("dgx1v", link=Link(1.0))) == Fraction(7, 48)


def test_a100_box_all_gather_has_the_known_bandwidth():
    for nvswitches in (1, 2):
        bandwidth = 1 / all_gather_seconds_a_byte(gt.gpu_boxes("a100", nvswitches=nvswitches))
        assert bandwidth == Fraction(300 * 10**9 * 8, 7)
        assert f"{float(bandwidth) / 1e9:.1f}" == "342.9"


def test_a100_boxes():
    net = gt.gpu_boxes("a100", boxes=2)
    nvswitches, cards, fabric = net.switches[:2], net.switches[2:18], net.switches[18:]
    assert (net.num_servers, len(fabric), net.num_links) == (16, 1, 48)
    assert sorted(set(net.bandwidth_bytes_per_s)) == [25e9, 300e9]
    assert sorted(set(net.capacity.tolist())) == [1, 12]
    graph = undirected(net, "capacity")
    assert [sorted(graph[switch]) for switch in nvswitches] == [[*range(8)], [*range(8, 16)]]
    for gpu, card in enumerate(cards.tolist()):
        assert sorted(graph[card]) == [gpu, int(fabric[0])]
    assert ports(net)[:16].tolist() == [13] * 16
    # What can leave a box: eight cards.
    boxes = nx.minimum_cut_value(
        nx.Graph([*((*e, {"capacity": w}) for *e, w in graph.edges.data("weight"))]), 16, 17
    )
    assert boxes == 8


def test_a100_rails_join_the_same_cards_of_all_boxes():
    net = gt.gpu_boxes("a100", boxes=4, rails=8)
    graph = undirected(net, "capacity")
    for rail, outer in enumerate(net.switches[-8:].tolist()):
        gpus = [min(graph[card]) for card in graph[outer]]
        assert sorted(gpus) == [box * 8 + rail for box in range(4)]


def test_a100_nvswitches_share_the_nvlinks():
    for nvswitches in (1, 2, 3, 4, 6, 12):
        net = gt.gpu_boxes("a100", nvswitches=nvswitches)
        assert np.diff(net.first_link)[:8].tolist() == [nvswitches] * 8
        assert np.allclose(ports(net, "bandwidth_bytes_per_s")[:8], 300e9)


def test_mi250_box():
    net = gt.gpu_boxes("mi250")
    assert (net.num_servers, len(net.switches), net.num_links) == (16, 0, 28)
    assert ports(net).tolist() == [7] * 16
    assert ports(net, "bandwidth_bytes_per_s").tolist() == [350e9] * 16
    capacity = net.capacity[net.source < net.target]
    assert np.bincount(capacity).tolist() == [0, 16, 4, 0, 8]
    graph = undirected(net, "capacity")
    assert all(graph[2 * card][2 * card + 1]["weight"] == 4 for card in range(8))
    assert nx.edge_connectivity(graph) == 3
    # The two halves of the box are alike, and six links join them.
    halves = [graph.subgraph(range(8 * half, 8 * half + 8)) for half in range(2)]
    assert nx.is_isomorphic(
        *halves, edge_match=nx.algorithms.isomorphism.numerical_edge_match("weight", 1)
    )
    assert nx.cut_size(graph, range(8), weight="weight") == 6


@pytest.mark.parametrize(
    ("machine", "gpus", "both_ways_gbytes_per_s", "nic_gbits"),
    [
        ("a100", 8, 600, 200),
        ("h100", 8, 900, 400),  # NVIDIA counts both directions
        ("b200", 8, 14_400 / 8, 400),
        ("gb200_nvl72", 72, 129_600 / 72, 400),
        ("mi300x", 8, 896, 400),
    ],
)
def test_boxes_have_the_published_bandwidths(machine, gpus, both_ways_gbytes_per_s, nic_gbits):
    net = gt.gpu_boxes(machine, boxes=2)
    out = ports(net, "bandwidth_bytes_per_s")[: net.num_servers]
    assert net.num_servers == 2 * gpus
    assert np.allclose(out, both_ways_gbytes_per_s * 1e9 / 2 + nic_gbits * 1e9 / 8)
    inside = ports(gt.gpu_boxes(machine), "bandwidth_bytes_per_s")[:gpus]
    assert np.allclose(inside, both_ways_gbytes_per_s * 1e9 / 2)


def test_mi300x_gpus_are_all_linked():
    net = gt.gpu_boxes("mi300x")
    assert nx.is_isomorphic(gt.to_networkx(net).to_undirected(), nx.complete_graph(8))


@pytest.mark.parametrize(
    ("machine", "boxes", "rails", "group", "spines", "excess"),
    [("h100", 4, 8, 2, 4, 2), ("a100", 6, 2, 3, 1, 1), ("gb200_nvl72", 2, 4, 1, 2, "3/2")],
)
def test_rails_and_spines(machine, boxes, rails, group, spines, excess):
    net = gt.gpu_boxes(
        machine,
        boxes,
        rails=rails,
        boxes_per_leaf=group,
        spines=spines,
        oversubscription=excess,
    )
    gpus, leaves = net.num_servers // boxes, boxes // group * rails
    leaf, spine = net.switches[-spines - leaves : -spines], net.switches[-spines:]
    graph = gt.to_networkx(net).to_undirected()
    for number, node in enumerate(leaf.tolist()):
        unit, rail = divmod(number, rails)
        below = [min(graph[card]) for card in graph[node] if card not in spine]
        assert sorted(below) == [
            gpu
            for gpu in range(unit * group * gpus, (unit + 1) * group * gpus)
            if gpu % gpus % rails == rail
        ]
        assert set(graph[node]) >= set(spine.tolist())
        down = len(below) * BOXES[machine].nic_bytes_per_s
        up = net.bandwidth_bytes_per_s[(net.source == node) & np.isin(net.target, spine)]
        assert up.sum() * float(Fraction(excess)) == pytest.approx(down)


def test_trn2_is_a_torus_and_its_ultraserver_rings_of_half_the_bandwidth():
    box, ultra = gt.trn2(), gt.trn2(instances=4)
    assert nx.is_isomorphic(gt.to_networkx(box).to_undirected(), nx.hypercube_graph(4))
    torus = nx.grid_graph((4, 4, 4), periodic=True)
    assert nx.is_isomorphic(gt.to_networkx(ultra).to_undirected(), torus)
    slow = ultra.bandwidth_bytes_per_s == 64e9
    assert (abs(ultra.source - ultra.target)[slow] % 16 == 0).all() and slow.sum() == 2 * 64
    # As published for a chip, in both directions: 1024 GB/s inside, 256 GB/s to other instances.
    assert 2 * ports(box, "bandwidth_bytes_per_s")[0] == 1024e9
    assert 2 * ports(ultra, "bandwidth_bytes_per_s")[0] == 1280e9


@pytest.mark.parametrize("a", [4, 8])
def test_twisted_slices_are_the_lattices_of_the_paper(a):
    """Camarero et al.: FCC(a) and BCC(a), by their generating matrices and closed forms."""
    fcc, bcc = ((2 * a, a, a), (0, a, 0), (0, 0, a)), ((2 * a, 0, a), (0, 2 * a, a), (0, 0, a))
    averages = {
        "fcc": (7 * a**4 - 2 * a**2) / (4 * (2 * a**3 - 1)),
        "bcc": (35 * a**4 - 8 * a**2) / (8 * (4 * a**3 - 1)),
    }
    for sizes, matrix, average in (
        ((a, a, 2 * a), fcc, averages["fcc"]),
        ((a, 2 * a, 2 * a), bcc, averages["bcc"]),
    ):
        net = gt.tpu_torus(sizes, wrap="twisted")
        hops = gt.hop_distances(net)[0]  # it looks alike from every chip
        assert hops.max() == 3 * a // 2
        assert hops.sum() / (net.num_servers - 1) == pytest.approx(average)
        assert set(ports(net)) == {6}
        if a == 4:
            lattice = nx.Graph()
            for point in itertools.product(*(range(matrix[i][i]) for i in range(3))):
                for step in np.eye(3, dtype=int):
                    lattice.add_edge(point, _reduced(np.array(point) + step, matrix))
            assert nx.is_isomorphic(gt.to_networkx(net).to_undirected(), lattice)


def _reduced(point, matrix):
    """The point of the same class modulo the columns of an upper triangular matrix."""
    for axis in (2, 1, 0):
        point = point - point[axis] // matrix[axis][axis] * np.array(matrix)[:, axis]
    return tuple(point.tolist())


def test_partial_slices_wrap_as_the_shape_does():
    assert gt.tpu_torus((2, 2, 4), wrap="slice").same_network(
        gt.mesh((2, 2, 4), link=TPU_LINKS["v4"][1])
    )
    assert gt.tpu_torus((4, 8, 4), wrap="slice").same_network(gt.tpu_torus((4, 8, 4)))
    graph = gt.to_networkx(gt.tpu_torus((8, 16), "v5e", wrap="slice")).to_undirected()
    wanted = nx.cartesian_product(nx.path_graph(8), nx.cycle_graph(16))
    assert nx.is_isomorphic(graph, wanted)


@pytest.mark.parametrize("generation", TPU_LINKS)
def test_tpu_tori_are_tori(generation):
    most, link = TPU_LINKS[generation]
    sizes = (4, 3, 2)[:most]
    net = gt.tpu_torus(sizes, generation=generation)
    assert net.same_network(gt.torus(sizes, link=link))
    assert np.array_equal(net.positions, gt.torus(sizes).positions)
    with pytest.raises(TopologyError, match=f"at most {most} sizes"):
        gt.tpu_torus((2,) * (most + 1), generation=generation)


def test_tpu_chips_have_the_published_bandwidth():
    published_gbits = {"v4": 2400, "v5e": 1600, "v5p": 4800, "v6e": 3200}
    for generation, (most, _) in TPU_LINKS.items():
        net = gt.tpu_torus((4,) * most, generation=generation)
        out = ports(net, "bandwidth_bytes_per_s")
        assert set(out * 8 / 1e9) == {published_gbits[generation]}


@pytest.mark.parametrize(
    ("leaves", "spines", "per_leaf", "excess"),
    [(2, 1, 1, 1), (4, 2, 4, 1), (4, 2, 4, 3), (3, 3, 4, "3/2"), (5, 4, 8, 1.5), (2, 2, 3, "2:1")],
)
def test_leaf_spine(leaves, spines, per_leaf, excess):
    net = gt.leaf_spine(leaves, spines, per_leaf, excess)
    servers = leaves * per_leaf
    ratio = Fraction(str(excess).replace(":", "/"))
    assert (net.num_servers, len(net.switches)) == (servers, leaves + spines)
    assert net.num_links == servers + leaves * spines
    up = (net.source >= servers) & (net.target >= servers + leaves)
    assert net.capacity[up].min() == net.capacity[up].max()
    for leaf in range(servers, servers + leaves):
        below = net.capacity[(net.source == leaf) & (net.target < servers)].sum()
        above = net.capacity[(net.source == leaf) & (net.target >= servers)].sum()
        assert Fraction(int(below), int(above)) == ratio
    assert set(net.bandwidth_bytes_per_s[net.source < servers]) == {12.5e9}
    assert net.bandwidth_bytes_per_s[up].sum() * float(ratio) == pytest.approx(servers * 12.5e9)


@pytest.mark.parametrize(
    ("a", "p", "h"), [(2, 1, 1), (4, 2, 2), (6, 3, 3), (3, 1, 2), (1, 2, 3), (5, 2, 1)]
)
def test_the_largest_dragonfly(a, p, h):
    """The paper's counts: g = a·h + 1 groups, one link between every two."""
    g = a * h + 1
    net = gt.dragonfly(g, a, p, h)
    assert (net.num_servers, len(net.switches)) == (a * p * g, a * g)
    assert net.num_links == a * p * g + g * a * (a - 1) // 2 + g * (g - 1) // 2
    assert ports(net)[net.switches].tolist() == [p + a - 1 + h] * (a * g)  # the radix
    graph = undirected(net, "capacity")
    group = {int(router): place // a for place, router in enumerate(net.switches)}
    between = [
        tuple(sorted((group[x], group[y])))
        for x, y in graph.edges
        if x in group and y in group and group[x] != group[y]
    ]
    assert sorted(between) == list(itertools.combinations(range(g), 2))
    routers = graph.subgraph(group)
    assert nx.diameter(routers) <= 3  # local, global, local


@pytest.mark.parametrize(
    ("g", "a", "h"), [(1, 3, 1), (2, 2, 1), (2, 4, 2), (3, 4, 2), (5, 4, 2), (4, 4, 2), (2, 2, 4)]
)
def test_smaller_dragonflies_divide_their_global_links_evenly(g, a, h):
    net = gt.dragonfly(g, a, 1, h)
    between = np.zeros((g, g), int)
    for x, y, w in zip(net.source, net.target, net.capacity, strict=True):
        if x >= g * a and y >= g * a:
            between[(x - g * a) // a, (y - g * a) // a] += w
    assert (between[~np.eye(g, dtype=bool)] == (a * h // (g - 1) if g > 1 else 0)).all()
    assert (np.diag(between) == a * (a - 1)).all()
    assert ports(net)[net.switches].max() <= 1 + a - 1 + h
    assert nx.is_connected(gt.to_networkx(net).to_undirected())


@pytest.mark.parametrize("spec", SPECS)
def test_nodes_stand_apart(spec):
    net = gt.from_spec(spec)
    lengths = np.linalg.norm(net.positions[net.source] - net.positions[net.target], axis=1)
    apart = np.linalg.norm(net.positions[:, None] - net.positions, axis=2) / lengths.mean()
    assert np.isfinite(apart).all()
    assert apart[~np.eye(len(apart), dtype=bool)].min() > 0.01


@pytest.mark.parametrize(
    "spec",
    [
        "dgx1v",
        "mi250",
        "a100:nvswitches=6",
        "a100:boxes=2,rails=4",
        "h100:boxes=4,rails=8,boxes_per_leaf=2,spines=4",
        *LEAF_SPINES,
    ],
)
def test_links_pass_over_no_other_node(spec):
    net = gt.from_spec(spec)
    points = net.positions
    start, along = points[net.source], points[net.target] - points[net.source]
    scale = np.linalg.norm(along, axis=1).mean()
    for node, point in enumerate(points):
        share = ((point - start) * along).sum(1) / (along**2).sum(1)
        nearest = start + np.clip(share, 0, 1)[:, None] * along
        distance = np.linalg.norm(point - nearest, axis=1) / scale
        others = (net.source != node) & (net.target != node)
        assert not others.any() or distance[others].min() > 0.03


def test_very_large_networks_have_no_drawing():
    assert gt.gpu_boxes("a100", boxes=100).positions is None
    assert gt.leaf_spine(100, 10, 40).positions is None
    assert gt.dragonfly(73, 12, 6, 6).positions is None


@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        (lambda: gt.gpu_boxes("a100", 0), "a100: boxes must be at least 1, got 0"),
        (lambda: gt.gpu_boxes("a100", 10**9), "a100: boxes must be at most"),
        (lambda: gt.gpu_boxes("a100", 10**6), "nodes; at most"),
        (lambda: gt.gpu_boxes("a100", 2.5), "boxes must be an integer, got 2.5"),
        (lambda: gt.gpu_boxes("a100", nvswitches=5), "nvswitches must divide 12, got 5"),
        (lambda: gt.gpu_boxes("a100", 2, rails=3), "rails must divide 8, got 3"),
        (lambda: gt.gpu_boxes("a100", rails=2), "rails is for several boxes"),
        (
            lambda: gt.gpu_boxes("a100", 2, nic_bytes_per_s=float("nan")),
            "nic must be a positive bandwidth",
        ),
        (lambda: gt.gpu_boxes("a100", 2, nic_bytes_per_s=0), "nic must be a positive bandwidth"),
        (lambda: gt.gpu_boxes("a100", 2, nic_bytes_per_s=25e9 + 1), "choose rounder rates"),
        (lambda: gt.gpu_boxes("a100", 2, link=Link(float("inf"))), "bandwidth must be positive"),
        (
            lambda: gt.gpu_boxes("a100", link=Link(float("nan"))),
            "bandwidth_bytes_per_s must be positive",
        ),
        (lambda: gt.gpu_boxes("a100", link=Link(capacity=0)), "capacity must be at least 1"),
        (lambda: gt.gpu_boxes("a101"), "machine must be one of dgx1v, a100, h100"),
        (lambda: gt.gpu_boxes("dgx1v", 2), "dgx1v: its GPUs share cards; give nic"),
        (lambda: gt.gpu_boxes("h100", 4, boxes_per_leaf=3), "boxes_per_leaf must divide 4, got 3"),
        (lambda: gt.gpu_boxes("h100", 4, boxes_per_leaf=2), "spines must be at least 1, got 0"),
        (lambda: gt.gpu_boxes("h100", 2, oversubscription=2), "oversubscription is that of leaves"),
        (lambda: gt.gpu_boxes("mi300x", nvswitches=2), "nvswitches must divide 1, got 2"),
        (lambda: gt.trn2(instances=2), "instances must be 1, or 4 for an UltraServer, got 2"),
        (lambda: gt.tpu_torus((4, 4), wrap="twisted"), "wrap=twisted needs a v4 or v5p of k·k·2k"),
        (
            lambda: gt.tpu_torus((2, 2, 4), wrap="twisted"),
            "multiple of 4, such as 4x4x8; got 2x2x4",
        ),
        (lambda: gt.tpu_torus((4, 4, 4), wrap="round"), "wrap must be all, slice or twisted"),
        (lambda: gt.gpu_boxes("dgx1v", link=Link(-1.0)), "bandwidth_bytes_per_s must be positive"),
        (
            lambda: gt.gpu_boxes("mi250", link=Link(latency_s=-1)),
            "latency_s must be zero or positive",
        ),
        (lambda: gt.tpu_torus((4, 4), "v99"), "generation must be one of v4, v5e, v5p, v6e"),
        (lambda: gt.tpu_torus((4, 0)), "dimensions[1] must be at least 1"),
        (lambda: gt.leaf_spine(1, 1, 1), "leaves must be at least 2"),
        (lambda: gt.leaf_spine(2, 0, 1), "spines must be at least 1"),
        (lambda: gt.leaf_spine(2, 1, 1, 0), "oversubscription must be a positive number"),
        (lambda: gt.leaf_spine(2, 1, 1, -3), "oversubscription must be a positive number"),
        (lambda: gt.leaf_spine(2, 1, 1, True), "oversubscription must be a positive number"),
        (lambda: gt.leaf_spine(2, 1, 1, "1e9999999"), "oversubscription must be a positive"),
        (lambda: gt.leaf_spine(2, 1, 1, 3.14159265), "choose rounder rates"),
        (lambda: gt.leaf_spine(1 << 19, 4, 4), "nodes; at most"),
        (lambda: gt.dragonfly(10, 4, 2, 2), "groups must be at most routers_per_group·global"),
        (lambda: gt.dragonfly(0, 4, 2, 2), "groups must be at least 1"),
        (lambda: gt.dragonfly(1, 1, 1), "1 server"),
        (lambda: gt.dragonfly(9, 4, 0, 2), "servers_per_router must be at least 1"),
        (lambda: gt.dragonfly(1 << 19, 1 << 10, 8, 600), "nodes; at most"),
        (lambda: gt.from_spec("dgx1v:8"), "'8' needs a key"),
        (lambda: gt.from_spec("dgx1v:"), "expected a value after dgx1v:"),
        (lambda: gt.from_spec("dgx1"), "did you mean dgx1v?"),
        (lambda: gt.from_spec("a100:box=2"), "did you mean boxes?"),
        (lambda: gt.from_spec("a100:nic=fast"), "a100: nic: bandwidth 'fast'"),
        (lambda: gt.from_spec("leaf_spine:leaves=2,spines=1"), "servers_per_leaf is missing"),
        (lambda: gt.from_spec("dragonfly"), "groups and routers_per_group and servers_per_router"),
    ],
)
def test_refusals_name_the_culprit_in_one_line(make, culprit):
    with pytest.raises(GradweaveError) as caught:
        make()
    message = str(caught.value)
    assert culprit in message
    assert message.isprintable() and len(message) < 400


def test_other_spellings():
    assert gt.from_spec("DGX1V").name == "dgx1v"
    assert gt.from_spec(
        "leaf-spine:leaves=2,spines=1,servers_per_leaf=4,oversubscription=4:2"
    ).name == ("leaf_spine:leaves=2,spines=1,servers_per_leaf=4,oversubscription=2")
    assert gt.from_spec("a100:boxes=1,nic=200Gbit/s,rails=1").name == "a100"
    assert BOXES["dgx1v"].link.bandwidth_bytes_per_s == 20e9
