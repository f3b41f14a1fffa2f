"""Every family against closed-form counts and its paper's definition, found anew here."""

import itertools
import time

import networkx as nx
import numpy as np
import pytest

import gradweave.topology as gt
from gradweave.errors import TopologyError
from gradweave.topology import Link, Topology


def graph_of(topology: Topology) -> nx.Graph:
    return gt.to_networkx(topology).to_undirected()


def links_of(topology: Topology) -> set[tuple[int, int]]:
    return {
        (a, b)
        for a, b in zip(topology.source.tolist(), topology.target.tolist(), strict=True)
        if a < b
    }


def degrees(topology: Topology) -> tuple[set[int], set[int]]:
    degree = np.diff(topology.first_link)
    return set(degree[topology.servers].tolist()), set(degree[topology.switches].tolist())


def check(
    topology, *, servers, switches, links, server_degree, switch_degree=frozenset(), diameter=None
):
    assert (topology.num_servers, len(topology.switches), topology.num_links) == (
        servers,
        switches,
        links,
    )
    assert topology.is_server[:servers].all()
    assert degrees(topology) == (set(server_degree), set(switch_degree))
    if diameter is not None:
        assert nx.diameter(graph_of(topology)) == diameter


@pytest.mark.parametrize(
    ("n", "k"), [(2, 0), (5, 0), (2, 1), (3, 1), (4, 1), (5, 1), (2, 2), (3, 2), (4, 2), (2, 4)]
)
def test_bcube_counts(n, k):
    check(
        gt.bcube(n, k),
        servers=n ** (k + 1),
        switches=(k + 1) * n**k,
        links=(k + 1) * n ** (k + 1),
        server_degree={k + 1},
        switch_degree={n},
        diameter=2 * (k + 1),  # k + 1 digits to put right, each through one switch
    )


@pytest.mark.parametrize(("n", "k"), [(2, 0), (3, 1), (3, 2), (4, 2), (2, 3)])
def test_bcube_servers_share_a_switch_where_one_digit_differs(n, k):
    net = gt.bcube(n=n, k=k)
    addresses = list(itertools.product(range(n), repeat=k + 1))  # a_k … a_0
    servers = n ** (k + 1)
    switches_of = {server: set() for server in range(servers)}
    for a, b in links_of(net):
        assert a < servers <= b, "a server's links go to switches"
        switches_of[a].add(b)
    for (i, a), (j, b) in itertools.combinations(enumerate(addresses), 2):
        differing = [k - place for place in range(k + 1) if a[place] != b[place]]
        shared = switches_of[i] & switches_of[j]
        assert len(shared) == (len(differing) == 1)
        if shared:
            assert (shared.pop() - servers) // n**k == differing[0], "switches go level by level"


def test_bcube_switches_of_a_level_are_in_order_of_the_other_digits():
    net = gt.bcube(3, 1)
    of_switch = {
        switch: sorted(a for a, b in links_of(net) if b == switch)
        for switch in net.switches.tolist()
    }
    assert of_switch == {
        9: [0, 1, 2],
        10: [3, 4, 5],
        11: [6, 7, 8],
        12: [0, 3, 6],
        13: [1, 4, 7],
        14: [2, 5, 8],
    }


def dcell_links(n: int, level: int) -> tuple[list[tuple], int]:
    """BuildDCells of the paper: links between names, which are cell numbers, then the server."""
    links: list[tuple] = []

    def build(prefix: tuple, level: int) -> int:
        if level == 0:
            links.extend((("switch", *prefix), (*prefix, i)) for i in range(n))
            return n
        size = build((*prefix, 0), level - 1)
        for cell in range(1, size + 1):
            build((*prefix, cell), level - 1)
        for i in range(size):
            for j in range(i + 1, size + 1):
                links.append((("uid", *prefix, i, j - 1), ("uid", *prefix, j, i)))
        return size * (size + 1)

    servers = build((), level)
    return links, servers


def dcell_by_the_paper(n: int, level: int) -> tuple[set[tuple[int, int]], int]:
    """The links by server id, from names; a name's digits weigh t_0, t_1, …"""
    links, servers = dcell_links(n, level)
    sizes = [n]
    for _ in range(level):
        sizes.append(sizes[-1] * (sizes[-1] + 1))

    def server(name: tuple) -> int:
        # (cell of level k, …, cell of level 1, server)
        return sum(c * sizes[level - 1 - place] for place, c in enumerate(name[:-1])) + name[-1]

    def node(name: tuple) -> int:
        if name[0] == "switch":
            return servers + server((*name[1:], 0)) // n
        if name[0] == "uid":
            *prefix, cell, uid = name[1:]
            depth = level - 1 - len(prefix)  # the level of the sub-cells
            start = sum(c * sizes[level - 1 - place] for place, c in enumerate((*prefix, cell)))
            assert uid < sizes[depth]
            return start + uid
        return server(name)

    return {tuple(sorted((node(a), node(b)))) for a, b in links}, servers


