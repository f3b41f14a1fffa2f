"""Shared links found from rates, on networks whose truth is known: max–min fair, with noise."""

import itertools

import numpy as np
import pytest

import gradweave as gw
from gradweave.probe.explore import (
    BOTH_FAN,
    clusters,
    explore,
    together,
    tournaments,
    tournaments_ahead,
)
from gradweave.probe.flows import MOST_POSTED, WINDOW_S, grown_seconds, window
from gradweave.probe.infer import Latencies, inferred, snapped
from gradweave.probe.traffic import PARTS, Rate, rate_of, total, tournament

MB = 1e6


def network(servers: int, switches: int, links, latency_s: float = 1e-3) -> gw.Topology:
    pairs = np.array([link[:2] for link in links])
    rates = np.array([link[2] for link in links], float) * MB
    return gw.topology.Topology(
        name="truth",
        is_server=np.arange(servers + switches) < servers,
        source=np.concatenate([pairs[:, 0], pairs[:, 1]]),
        target=np.concatenate([pairs[:, 1], pairs[:, 0]]),
        bandwidth_bytes_per_s=np.tile(rates, 2),
        latency_s=np.full(2 * len(pairs), latency_s),
        capacity=np.ones(2 * len(pairs), int),
    )


def racks(count: int, each: int, uplink: float, slow: float = 10.0) -> gw.Topology:
    servers = count * each
    links = [(s, servers + s // each, slow if s == 0 else 10.0) for s in range(servers)]
    if count == 2:
        return network(servers, 2, [*links, (servers, servers + 1, uplink)])
    up = [(servers + rack, servers + count, uplink) for rack in range(count)]
    return network(servers, count + 1, links + up)


def cities(servers: int) -> gw.Topology:
    rng = np.random.default_rng(1)
    pairs = itertools.combinations(range(servers), 2)
    return network(servers, 0, [(a, b, rng.uniform(1, 6)) for a, b in pairs])


TRUTHS = {
    "star, one slow": network(6, 1, [(s, 6, 3.0 if s == 2 else 10.0) for s in range(6)]),
    "two racks, slow trunk": racks(2, 4, 6.0),
    "two racks, 2 to 1": racks(2, 4, 20.0, slow=7.0),
    "two racks of 6, 3 to 1": racks(2, 6, 20.0),
    "four racks of 3, core": racks(4, 3, 15.0),
    "cities": cities(7),
    "sites of 3 with links of their own": network(
        9,
        3,
        [
            *((s, 9 + s // 3, 10.0) for s in range(9)),
            *((9, 10, 8.0), (9, 11, 3.0), (10, 11, 5.0)),
        ],
    ),
    "two servers": network(2, 0, [(0, 1, 10.0)]),
}
SWITCHES = {
    "star, one slow": 1,
    "two racks, slow trunk": 2,
    "two racks, 2 to 1": 2,
    "two racks of 6, 3 to 1": 2,
    "four racks of 3, core": 5,
    "cities": 0,
    "sites of 3 with links of their own": 3,
    "two servers": 0,
}


def fair(topology: gw.Topology, flows) -> list[float]:
    """Max–min fair rates by progressive filling, on shortest routes."""
    routes = []
    for flow in flows:
        nodes = gw.topology.shortest_route(topology, *flow)
        routes.append(topology.find_links(nodes[:-1], nodes[1:]))
    left = topology.bandwidth_bytes_per_s.copy()
    rates = np.zeros(len(flows))
    growing = set(range(len(flows)))
    while growing:
        users = np.zeros(len(left))
        for flow in growing:
            users[routes[flow]] += 1
        share = np.where(users > 0, left / np.maximum(users, 1), np.inf)
        step = share.min()
        full = share <= step * (1 + 1e-9)
        for flow in growing:
            rates[flow] += step
        left -= users * step
        growing = {flow for flow in growing if not full[routes[flow]].any()}
    return rates.tolist()


def found(topology: gw.Topology, noise: float = 0.03) -> gw.Topology:
    rng = np.random.default_rng(0)

    def measure(slots, added):
        return [
            [
                Rate(rate, (rate,) * PARTS)
                for rate in np.array(fair(topology, slot)) * rng.uniform(1 - noise, 1, len(slot))
            ]
            for slot in slots
        ]

    servers = topology.num_servers
    steps = np.zeros((servers, servers))
    for a, b in itertools.permutations(range(servers), 2):
        steps[a, b] = len(gw.topology.shortest_route(topology, a, b)) - 1
    latencies = Latencies(steps * 1e-3, steps * 1e-5, 2e-5)
    names = [f"host:{rank}" for rank in range(servers)]
    return inferred(explore(servers, measure, lambda _: None), latencies, names, "found").topology


@pytest.mark.parametrize("name", TRUTHS)
def test_what_was_measured_behaves_as_the_truth(name):
    truth = TRUTHS[name]
    topology = found(truth)
    assert len(topology.switches) == SWITCHES[name]
    servers = range(truth.num_servers)
    loads = [
        *tournament(truth.num_servers, 5),
        [(0, other) for other in servers if other],
        [(a, b) for a, b in itertools.permutations(servers, 2)],
        *([pair] for pair in itertools.permutations(servers, 2)),
    ]
    for flows in loads:
        np.testing.assert_allclose(fair(topology, flows), fair(truth, flows), rtol=0.1)
    for a, b in itertools.combinations(servers, 2):
        known, measured = (
            sum(one.latency_s[one.find_links(route[:-1], route[1:])])
            for one in (truth, topology)
            for route in [gw.topology.shortest_route(one, a, b)]
        )
        assert measured == pytest.approx(known, rel=0.2)


@pytest.mark.parametrize("disturbed", [False, True])
def test_another_tournament_is_played_only_where_groups_differ(disturbed):
    truth, servers = racks(2, 4, 6.0), 8
    rng = np.random.default_rng(0)
    single: list[int] = []

    def measure(slots, added):
        rates = [np.array(fair(truth, slot)) for slot in slots]
        if not added:
            single.append(len(slots))
        if disturbed and single == [len(slots)]:
            for some in rates[: servers - 1]:  # the first tournament, beside other work
                some *= rng.uniform(0.2, 1, len(some))
        return [[Rate(rate, (rate,) * PARTS) for rate in some] for some in rates]

    findings = explore(servers, measure, lambda _: None)
    ahead = tournaments_ahead(servers) * (servers - 1)
    played = tournaments(servers) * (servers - 1)
    assert single == ([ahead, played - ahead] if disturbed else [ahead])
    assert sorted(group.members for group in findings.top) == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_each_server_sends_to_all_others_once():
    for servers in (5, 9, 12):
        fans = together(servers)
        assert sorted(itertools.chain(*fans)) == list(range(servers))
        assert len(fans) == (servers if servers < BOTH_FAN else -(-servers // 2))


def test_a_lucky_pair_joins_no_racks():
    near = np.kron(np.eye(2), np.ones((4, 4))) + np.kron(1 - np.eye(2), np.full((4, 4), 0.5))
    near[1, 6] = near[6, 1] = 1.0
    assert clusters(near) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_each_two_meet_once():
    for players in (5, 8):
        rounds = tournament(players, 3)
        met = sorted(tuple(sorted(pair)) for pairs in rounds for pair in pairs)
        assert met == list(itertools.combinations(range(players), 2))
        assert all(len({p for pair in pairs for p in pair}) == 2 * len(pairs) for pairs in rounds)


def test_rates_are_of_what_arrives_within_the_slot():
    arrivals = [0.0, 0.5, *np.arange(1.0, 2.0, 0.01), 5.0]
    rate, count = rate_of(arrivals, 1000, begin=1.0, end=2.0)
    assert rate.bytes_per_s == pytest.approx(1e5, rel=0.02) and count == 100
    assert rate.spread_bytes_per_s < 5e3
    late = np.arange(1.5, 2.0, 0.01).tolist()
    assert rate_of(late, 1000, begin=1.0, end=2.0)[0].bytes_per_s == pytest.approx(1e5, rel=0.02)
    for few in ([], [1.0]):
        assert np.isnan(rate_of(few, 1000, 0.0, 2.0)[0].bytes_per_s)


def test_flows_that_take_turns_are_together_no_faster_than_their_link():
    """One link of 1e5 bytes/s: a flow has it for the first half of the slot, another after it."""
    first, second = (np.arange(start, start + 0.5, 0.01).tolist() for start in (1.0, 1.5))
    rates = [rate_of(at, 1000, begin=1.0, end=2.0)[0] for at in (first, second)]
    assert [rate.bytes_per_s for rate in rates] == pytest.approx([1e5, 1e5], rel=0.05)
    assert total(rates).bytes_per_s == pytest.approx(1e5, rel=0.05)


@pytest.mark.parametrize("bytes_per_s", [1e3, 1e6, 1e9])
@pytest.mark.parametrize("trip_s", [1e-5, 0.03])
def test_a_window_holds_what_its_flow_needs_and_keeps_it_in_finer_chunks(bytes_per_s, trip_s):
    whole = window(bytes_per_s, trip_s)
    assert whole.total_bytes >= bytes_per_s * (WINDOW_S + trip_s)
    finer = whole.in_chunks_of(1)
    assert finer.posted <= MOST_POSTED and finer.chunk_bytes <= whole.chunk_bytes
    assert whole.total_bytes <= finer.total_bytes <= whole.total_bytes + finer.chunk_bytes
    assert grown_seconds(whole, trip_s) >= trip_s


def test_bandwidths_that_are_nearly_alike_are_one():
    assert snapped(np.array([100.0, 99.0, 50.0, 97.0])).tolist() == [99.0, 99.0, 50.0, 99.0]
