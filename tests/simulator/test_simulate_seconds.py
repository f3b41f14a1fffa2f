"""Seconds: worked examples, the rounds model against brute force, the events model against its
definition."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.errors import OptionError
from gradweave.schedules.flow_tree import FlowTrees, Workloads
from gradweave.schedules.schedule import COLLECTIVES, COPY, REDUCE, Schedule
from gradweave.simulator import changed_seconds, event_seconds, round_seconds, seconds
from gradweave.simulator.rounds import play
from gradweave.simulator.seconds import overheads, rates
from gradweave.topology import Link, Topology, from_spec
from tests.simulator.random_networks import networks
from tests.simulator.test_simulate_rounds import random_policy


def pair(
    bandwidth: tuple[float, float],
    latency: float = 0.0,
    capacity: int = 1,
    overhead: float = 0.0,
) -> Topology:
    return Topology(
        "pair",
        is_server=[True, True],
        source=[0, 1],
        target=[1, 0],
        bandwidth_bytes_per_s=bandwidth,
        latency_s=[latency, latency],
        capacity=[capacity, capacity],
        overhead_s=[overhead, overhead],
    )


EXCHANGE = [
    (0, 0, REDUCE, (1, 0)),
    (0, 1, REDUCE, (0, 1)),
    (1, 0, COPY, (0, 1)),
    (1, 1, COPY, (1, 0)),
]


def random_schedule(network: Topology, collective: str, seed: int) -> Schedule:
    workloads = Workloads.of(FlowTrees.shortest_path(network), collective)
    return play(workloads, random_policy(seed), barrier=seed % 2 == 0)


schedules = st.builds(
    random_schedule, networks(), st.sampled_from(COLLECTIVES), st.integers(0, 1000)
)


@pytest.mark.parametrize("model", ["rounds", "events"])
@pytest.mark.parametrize("servers", [2, 3, 8])
def test_a_ring_takes_2_n_minus_1_steps_of_a_piece_each(model, servers):
    link = Link(bandwidth_bytes_per_s=2e9, latency_s=0.25, overhead_s=0.125)
    made = gw.schedulers.Ring().schedule(gw.topology.ring(servers, link=link))
    step = 0.25 + 0.125 + 8e9 / servers / 2e9
    assert seconds(made, 8e9, model) == pytest.approx(2 * (servers - 1) * step)


@pytest.mark.parametrize("model", ["rounds", "events"])
def test_latencies_of_a_route_add_up_and_bytes_count_once(model):
    """On a star each transfer passes two links: twice the latency, the bytes once."""
    link = Link(bandwidth_bytes_per_s=1e9, latency_s=0.5, overhead_s=0.0)
    star = gw.topology.star(3, link=link)
    rows = [(0, 0, REDUCE, (1, 3, 0)), (1, 0, REDUCE, (2, 3, 0))]
    made = Schedule.from_rows(star, rows, collective="reduce_scatter", root=[0])
    # By events the second holds the link once the first's bytes are through, not its latency.
    assert seconds(made, 3e9, model) == pytest.approx({"rounds": 8.0, "events": 7.0}[model])


def test_the_largest_overhead_of_a_route_holds_all_its_links():
    """Three messages of one byte leave server 0 of a star one after the other, by events."""
    star = gw.topology.star(4, link=Link(latency_s=0.5, overhead_s=0.0))
    overhead = np.where(star.target == 3, 4.0, np.where(star.source == 0, 2.0, 0.0))
    star = dataclasses.replace(star, overhead_s=overhead)
    rows = [(0, 0, COPY, (0, 4, server)) for server in (1, 2, 3)]
    rows = [(place, *row[1:]) for place, row in enumerate(rows)]
    made = Schedule.from_rows(star, rows, collective="all_gather", root=[0])
    start, end = event_seconds(made, 0.0)
    assert start.tolist() == [0.0, 2.0, 4.0]
    assert end.tolist() == [2.0 + 1.0, 4.0 + 1.0, 8.0 + 1.0]
    assert round_seconds(made, 0.0).tolist() == [3.0, 3.0, 5.0]


def test_the_scarcest_link_of_a_route_decides():
    star = Topology(
        "uneven star",
        is_server=[True, True, False],
        source=[0, 1, 2, 2],
        target=[2, 2, 0, 1],
        bandwidth_bytes_per_s=[4e9, 1e9, 2e9, 8e9],
        latency_s=[0.0] * 4,
        capacity=[1] * 4,
        overhead_s=[0.0] * 4,
    )
    rows = [(0, 0, REDUCE, (1, 2, 0)), (0, 1, REDUCE, (0, 2, 1))]
    made = Schedule.from_rows(star, rows, collective="reduce_scatter")
    start, end = event_seconds(made, 2e9)
    # 1→0 goes at 1 GB/s, 0→1 at 4 GB/s; each moves half of 2 GB.
    assert (start.tolist(), end.tolist()) == ([0.0, 0.0], [1.0, 0.25])
    assert seconds(made, 2e9) == 1.0


def test_directions_of_unequal_bandwidth():
    made = Schedule.from_rows(pair((1e9, 4e9)), EXCHANGE)
    assert round_seconds(made, 2e9).tolist() == [1.0, 1.0]
    # By events 1→0 is done after 0.25 s and sends piece 0 back… over 0→1, busy until 1 s.
    start, end = event_seconds(made, 2e9)
    assert start.tolist() == [0.0, 0.0, 1.0, 1.0]
    assert end.tolist() == [0.25, 1.0, 2.0, 1.25]


def test_two_transfers_share_a_link_of_capacity_two():
    """Together each has half the bandwidth; alone in its round a transfer has all of it."""
    network = pair((1e9, 1e9), capacity=2)
    together = [(0, 0, REDUCE, (1, 0)), (0, 1, REDUCE, (1, 0))]
    apart = [(0, 0, REDUCE, (1, 0)), (1, 1, REDUCE, (1, 0))]
    both = [
        Schedule.from_rows(network, rows, collective="reduce_scatter", root=[0, 0])
        for rows in (together, apart)
    ]
    assert [seconds(made, 2e9) for made in both] == [2.0, 2.0]
    assert round_seconds(both[1], 2e9).tolist() == [1.0, 1.0]
    assert [seconds(made, 2e9, "events") for made in both] == [2.0, 2.0]
    assert event_seconds(both[0], 2e9)[0].tolist() == [0.0, 0.0]
    assert event_seconds(both[1], 2e9)[0].tolist() == [0.0, 1.0]


def test_a_fast_link_carries_several_slow_transfers_at_once():
    """Four servers at 1 GB/s send over a trunk of 4 GB/s, each in a round of its own."""
    network = Topology.from_links(
        "trunk",
        servers=8,
        switches=2,
        links=[*((s, 8) for s in range(4)), *((s, 9) for s in range(4, 8)), (8, 9)],
        bandwidth_bytes_per_s=np.array([*[1e9] * 8, 4e9]),
        link=Link(latency_s=0.0, overhead_s=0.0),
    )
    rows = [(s, s, COPY, (s, 8, 9, s + 4)) for s in range(4)]
    made = Schedule.from_rows(network, rows, collective="all_gather", root=[0, 1, 2, 3])
    start, end = event_seconds(made, 4e9)
    assert start.tolist() == [0.0] * 4 and end.tolist() == [1.0] * 4
    assert seconds(made, 4e9) == 4.0


@given(made=schedules, gradient_bytes=st.sampled_from([0.0, 1.0, 1e9]))
def test_the_rounds_model_is_the_sum_of_each_rounds_slowest(made, gradient_bytes):
    expected = [0.0] * made.rounds
    for t in range(made.num_transfers):
        expected[made.round[t]] = max(
            expected[made.round[t]], duration_with_shares(made, t, gradient_bytes)
        )
    assert round_seconds(made, gradient_bytes) == pytest.approx(expected)
    assert seconds(made, gradient_bytes) == pytest.approx(sum(expected))


def duration_with_shares(made: Schedule, transfer: int, gradient_bytes: float) -> float:
    network = made.topology
    ends = list(zip(network.source.tolist(), network.target.tolist(), strict=True))
    share, latency, overhead = float("inf"), 0.0, 0.0
    for step in steps(made, transfer):
        link = ends.index(step)
        users = sum(
            step in steps(made, other)
            for other in range(made.num_transfers)
            if made.round[other] == made.round[transfer]
        )
        share = min(share, network.bandwidth_bytes_per_s[link] / users)
        latency += network.latency_s[link]
        overhead = max(overhead, network.overhead_s[link])
    return latency + overhead + gradient_bytes / made.pieces / share


def steps(made: Schedule, transfer: int) -> list[tuple[int, int]]:
    route = made.route(transfer)
    return list(itertools.pairwise(route))


def rates_of(made: Schedule) -> list[float]:
    """Each transfer's share of its scarcest link, counted transfer by transfer."""
    network = made.topology
    ends = list(zip(network.source.tolist(), network.target.tolist(), strict=True))
    rates = []
    for t in range(made.num_transfers):
        beside = np.flatnonzero(made.round == made.round[t])
        shares = [
            network.bandwidth_bytes_per_s[ends.index(step)]
            / sum(step in steps(made, other) for other in beside)
            for step in steps(made, t)
        ]
        rates.append(min(shares))
    return rates


