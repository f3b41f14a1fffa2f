"""Each part of the bounds in seconds against the exact optimum on small networks: distances by
Dijkstra, linear programs over routes, and every set of servers, with all that they claim."""

import dataclasses
import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.bounds import LinkLoad, fixed_trees, least_seconds
from gradweave.schedules.flow_tree import FlowTrees
from gradweave.topology import Topology, from_spec
from tests.bounds.test_bounds_late_servers import hop_linear_program
from tests.simulator.random_networks import networks

GIGABYTE = 1e9


def distances(network: Topology) -> np.ndarray:
    """[N, N] least latency from server to server, by networkx."""
    graph = nx.DiGraph()
    columns = (network.source.tolist(), network.target.tolist(), network.latency_s.tolist())
    graph.add_weighted_edges_from(zip(*columns, strict=True))
    found = dict(nx.all_pairs_dijkstra_path_length(graph))
    servers = network.servers.tolist()
    return np.array([[found[a][b] for b in servers] for a in servers])


def least_latency(network: Topology, collective: str, ready: np.ndarray) -> np.ndarray:
    """[N] for each root: until all contributions are there, and from then on until all have it."""
    away = distances(network)
    complete = ready.copy()  # an all-gather starts when its root's own piece is ready
    if collective != "all_gather":
        complete = (ready[:, None] + away).max(axis=0)
    return complete + (away.max(axis=1) if collective != "reduce_scatter" else 0.0)


@settings(max_examples=40, deadline=None)
@given(
    network=networks(max_servers=6, max_switches=2),
    collective=st.sampled_from(gw.schedules.COLLECTIVES),
    ready=st.lists(st.sampled_from([0.0, 1e-3, 5e-3, 2e-2]), min_size=6, max_size=6),
    rooting=st.integers(0, 5),
)
def test_the_latency_is_that_of_the_best_root_and_of_the_worst_given_one(
    network, collective, ready, rooting
):
    ready = np.array(ready[: network.num_servers])
    by_root = least_latency(network, collective, ready)
    least = least_seconds(network, 1.0, collective, ready_at_s=ready)
    assert least.latency_s == pytest.approx(by_root.min(), rel=1e-12)
    share = np.zeros(network.num_servers)
    np.add.at(share, [rooting % network.num_servers, 0], 0.5)
    given_roots = least_seconds(network, 1.0, collective, shares=share.tolist(), ready_at_s=ready)
    assert given_roots.latency_s == pytest.approx(by_root[share > 0].max(), rel=1e-12)


def test_distances_from_some_servers_bound_no_more(monkeypatch):
    """Of a line of six servers, the first, the middle and the last are measured."""
    network = from_spec("mesh:6")
    away = distances(network)
    least_seconds.__globals__["_latency"].cache_clear()
    monkeypatch.setitem(least_seconds.__globals__, "MAX_STARTS", 3)
    some = [0, 2, 5]
    expected = (away[some].max(axis=0) + away[:, some].max(axis=1)).min()
    assert least_seconds(network, 1.0).latency_s == pytest.approx(expected, rel=1e-12)
    least_seconds.__globals__["_latency"].cache_clear()


LATE = st.lists(
    st.sampled_from([0.0, 0.01, 0.02, 0.05, 0.11, 0.3, 0.9, 2.0]), min_size=6, max_size=6
)


@settings(max_examples=25, deadline=None)
@given(network=networks(max_servers=6, max_switches=0), ready=LATE)
def test_more_ready_times_than_are_told_apart_are_taken_for_earlier_ones(network, ready):
    """At most four times count, the first and the last among them; none is taken for a later."""
    ready = ready[: network.num_servers]
    network = dataclasses.replace(network, latency_s=np.zeros(len(network.source)))
    least = least_seconds(network, GIGABYTE, ready_at_s=ready)
    exact = hop_linear_program(network, GIGABYTE, ready)
    told = least.duals.ready_at_s or (0.0,) * len(ready)
    times = {time for time in ready if time}
    assert all(early <= given for early, given in zip(told, ready, strict=True))
    assert {*told} <= {0.0, *times} and max(told) == max(ready)
    if len(times) <= 4:
        assert list(told) == ready
    assert least.bandwidth_s <= exact * (1 + 1e-7)
    assert least.bandwidth_s == pytest.approx(
        hop_linear_program(network, GIGABYTE, list(told)), rel=1e-7
    )


def test_six_ready_times_by_hand():
    """0.1 to 0.6 s: the first, second, fourth and last count, and each other is the one before."""
    ready = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.0]
    least = least_seconds(from_spec("complete:7"), GIGABYTE, ready_at_s=ready)
    assert least.duals.ready_at_s == (0.1, 0.2, 0.2, 0.4, 0.4, 0.6, 0.0)


@pytest.mark.parametrize(("capacity", "rounds"), [(1, 3), (2, 2), (3, 1), (4, 1)])
def test_a_load_that_does_not_fill_its_last_round_takes_it_all_the_same(capacity, rounds):
    """A star of four: each server's link carries three copies in."""
    trees = FlowTrees.shortest_path(from_spec(f"star:4,capacity={capacity}"))
    bound = fixed_trees(trees, "all_gather")
    assert bound.rounds == rounds and isinstance(bound.certificates[0], LinkLoad)


def test_the_busiest_link_is_the_one_that_needs_most_rounds():
    """5 transfers at 4 a round need 2 rounds, and so do 2 at 1: by whole rounds, not by ratio."""
    network = from_spec("mesh:2x3")
    rng = np.random.default_rng(0)
    for _ in range(20):
        capacity = rng.integers(1, 5, len(network.source))
        trees = FlowTrees.shortest_path(dataclasses.replace(network, capacity=capacity))
        load = np.bincount(
            [
                int(np.flatnonzero((network.source == a) & (network.target == b))[0])
                for _, route in trees.edges()
                for a, b in itertools.pairwise(route)
            ],
            minlength=len(capacity),
        )
        needed = max(-(-int(x) // int(c)) for x, c in zip(load, capacity, strict=True))
        assert fixed_trees(trees).rounds == max(needed, 3)  # the mesh is three transfers wide


def test_both_stages_at_once_are_bound_by_the_narrower_side_of_all_ports():
    """Servers that send at 1 and receive at 3 GB/s, and the other way round: 2·4·3 transfers."""
    star = from_spec("star:4")
    for up, down, leaving in ((1e9, 3e9, True), (3e9, 1e9, False)):
        rate = np.where(star.is_server[star.source], up, down)
        network = dataclasses.replace(star, bandwidth_bytes_per_s=rate)
        best = gw.bounds.throughput(network, "all_reduce", overlap=True)
        (bottleneck,) = best.bottlenecks
        assert (bottleneck.kind, bottleneck.leaving, bottleneck.pieces) == ("ports", leaving, 24)
        assert bottleneck.bandwidth_bytes_per_s == 4 * 10**9
        assert best.seconds(4e9) == 6.0
        assert str(bottleneck).count("leave" if leaving else "enter") == 1
