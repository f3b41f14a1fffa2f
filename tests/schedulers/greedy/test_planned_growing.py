"""How trees grow for `planned`, step by step: rates, duals, paths and loads by hand."""

import itertools
import math

import networkx as nx
import numpy as np
import pytest

import gradweave as gw
from gradweave.schedulers.greedy import decoding
from gradweave.schedulers.greedy import tree_packing_kernel as growing
from gradweave.schedulers.greedy.decoding import Wiring
from gradweave.schedulers.greedy.tree_packing_kernel import FROM, TOWARDS, Plan, Rates
from gradweave.schedulers.kernels import arborescence, paths, residual
from tests.interpreted import interpreted


def network(servers: int, links: dict[tuple[int, int], float], **columns) -> gw.Topology:
    """Link directions with their bandwidths; switches are numbered after the servers."""
    ends = np.array(list(links), np.int64)
    return gw.topology.Topology(
        name="by hand",
        is_server=np.arange(ends.max() + 1) < servers,
        source=ends[:, 0],
        target=ends[:, 1],
        bandwidth_bytes_per_s=np.array(list(links.values()), float),
        latency_s=np.array(columns.get("latency_s", np.zeros(len(ends)))),
        capacity=np.ones(len(ends), np.int64),
        overhead_s=np.array(columns.get("overhead_s", np.zeros(len(ends)))),
    )


def star(*bandwidth: float) -> gw.Topology:
    """Servers around a switch, with equal bandwidths both ways."""
    hub = len(bandwidth)
    ends = {pair: one for s, one in enumerate(bandwidth) for pair in ((s, hub), (hub, s))}
    return network(hub, ends)


def by_ends(topology: gw.Topology, values) -> dict[tuple[int, int], float]:
    ends = zip(topology.source.tolist(), topology.target.tolist(), strict=True)
    return dict(zip(ends, np.asarray(values).tolist(), strict=True))


def factors(topology: gw.Topology, *rates: float) -> list[dict[tuple[int, int], float]]:
    links = Wiring(topology, "all_reduce", math.inf).links
    with interpreted(growing, paths, residual):
        made = growing.rates_of(links, np.array(rates))
    assert made.rate.tolist() == list(rates)
    return [by_ends(topology, row) for row in made.factor]


def test_what_transfers_take_of_links_that_are_faster_than_they():
    """At a quarter of the fastest link's rate, a transfer loads it with four times its bytes."""
    none = math.inf
    slow, middle, fast = factors(star(8, 4, 2), 0.25, 0.5, 1.0)
    for way in (lambda a, b: (a, b), lambda a, b: (b, a)):
        assert [slow[way(s, 3)] for s in range(3)] == pytest.approx([4, 2, 1])
        # Two others, of a half and a quarter, share the fastest link at a half.
        assert [middle[way(s, 3)] for s in range(3)] == pytest.approx([1, 1, none])
        assert [fast[way(s, 3)] for s in range(3)] == pytest.approx([1, none, none])
    # Three of 0.4: two fit into 1, which is 2.5 of them.
    some, whole = factors(star(10, 4, 4, 4), 0.4, 1.0)
    assert some[0, 4] == some[4, 0] == pytest.approx(2.5 / 2)
    assert some[1, 4] == some[4, 1] == pytest.approx(1) and whole[0, 4] == pytest.approx(1)
    # Without an equally slow transfer, it has the link to itself; with one rate, none is unusable.
    assert factors(star(8, 4, 2), 0.125, 1.0)[0][0, 3] == pytest.approx(8)
    assert set(factors(star(8, 4, 2), 0.125)[0].values()) == {1}


def test_only_paths_over_switches_tell_what_is_slow():
    """Servers 0, 1, 2 in a row: no path from 0 to 2, so that 1's fast link has nothing slow."""
    ends = {(0, 3): 8, (3, 1): 8, (1, 4): 2, (4, 2): 2}
    both = ends | {(b, a): one for (a, b), one in ends.items()}
    slow, _ = factors(network(3, both), 0.25, 1.0)
    assert slow[0, 3] == pytest.approx(4) and slow[1, 4] == pytest.approx(1)


def links_of(topology: gw.Topology) -> growing.Links:
    return Wiring(topology, "all_reduce", math.inf).links


def plan_of(links: growing.Links, **how) -> Plan:
    plain = {
        "root": np.zeros(1, np.int64),
        "bias": np.zeros(len(links.bandwidth)),
        "sharpness": 2.0,
        "residual": 1.0,
        "flatter": 0.0,
        "delay": np.ones(len(links.bandwidth)),
        "near": 0.0,
        "passes": 1,
        "message": np.zeros((1, 1)),
    }
    return Plan(**(plain | how))