@given(made=schedules, gradient_bytes=st.sampled_from([0.0, 1.0, 1e9]))
def test_events_start_when_the_data_is_there_and_last_as_in_their_round(made, gradient_bytes):
    start, end = event_seconds(made, gradient_bytes)
    network = made.topology
    ends = list(zip(network.source.tolist(), network.target.tolist(), strict=True))
    rates = rates_of(made)
    for t in range(made.num_transfers):
        for other in range(made.num_transfers):
            writes_what_t_sends = (
                made.round[other] < made.round[t]
                and made.target[other] == made.source[t]
                and made.piece[other] == made.piece[t]
            )
            assert not writes_what_t_sends or start[t] >= end[other]
        latency = sum(network.latency_s[ends.index(step)] for step in steps(made, t))
        overhead = max(network.overhead_s[ends.index(step)] for step in steps(made, t))
        lasts = latency + overhead + gradient_bytes / made.pieces / rates[t]
        assert end[t] - start[t] == pytest.approx(lasts)


@given(made=schedules)
def test_no_link_direction_carries_more_at_once_than_its_bandwidth(made):
    start, end = event_seconds(made, 1e9)
    network = made.topology
    ends = list(zip(network.source.tolist(), network.target.tolist(), strict=True))
    users: dict[int, list[int]] = {}
    for t in range(made.num_transfers):
        for step in steps(made, t):
            users.setdefault(ends.index(step), []).append(t)
    latency = [
        sum(network.latency_s[ends.index(step)] for step in steps(made, t))
        for t in range(made.num_transfers)
    ]
    free = [end[t] - latency[t] for t in range(made.num_transfers)]  # when its links are free again
    rates = rates_of(made)
    for link, transfers in users.items():
        for t in transfers:
            at_once = sum(
                rates[o] for o in transfers if start[o] <= start[t] and free[o] > start[t] + 1e-9
            )
            assert at_once <= network.bandwidth_bytes_per_s[link] * (1 + 1e-6)


