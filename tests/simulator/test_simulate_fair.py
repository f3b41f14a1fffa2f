"""Links shared max–min fairly: worked examples, and every schedule against a slow reference."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.bounds.seconds_bound import seconds_bound
from gradweave.schedules.schedule import COLLECTIVES, COPY, Schedule
from gradweave.simulator import event_seconds, fair_seconds, seconds, traffic
from gradweave.topology import Link, Topology
from tests.simulator.random_networks import networks
from tests.simulator.test_simulate_seconds import random_schedule

schedules = st.builds(
    random_schedule, networks(), st.sampled_from(COLLECTIVES), st.integers(0, 1000)
)


def trunk(sides: int, trunk_bytes_per_s: float, overhead: float = 0.0) -> Topology:
    """Servers of 4 GB/s on two switches, with a link of its own bandwidth between these."""
    servers = 2 * sides
    return Topology.from_links(
        "trunk",
        servers=servers,
        switches=2,
        links=[*((s, servers + (s >= sides)) for s in range(servers)), (servers, servers + 1)],
        bandwidth_bytes_per_s=np.array([*[4e9] * servers, trunk_bytes_per_s]),
        link=Link(latency_s=0.0, overhead_s=overhead),
    )


def across(network: Topology, pairs: list[tuple[int, int]]) -> Schedule:
    """A message of a piece for each pair of servers on different sides, in rounds of their own."""
    left, right = network.num_servers, network.num_servers + 1
    rows = [(at, at, COPY, (a, left, right, b)) for at, (a, b) in enumerate(pairs)]
    root = [a for a, _ in pairs]
    return Schedule.from_rows(network, rows, collective="all_gather", root=root)


def test_two_connections_each_get_half_of_a_link():
    """First come, first served, the second would wait."""
    made = across(trunk(2, 1e9), [(0, 2), (1, 3)])
    start, end = fair_seconds(made, 2e9)
    assert start.tolist() == [0.0, 0.0] and end.tolist() == pytest.approx([2.0, 2.0])
    assert event_seconds(made, 2e9)[1].tolist() == [1.0, 2.0]


def test_transfers_over_one_route_follow_each_other():
    made = across(trunk(2, 1e9), [(0, 2), (0, 2)])
    assert fair_seconds(made, 2e9)[1].tolist() == pytest.approx([1.0, 2.0])


def test_who_ends_leaves_its_share_to_the_others():
    """Pieces of 1 and 3 GB over 1 GB/s: half each until the small one is through after 2 s."""
    made = across(trunk(2, 1e9), [(0, 2), (1, 3)]).replace(shares=[1, 3])
    assert fair_seconds(made, 4e9)[1].tolist() == pytest.approx([2.0, 4.0])


def test_what_one_cannot_use_the_others_share():
    """Max–min: the two that server 0 holds to 2 GB/s each leave 4 of 8 GB/s to the third."""
    made = across(trunk(3, 8e9), [(0, 3), (0, 4), (1, 5)])
    _, end = fair_seconds(made, 12e9)
    assert end.tolist() == pytest.approx([2.0, 2.0, 1.0])


def test_overheads_are_shared_as_bytes_are():
    made = across(trunk(2, 1e9, overhead=0.25), [(0, 2), (1, 3)])
    assert fair_seconds(made, 2e9)[1].tolist() == pytest.approx([2.5, 2.5])
    assert event_seconds(made, 2e9)[1].tolist() == [1.25, 2.5]


@given(network=networks(), size=st.sampled_from([0.0, 1e3, 1e9]), seed=st.integers(0, 99))
def test_one_transfer_alone_takes_what_it_takes_by_events(network, size, seed):
    made = random_schedule(network, "all_gather", seed)
    for t in range(min(5, made.num_transfers)):
        row = (0, 0, COPY, made.route(t))
        one = Schedule.from_rows(network, [row], collective="all_gather", root=[made.source[t]])
        assert seconds(one, size, "fair") == pytest.approx(seconds(one, size, "events"))


@settings(max_examples=60, deadline=None)
@given(made=schedules, size=st.sampled_from([0.0, 1e5, 1e9]))
def test_it_is_what_progressive_filling_says(made, size):
    start, end = fair_seconds(made, size)
    expected = reference(made, size)
    np.testing.assert_allclose(start, [one for one, _ in expected], rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(end, [one for _, one in expected], rtol=1e-6, atol=1e-12)


@given(made=schedules)
def test_no_link_carries_more_than_its_bandwidth_allows(made):
    _, end = fair_seconds(made, 1e9)
    carried = traffic(made, 1e9).link_bytes
    assert (carried <= made.topology.bandwidth_bytes_per_s * end.max() * (1 + 1e-6)).all()
    links, transfer = made.route_links
    narrowest = np.full(made.num_transfers, np.inf)
    np.minimum.at(narrowest, transfer, made.topology.bandwidth_bytes_per_s[links])
    start, end = fair_seconds(made, 1e9)
    assert (end - start >= 1e9 / made.pieces / narrowest * (1 - 1e-6)).all()


@settings(max_examples=40, deadline=None)
@given(network=networks(), size=st.sampled_from([0.0, 1e3, 1e9]))
def test_it_is_above_the_bound(network, size):
    made = gw.schedulers.Ring().schedule(network)
    least = seconds_bound(network, "all_reduce", size).seconds
    assert seconds(made, size, "fair") >= least * (1 - 1e-6)


def test_where_no_link_is_handed_on_both_models_agree():
    """A ring's links each serve one pair of servers."""
    made = gw.schedulers.Ring().schedule(gw.topology.ring(6))
    assert seconds(made, 1e8, "fair") == pytest.approx(seconds(made, 1e8, "events"))