@pytest.mark.parametrize(
    ("n", "k"), [(2, 0), (4, 0), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (2, 2), (3, 2), (2, 3)]
)
def test_dcell_has_the_links_of_the_papers_procedure(n, k):
    net = gt.dcell(n=n, k=k)
    links, servers = dcell_by_the_paper(n, k)
    assert links_of(net) == links
    # In DCell_k, k ≥ 1, every server has one link of each level.
    check(
        net,
        servers=servers,
        switches=servers // n,
        links=servers + servers * k // 2,
        server_degree={k + 1},
        switch_degree={n},
    )
    server_hops = (
        2 ** (k + 1) - 1
    )  # the paper's bound on the diameter, in transfers between servers
    if servers <= 200:
        assert nx.diameter(graph_of(net)) <= 2 * server_hops


def test_dcell_numbers_its_servers_as_the_specification_says():
    net = gt.dcell(n=4, k=1)
    for i, j in itertools.combinations(range(5), 2):
        assert net.find_links(np.array(i * 4 + j - 1), np.array(j * 4 + i)) >= 0


@pytest.mark.parametrize(
    ("spec", "nodes", "links"),
    [
        ("bcube:n=3,k=1", 15, 18),
        ("bcube:n=4,k=1", 24, 32),
        ("bcube:n=5,k=1", 35, 50),
        ("dcell:n=4,k=1", 25, 30),
        ("dcell:n=5,k=1", 36, 45),
        ("dcell:n=6,k=1", 49, 63),
        ("jellyfish:reference=J10", 20, 30),
        ("jellyfish:reference=J15", 30, 45),
        ("jellyfish:reference=J20", 40, 59),
    ],
)
def test_the_papers_nine_networks(spec, nodes, links):
    net = gt.from_spec(spec)
    assert (net.num_nodes, net.num_links) == (nodes, links)