@given(made=schedules)
def test_nothing_waits_without_a_reason(made):
    """Each transfer starts at 0, or at the moment at which its data arrives or a lane gets free."""
    start, end = event_seconds(made, 1e9)
    network = made.topology
    ends = list(zip(network.source.tolist(), network.target.tolist(), strict=True))
    latency = [
        sum(network.latency_s[ends.index(step)] for step in steps(made, t))
        for t in range(made.num_transfers)
    ]
    moments = {0.0, *end.tolist()}
    freed = np.array([0.0, *(end - np.array(latency))])
    for t in range(made.num_transfers):
        assert start[t] in moments or np.isclose(freed, start[t]).any()


@given(made=schedules, gradient_bytes=st.sampled_from([0.0, 1.0, 1e9]))
@settings(max_examples=150)
def test_without_barriers_nothing_is_slower(made, gradient_bytes):
    """By induction over rounds: a round's transfers fit its links together at their rates, and all
    earlier ones are done by the round's start."""
    by_rounds = seconds(made, gradient_bytes, "rounds")
    assert seconds(made, gradient_bytes, "events") <= by_rounds * (1 + 1e-9)
    started = np.concatenate([[0.0], np.cumsum(round_seconds(made, gradient_bytes))])
    start, _ = event_seconds(made, gradient_bytes)
    assert (start <= started[made.round] * (1 + 1e-9) + 1e-15).all()