def test_duals_by_hand():
    """A byte costs twice as much over half the bandwidth, and e² times less on an empty link."""
    links = links_of(star(8, 4))
    assert links.bandwidth.tolist() == [1, 0.5, 1, 0.5]
    bias = np.array([0.0, 0.5, 0.0, 0.0])
    load, dual = np.array([0.2, 0.1, 0.0, 0.2]), np.empty(4)
    weights = np.array([1, math.exp(2 * (0.5 - 1) + 0.5), math.exp(-2), 1])
    set_duals = growing._set_duals.py_func
    set_duals(links, plan_of(links, bias=bias), load, dual)
    assert dual == pytest.approx(weights / [1, 0.5, 1, 0.5])
    delay = np.array([3.0, 4.0, 5.0, 6.0])
    set_duals(links, plan_of(links, bias=bias, delay=delay, near=0.1), load, dual)
    assert dual == pytest.approx(weights / [1, 0.5, 1, 0.5] / weights.sum() + 0.1 * delay)
    set_duals(links, plan_of(links, bias=bias), np.zeros(4), dual)
    assert dual == pytest.approx(np.exp(bias - 2) / [1, 0.5, 1, 0.5])


def random_links(seed: int) -> tuple[gw.Topology, growing.Links]:
    """Four servers and five switches, each direction as it falls."""
    rng = np.random.default_rng(seed)
    graph = nx.gnp_random_graph(9, 0.45, seed=seed)
    assert nx.is_connected(graph)
    ends = [pair for a, b in graph.edges for pair in ((a, b), (b, a))]
    topology = network(4, dict(zip(ends, rng.uniform(1, 8, len(ends)), strict=True)))
    return topology, links_of(topology)