@pytest.mark.parametrize(
    "sizes",
    [
        (2,),
        (3,),
        (7,),
        (2, 2),
        (2, 3),
        (4, 4),
        (3, 5),
        (1, 4),
        (3, 1, 3),
        (2, 3, 4),
        (2, 2, 2, 2),
        (3, 3, 3),
    ],
)
@pytest.mark.parametrize("wraps", [True, False])
def test_grids_are_products_of_rings_or_paths(sizes, wraps):
    net = (gt.torus if wraps else gt.mesh)(sizes)
    reference = nx.grid_graph(
        dim=sizes[::-1], periodic=wraps
    )  # networkx counts dimensions from the last
    reference = nx.Graph((a, b) for a, b in reference.edges if a != b)
    number = {place: i for i, place in enumerate(itertools.product(*map(range, sizes)))}
    if len(sizes) == 1:
        number = {place[0]: i for place, i in number.items()}
    assert links_of(net) == {tuple(sorted((number[a], number[b]))) for a, b in reference.edges}
    servers = int(np.prod(sizes))
    assert (net.num_servers, len(net.switches)) == (servers, 0)
    far = sum(size // 2 if wraps else size - 1 for size in sizes)
    assert nx.diameter(graph_of(net)) == far
    if wraps:
        assert degrees(net)[0] == {sum(min(size - 1, 2) for size in sizes)}


@pytest.mark.parametrize("dimension", [1, 2, 3, 5, 7])
def test_hypercube(dimension):
    net = gt.hypercube(dimension)
    check(
        net,
        servers=2**dimension,
        switches=0,
        links=dimension * 2 ** (dimension - 1),
        server_degree={dimension},
        diameter=dimension,
    )
    assert all(bin(a ^ b).count("1") == 1 for a, b in links_of(net))


@pytest.mark.parametrize("k", [2, 4, 6, 8])
def test_fat_tree(k):
    net = gt.fat_tree(k)
    check(
        net,
        servers=k**3 // 4,
        switches=5 * k**2 // 4,
        links=3 * k**3 // 4,
        server_degree={1},
        switch_degree={k},
        diameter=6,
    )
    # Full bisection: half of the servers can send to the other half at once.
    flow = nx.DiGraph()
    for a, b in zip(net.source.tolist(), net.target.tolist(), strict=True):
        flow.add_edge(a, b, capacity=1)
    half = net.num_servers // 2
    for server in range(net.num_servers):
        ends = ("from", server) if server < half else (server, "to")
        flow.add_edge(*ends, capacity=1)
    assert nx.maximum_flow_value(flow, "from", "to") == half


@pytest.mark.parametrize("n", [2, 3, 4, 9])
def test_ring_star_complete(n):
    links = n if n > 2 else 1
    check(
        gt.ring(n),
        servers=n,
        switches=0,
        links=links,
        server_degree={min(n - 1, 2)},
        diameter=n // 2,
    )
    check(
        gt.star(n), servers=n, switches=1, links=n, server_degree={1}, switch_degree={n}, diameter=2
    )
    check(
        gt.complete(n),
        servers=n,
        switches=0,
        links=n * (n - 1) // 2,
        server_degree={n - 1},
        diameter=1,
    )


def test_links_have_the_properties_asked_for():
    link = Link(bandwidth_bytes_per_s=1.25e9, latency_s=5e-6, capacity=3, overhead_s=2e-6)
    for net in (
        gt.bcube(3, 1, link=link),
        gt.mesh((2, 3), link=link),
        gt.jellyfish(6, 3, link=link),
    ):
        assert set(net.bandwidth_bytes_per_s) == {1.25e9}
        assert set(net.latency_s) == {5e-6}
        assert set(net.overhead_s) == {2e-6}
        assert set(net.capacity) == {3}


@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        (lambda: gt.bcube(1, 1), "n must be at least 2, got 1"),
        (lambda: gt.bcube(3, -1), "k must be at least 0, got -1"),
        (lambda: gt.bcube(2, 10**12), "k must be at most"),
        (lambda: gt.bcube(10, 8), "bcube:n=10,k=8: 1,900,000,000 nodes"),
        (lambda: gt.bcube("3", 1), "n must be an integer, got '3'"),
        (lambda: gt.bcube(3.0, 1), "n must be an integer, got 3.0"),
        (lambda: gt.dcell(1, 1), "n must be at least 2"),
        (lambda: gt.dcell(4, -2), "k must be at least 0"),
        (lambda: gt.dcell(4, 4), "at most 1,048,576 are supported"),
        (lambda: gt.dcell(4, 10**9), "k must be at most"),
        (lambda: gt.torus((4, 0)), "dimensions[1] must be at least 1, got 0"),
        (lambda: gt.torus((1, 1)), "1 server"),
        (lambda: gt.torus(()), "dimensions must be 1 to 32 sizes, got 0"),
        (lambda: gt.torus(4), "dimensions must be sizes"),
        (lambda: gt.mesh((4096, 4096)), "mesh:4096x4096: 16,777,216 nodes"),
        (lambda: gt.hypercube(0), "dimension must be at least 1"),
        (lambda: gt.hypercube(64), "dimension must be at most 20"),
        (lambda: gt.fat_tree(3), "k must be even, got 3"),
        (lambda: gt.fat_tree(0), "k must be at least 2"),
        (lambda: gt.fat_tree(1000), "251,250,000 nodes"),
        (lambda: gt.ring(1), "n must be at least 2"),
        (lambda: gt.star(10**30), "a larger number still"),
        (lambda: gt.complete(1 << 20), "links; at most"),
        (lambda: gt.ring(4, link=Link(latency_s=float("nan"))), "latency_s must be"),
        (lambda: gt.ring(4, link=Link(overhead_s=-1e-6)), "overhead_s must be zero or positive"),
        (
            lambda: gt.ring(4, link=Link(bandwidth_bytes_per_s=-1.0)),
            "bandwidth_bytes_per_s must be positive",
        ),
        (lambda: gt.ring(4, link=Link(capacity=0)), "capacity must be at least 1"),
    ],
)
def test_bad_parameters_are_named_in_one_line(make, culprit):
    with pytest.raises(TopologyError) as caught:
        make()
    assert culprit in str(caught.value)
    assert "\n" not in str(caught.value)


def test_large_networks_build_quickly():
    started = time.process_time()
    assert gt.bcube(64, 1).num_servers == 4096
    assert gt.ring(100_000).num_links == 100_000  # a search for connectedness would be 50,000 deep
    assert time.process_time() - started < 2