@given(network=networks(max_capacity=1, uniform=True), seed=st.integers(0, 100))
def test_on_uniform_networks_as_well(network, seed):
    made = random_schedule(network, "all_reduce", seed)
    assert seconds(made, 1e8, "events") <= seconds(made, 1e8) * (1 + 1e-9)


@pytest.mark.parametrize("model", ["rounds", "events"])
@pytest.mark.parametrize("capacity", [1, 2, 7])
def test_one_transfer_alone_has_the_whole_link_whatever_its_capacity(model, capacity):
    network = from_spec(f"ring:4,capacity={capacity},bandwidth=1GB/s,latency=0s,overhead=0s")
    made = gw.schedulers.Ring().schedule(network)
    assert seconds(made, 4e9, model) == 6.0


@given(made=schedules)
def test_no_bytes_cost_latency_and_overhead_alone(made):
    start, end = event_seconds(made, 0)
    latency = made.topology.latency_s
    links, transfer = made.route_links
    per_transfer = np.bincount(transfer, latency[links], minlength=made.num_transfers)
    per_transfer += overheads(made)
    assert end - start == pytest.approx(per_transfer)
    assert seconds(made, 0) == pytest.approx(
        sum(per_transfer[made.round == at].max(initial=0.0) for at in range(made.rounds))
    )


@pytest.mark.parametrize("model", ["rounds", "events"])
def test_a_schedule_without_transfers_takes_no_time(model):
    empty = Schedule.from_rows(from_spec("ring:3"), [], collective="all_gather")
    assert seconds(empty, 1e9, model) == 0.0


@given(made=schedules)
@example(made=Schedule.from_rows(pair((1e9, 4e9)), EXCHANGE))
def test_seconds_grow_with_the_gradient(made):
    for model in ("rounds", "events"):
        assert seconds(made, 1e6, model) < seconds(made, 1e9, model)


@pytest.mark.parametrize("gradient_bytes", [-1, float("nan"), float("inf")])
@pytest.mark.parametrize("count", [seconds, round_seconds, event_seconds, gw.simulator.traffic])
def test_a_gradient_has_a_size(count, gradient_bytes):
    made = Schedule.from_rows(pair((1e9, 4e9)), EXCHANGE)
    with pytest.raises(OptionError, match="gradient_bytes: expected a finite number of at least 0"):
        count(made, gradient_bytes)


def test_an_unknown_model_is_refused():
    made = Schedule.from_rows(pair((1e9, 4e9)), EXCHANGE)
    with pytest.raises(OptionError, match="model: expected rounds, events or fair, got 'exact'"):
        seconds(made, 1.0, "exact")


def test_pieces_of_unequal_size_take_what_their_bytes_take():
    gigabyte_links = gw.topology.Link(bandwidth_bytes_per_s=1e9, latency_s=0.0, overhead_s=0.0)
    ring = gw.schedulers.Ring().schedule(gw.topology.ring(4, link=gigabyte_links))
    unequal = ring.replace(shares=[1, 0, 2, 1])
    # In each round all four pieces move, each on a link of its own: the largest takes 2 s of 4 GB.
    assert gw.simulator.round_seconds(unequal, 4e9).tolist() == [2.0] * 6
    start, end = gw.simulator.event_seconds(unequal, 4e9)
    assert (end - start).tolist() == (4 * unequal.share[unequal.piece]).tolist()
    moved = gw.simulator.traffic(unequal, 4e9)
    assert moved.sent_bytes.sum() == 2 * 3 * 4e9
    assert moved.received_bytes.sum() == moved.sent_bytes.sum() == moved.link_bytes.sum()


def test_without_transfers_a_change_of_bandwidths_takes_no_time():
    network = pair((1.0, 1.0))
    start, end = changed_seconds(Schedule.from_rows(network, []), 1.0, network, 0.5)
    assert (start.tolist(), end.tolist()) == ([], [])


def test_rates_do_not_depend_on_how_far_apart_rounds_are() -> None:
    """Of many empty rounds no table of all links is made."""
    topology = from_spec("star:4")
    demand = gw.schedules.collective("all_to_all", topology.servers, 300)
    made = gw.schedulers.plan_unicast(topology, demand, "rounds").schedule
    assert np.array_equal(rates(made), rates(made.replace(round=made.round * 1000)))