@pytest.mark.parametrize("seed", [1, 2, 3, 6])
def test_paths_are_the_cheapest_over_switches_at_the_best_rate(seed: int):
    _, links = random_links(seed)
    rng = np.random.default_rng(seed)
    count = len(links.bandwidth)
    dual, factor = rng.uniform(1, 5, count), rng.uniform(1, 3, (2, count))
    factor[1, rng.permutation(count)[: count // 4]] = np.inf
    with interpreted(growing, paths):
        found = growing._no_paths(links, 2)
        growing._find_paths(links, dual, factor, found)
        delay = rng.uniform(0, 1, count)
        growing._find_delays(links, plan_of(links, delay=delay, near=3.0), found)
        routes = np.full((2, 4, 6), -1, np.int32)
        trees = np.array([[-1, 0, 1, 0], [1, -1, 1, 2]])
        for server, up in itertools.product(range(4), range(4)):
            for tree, arc in ((trees[0], (up, server)), (trees[1], (server, up))):
                if tree[server] == up and not np.isfinite(found.cost[arc]):
                    tree[server] = -1
        for i, stage in enumerate((FROM, TOWARDS)):
            growing._set_routes(links, found, stage, trees[i], routes[i])
    least = np.full((2, 4, 4), np.inf)
    for k, (s, to) in itertools.product(range(2), itertools.permutations(range(4), 2)):
        inside = [s, to, *range(4, 9)]
        graph = nx.DiGraph()
        graph.add_nodes_from(inside)
        graph.add_weighted_edges_from(
            (a, b, dual[link] * factor[k, link])
            for link, (a, b) in enumerate(zip(links.source, links.target, strict=True))
            if {a, b} <= set(inside) and np.isfinite(factor[k, link])
        )
        if nx.has_path(graph, s, to):
            least[k, s, to] = nx.shortest_path_length(graph, s, to, weight="weight")
    off = ~np.eye(4, dtype=bool)
    assert found.cost[off] == pytest.approx(least.min(0)[off])
    assert (found.rate[off] == least.argmin(0)[off]).all()
    for i, tree in enumerate(trees):
        for server, up in enumerate(tree):
            route = routes[i, server][routes[i, server] >= 0]
            if up < 0:
                assert not len(route)
                continue
            source, target = (up, server) if i == 0 else (server, up)
            assert links.source[route[0]] == source and links.target[route[-1]] == target
            assert (links.target[route[:-1]] == links.source[route[1:]]).all()
            paid = dual[route] @ factor[found.rate[source, target], route]
            assert paid == pytest.approx(found.cost[source, target])
            assert found.delay[source, target] == pytest.approx(3 * delay[route].sum())
    unreached = ~np.isfinite(found.cost) & off
    assert np.isinf(found.delay[unreached]).all()


def test_servers_get_a_nearer_parent_where_their_arc_and_its_sources_delay_are_less():
    """A row of 0, 1, 2 with delays of 1: 2's parent becomes 0 if that costs less than 1 + 1."""
    reparent = arborescence.reparent.py_func
    for direct_cost, direct_delay, parent in [
        (1.8, 1.5, 0),
        (2.0, 1.5, 1),  # as much
        (1.8, 2.0, 0),  # no later
        (1.8, 2.1, 1),  # later
    ]:
        cost = np.array([[0, 1, direct_cost], [9, 0, 1], [9, 9, 0]], float)
        delay = np.array([[0, 1, direct_delay], [9, 0, 1], [9, 9, 0]], float)
        tree = np.array([-1, 0, 1])
        np.fill_diagonal(cost, np.inf)
        reparent(cost, delay, 0, tree)
        assert tree.tolist() == [-1, 0, parent]
    # A server that moves nearer takes its subtree along, and others may then join it.
    cost = np.array([[0, 1, 1, 9], [9, 0, 1, 1.5], [9, 9, 0, 0.75], [9, 9, 9, 0]], float)
    delay = np.array([[0, 1, 0.5, 9], [9, 0, 1, 1], [9, 9, 0, 0.5], [9, 9, 9, 0]], float)
    tree = np.array([-1, 0, 1, 1])
    np.fill_diagonal(cost, np.inf)
    reparent(cost, delay, 0, tree)
    assert tree.tolist() == [-1, 0, 0, 2]


def test_what_a_parts_trees_carry_at_the_rate_of_their_slowest_link():
    """A hop over links of 1 and 0.4, at the rate 0.4 the first link is loaded 1.25 times."""
    links = links_of(star(10, 4, 4, 4))
    place = {pair: link for link, pair in enumerate(by_ends(star(10, 4, 4, 4), range(8)))}
    factor = np.full((2, 8), 9.0)
    factor[0, place[0, 4]], factor[0, place[4, 1]] = 1.25, 1.0
    factor[1, place[0, 4]], factor[1, place[4, 0]] = 1.0, 1.0
    rates, load = Rates(np.array([0.4, 1.0]), factor), np.zeros(8)
    route = np.full((1, 2, 3), -1, np.int32)
    route[0, 0, :2] = place[0, 4], place[4, 1]
    route[0, 1, :2] = place[0, 4], place[4, 0]
    growing._carry.py_func(links, rates, route, 0.5, load)
    assert by_ends(star(10, 4, 4, 4), load) == pytest.approx({
        (0, 4): 0.5 * 1.25 + 0.5, (4, 1): 0.5 / 0.4, (4, 0): 0.5,
        **dict.fromkeys([(1, 4), (2, 4), (3, 4), (4, 2), (4, 3)], 0.0),
    })  # fmt: skip


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("near", [0.0, 0.1])
@pytest.mark.parametrize("message", [0.0, 0.5])
def test_the_load_is_what_all_trees_take(passes: int, near: float, message: float):
    """Also after each part's trees were removed and grown again, and if messages cost bytes."""
    topology, _ = random_links(2)
    topology = network(4, by_ends(topology, np.round(topology.bandwidth_bytes_per_s)))
    wiring = Wiring(topology, "all_reduce", math.inf)
    links = wiring.links
    root, rates = np.array([0, 1, 2, 3, 1]), np.array([0.25, 0.5, 1.0])
    extra = np.outer(rates, np.full(len(links.bandwidth), message))
    how = {"near": near, "residual": 1.5, "flatter": 1e-3, "message": extra}
    plan = plan_of(links, root=root, passes=passes, **how)
    stages = np.array([TOWARDS, FROM])
    with interpreted(growing, arborescence, paths, residual):
        made = growing.rates_of(links, rates)
        grown = growing.grow(links, plan, made, stages)
    load = np.zeros(len(links.bandwidth))
    for p, i, server in itertools.product(range(5), range(2), range(4)):
        route = grown.route[p, i, server][grown.route[p, i, server] >= 0]
        up = grown.parent[p, i, server]
        if server == root[p]:
            assert up == -1 and not len(route)
            continue
        ends = (server, up) if stages[i] == TOWARDS else (up, server)
        assert (links.source[route[0]], links.target[route[-1]]) == ends
        assert not links.is_server[links.target[route[:-1]]].any()
        slowest = links.bandwidth[route].min() * (1 + 1e-9)
        k = int((rates <= slowest).sum()) - 1
        bytes_lost = 1 + extra[max(k, 0), route]
        load[route] += made.factor[max(k, 0), route] * bytes_lost / links.bandwidth[route] / 5
        climbed = server
        for _ in range(4):
            climbed = grown.parent[p, i, climbed] if climbed != root[p] else climbed
        assert climbed == root[p]
    assert grown.load == pytest.approx(load)


def test_trees_avoid_links_whose_messages_cost_more_than_their_bytes():
    """Two direct ways from 0 to 1, one of which takes as long for a message as for its bytes."""
    ends = {(0, 1): 1e9, (1, 0): 1e9, (0, 2): 1e9, (2, 0): 1e9, (1, 2): 1e9, (2, 1): 1e9}
    slow = [8e-3 if pair == (0, 1) else 0.0 for pair in ends]
    topology = network(3, ends, overhead_s=slow)
    carried = {}
    for size in (math.inf, 48e6):
        wiring = Wiring(topology, "all_gather", size)
        proposal = decoding.even(topology)._replace(near=0.0)
        grown = decoding.grow_trees(wiring, proposal, 6, 2).grown
        carried[size] = int((grown.route == list(ends).index((0, 1))).sum())
    # 6 trees of 8 ms: over (0, 1) as long again for the message.
    assert carried[48e6] < carried[math.inf]