def reference(made: Schedule, size: float) -> list[tuple[float, float]]:
    """Max–min fair sharing by the book: slow, in exact steps, without a heap."""
    network = made.topology
    routes = [made.route(t) for t in range(made.num_transfers)]
    links = [network.find_links(route[:-1], route[1:]).tolist() for route in routes]
    work = [
        size / made.pieces
        + max(network.overhead_s[link] for link in links[t])
        * min(network.bandwidth_bytes_per_s[link] for link in links[t])
        for t in range(made.num_transfers)
    ]
    left, began = list(work), [math.nan] * made.num_transfers
    sent, arrived = [math.nan] * made.num_transfers, [math.inf] * made.num_transfers
    now = 0.0

    def ready(t: int) -> bool:
        before = (u for u in range(t) if routes[u] == routes[t])
        written = (
            u
            for u in range(made.num_transfers)
            if made.round[u] < made.round[t]
            and made.target[u] == made.source[t]
            and made.piece[u] == made.piece[t]
        )
        return all(not math.isnan(sent[u]) for u in before) and all(
            arrived[u] <= now * (1 + 1e-9) for u in written
        )

    while any(math.isnan(one) for one in sent):
        active = [t for t in range(made.num_transfers) if math.isnan(sent[t]) and ready(t)]
        for t in active:
            began[t] = now if math.isnan(began[t]) else began[t]
        rate = filled(active, links, network.bandwidth_bytes_per_s.tolist())
        ends = [now + left[t] / rate[t] for t in active]
        at = min([*ends, *(one for one in arrived if now * (1 + 1e-9) < one < math.inf)])
        for t, end in zip(active, ends, strict=True):
            left[t] -= rate[t] * (at - now)
            if end <= at + (at - now) * 1e-9:
                sent[t] = at
                arrived[t] = at + sum(network.latency_s[link] for link in links[t])
        now = at
    return list(zip(began, arrived, strict=True))


def filled(active: list[int], links: list[list[int]], bandwidth: list[float]) -> dict[int, float]:
    """Rates that grow together, each until a link of its route is full."""
    rate: dict[int, float] = {}
    room = list(bandwidth)
    while growing := [t for t in active if t not in rate]:
        users = {link: sum(link in links[t] for t in growing) for t in growing for link in links[t]}
        least = min(room[link] / count for link, count in users.items())
        full = {link for link, count in users.items() if room[link] / count <= least * (1 + 1e-9)}
        for t in growing:
            if full & set(links[t]):
                rate[t] = least
                for link in links[t]:
                    room[link] -= least
    return rate
