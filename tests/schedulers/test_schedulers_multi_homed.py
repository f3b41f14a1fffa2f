"""Servers on several switches: every port is used, and the defaults meet the bound."""

import numpy as np
import pytest

import gradweave as gw
from gradweave.schedulers import Grown, Symmetric, solve
from gradweave.schedulers.hops import Hops
from gradweave.schedules.schedule import take_rows
from gradweave.topology import Topology


def planes(servers: int, count: int, capacity: int = 1) -> Topology:
    """Each server is on all of several switches, which are not joined to each other."""
    links = [(s, servers + plane) for s in range(servers) for plane in range(count)]
    return Topology.from_links(
        "planes", servers=servers, switches=count, links=links, capacity=[capacity] * len(links)
    )


def leaf_pairs(pairs: int, per_pair: int, spines: int, trunk: int) -> Topology:
    """Racks of servers on two leaf switches each; every leaf is linked to every spine."""
    servers, leaves = pairs * per_pair, 2 * pairs
    down = [(s, servers + 2 * (s // per_pair) + side) for s in range(servers) for side in (0, 1)]
    up = [(servers + a, servers + leaves + b) for a in range(leaves) for b in range(spines)]
    return Topology.from_links(
        "leaf pairs",
        servers=servers,
        switches=leaves + spines,
        links=[*down, *up],
        capacity=[1] * len(down) + [trunk] * len(up),
    )


def routes_of(hops: Hops) -> list[tuple[int, ...]]:
    routes = np.split(hops.route_nodes, hops.route_offsets[1:-1])
    return [tuple(route.tolist()) for route in routes]


def test_there_is_a_hop_over_each_plane():
    hops = Hops.of(planes(3, 4))
    expected = {(a, p, b) for a in range(3) for b in range(3) if a != b for p in range(3, 7)}
    assert sorted(routes_of(hops)) == sorted(expected)


def test_there_is_a_shortest_hop_for_each_pair_of_first_and_last_switch():
    network = leaf_pairs(
        2, 2, 1, 1
    )  # servers 0 to 3, leaves 4 and 5 under 0 and 1, 6 and 7, spine 8
    routes = routes_of(Hops.of(network))
    assert len(routes) == len(set(routes))
    between = {(route[1], route[-2]) for route in routes if (route[0], route[-1]) == (0, 2)}
    assert between == {(4, 6), (4, 7), (5, 6), (5, 7)}
    beside = {route for route in routes if (route[0], route[-1]) == (0, 1)}
    assert beside == {(0, 4, 1), (0, 5, 1)}  # and no detour over the spine


def test_a_port_that_no_shortest_route_uses_has_its_shortest():
    """Two servers on one switch, and on two switches joined by a third: also the longer route."""
    links = [(0, 2), (1, 2), (0, 3), (1, 4), (3, 5), (4, 5)]
    network = Topology.from_links("two ways", servers=2, switches=4, links=links)
    there = [(0, 2, 1), (0, 3, 5, 4, 1)]
    assert sorted(routes_of(Hops.of(network))) == sorted(
        [*there, *(route[::-1] for route in there)]
    )
    assert solve(network, collective="all_gather").rounds == 1


def test_hops_pass_through_switches_only():
    network = gw.topology.bcube(n=3, k=1)  # its switches are joined only by servers
    assert all(len(route) == 3 for route in routes_of(Hops.of(network)))
    assert len(routes_of(Hops.of(network))) == 9 * 2 * 2


@pytest.mark.parametrize("variants", [1, 4])
def test_hops_are_distinct_and_their_links_exist(variants):
    network = leaf_pairs(3, 3, 2, 2)
    hops = Hops.of(network, variants=variants)
    routes = routes_of(hops)
    assert len(routes) == len(set(routes))
    assert (hops.links >= 0).all()
    np.testing.assert_array_equal(network.rank[[route[0] for route in routes]], hops.source)
    np.testing.assert_array_equal(network.rank[[route[-1] for route in routes]], hops.target)


def test_a_server_is_offered_a_few_times_what_its_link_can_carry():
    network = planes(40, 1, capacity=8)
    hops = Hops.of(network)
    slots = hops.slots(network.capacity, 32, 8)
    into = np.bincount(hops.target[slots])
    assert (into >= 8 * 8).all() and (into < 39 * 8).all()
    assert len(hops.slots(network.capacity, 32)) == 40 * 39 * 8
    alone = Hops.of(
        gw.Topology.from_links("pair", servers=2, switches=0, links=[(0, 1)], capacity=[8])
    )
    assert len(alone.slots(np.array([8, 8]), 32, 8)) == 2 * 8


NETWORKS = {
    "17 servers on 8 planes": (planes(17, 8), 2),
    "33 servers on 4 planes": (planes(33, 4), 8),
    "16 servers on 2 planes": (planes(16, 2), 8),
    "16 dual-homed servers": (leaf_pairs(2, 8, 2, 4), 8),
    "24 dual-homed servers": (leaf_pairs(2, 12, 2, 6), 12),
    "32 dual-homed servers": (leaf_pairs(2, 16, 2, 8), 16),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_defaults_meet_the_bound(name):
    network, least = NETWORKS[name]
    solution = solve(network, collective="all_gather")
    assert solution.rounds == solution.bound.rounds == least


@pytest.mark.parametrize("strategy", [Grown(), Symmetric()])
def test_each_strategy_uses_all_planes(strategy):
    network = planes(17, 8)
    assert strategy.schedule(network, collective="all_gather").rounds == 2


@pytest.mark.parametrize("spec", ["bcube:n=3,k=1", "dcell:n=4,k=1", "torus:3x4", "fat_tree:4"])
@pytest.mark.parametrize("variants", [1, 3])
def test_hops_of_some_senders_are_those_of_all_that_leave_them(spec, variants):
    network = gw.topology.from_spec(spec)
    every = Hops.of(network, variants=variants)
    senders = np.array([1, 4])
    some = Hops.of(network, variants=variants, senders=senders)
    kept = np.flatnonzero(np.isin(every.source, senders))
    nodes, offsets = take_rows(every.route_nodes, every.route_offsets, kept)
    assert some.route_nodes.tolist() == nodes.tolist()
    assert some.route_offsets.tolist() == offsets.tolist()
    assert some.source.tolist() == every.source[kept].tolist()
