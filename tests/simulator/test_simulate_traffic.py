"""Bytes: the lecture's two counts, and every count against a loop over transfers."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradweave as gw
from gradweave.schedules.schedule import COLLECTIVES, Schedule
from gradweave.simulator import traffic
from gradweave.simulator.traffic import piece_bytes
from gradweave.topology import from_spec
from tests.simulator.random_networks import networks

GRADIENT_BYTES = 720_720.0
"""Divisible by every number up to 16."""


@pytest.mark.parametrize("servers", range(2, 17))
@pytest.mark.parametrize("family", ["ring", "star", "complete"])
def test_a_ring_sends_2_n_minus_1_over_n_of_the_gradient(family, servers):
    made = gw.schedulers.Ring().schedule(from_spec(f"{family}:{servers}"))
    moved = traffic(made, GRADIENT_BYTES)
    assert set(moved.sent_bytes) == {2 * (servers - 1) / servers * GRADIENT_BYTES}
    assert set(moved.received_bytes) == set(moved.sent_bytes)
    assert set(moved.forwarded_bytes) == {0.0}


@pytest.mark.parametrize("servers", range(2, 17))
@pytest.mark.parametrize("server", [0, -1])
def test_a_central_parameter_server_moves_2_n_minus_1_gradients(servers, server):
    server %= servers
    strategy = gw.schedulers.CentralParameterServer(server)
    moved = traffic(strategy.schedule(from_spec(f"star:{servers}")), GRADIENT_BYTES)
    at_server = moved.sent_bytes[server] + moved.received_bytes[server]
    assert at_server == 2 * (servers - 1) * GRADIENT_BYTES
    for other in set(range(servers)) - {server}:
        assert moved.sent_bytes[other] == moved.received_bytes[other] == GRADIENT_BYTES


@pytest.mark.parametrize("steps", ["minimal", "paper"])
def test_the_papers_ring_sends_one_piece_more_a_stage(steps):
    made = gw.schedulers.Ring(steps=steps).schedule(from_spec("ring:6"))
    pieces = {"minimal": 2 * 5, "paper": 2 * 6}[steps]
    assert set(traffic(made, 6.0).sent_bytes) == {float(pieces)}


def test_servers_on_the_way_forward():
    """0 — 1 — 2 with 0 in the centre: all of 2's pieces pass 1 on their way, and back."""
    made = gw.schedulers.CentralParameterServer(0).schedule(from_spec("mesh:3"))
    moved = traffic(made, 3.0)
    assert moved.forwarded_bytes.tolist() == [0.0, 6.0, 0.0]
    assert moved.sent_bytes.tolist() == [6.0, 3.0, 3.0]


@given(
    network=networks(symmetric=True),
    collective=st.sampled_from(COLLECTIVES),
    scheduler=st.sampled_from(
        [
            gw.schedulers.ParameterServer(),
            gw.schedulers.CentralParameterServer(),
            gw.schedulers.Ring(),
            gw.schedulers.Merged(tries=1),
        ]
    ),
)
def test_every_count_equals_a_loop_over_transfers(network, collective, scheduler):
    made = scheduler.schedule(network, collective=collective)
    moved = traffic(made, 1e6)
    one = 1e6 / network.num_servers
    assert piece_bytes(made, 1e6).tolist() == [one] * network.num_servers
    ends = list(zip(network.source.tolist(), network.target.tolist(), strict=True))
    links = dict.fromkeys(ends, 0)
    sent, received, forwarded = (dict.fromkeys(range(network.num_nodes), 0) for _ in range(3))
    for t in range(made.num_transfers):
        route = made.route(t)
        sent[route[0]] += 1
        received[route[-1]] += 1
        for node in route[1:-1]:
            forwarded[node] += 1
        for step in itertools.pairwise(route):
            links[step] += 1
    servers = network.servers.tolist()
    assert moved.link_bytes == pytest.approx([links[pair] * one for pair in ends])
    assert moved.sent_bytes == pytest.approx([sent[s] * one for s in servers])
    assert moved.received_bytes == pytest.approx([received[s] * one for s in servers])
    assert moved.forwarded_bytes == pytest.approx([forwarded[s] * one for s in servers])


@given(network=networks(symmetric=True))
def test_merged_trees_send_each_piece_once_a_stage(network):
    made = gw.schedulers.Merged(tries=1).schedule(network)
    moved = traffic(made, 1.0)
    servers = network.num_servers
    assert moved.sent_bytes.sum() == pytest.approx(2 * (servers - 1))
    assert not moved.forwarded_bytes.any()


def test_no_bytes_and_no_transfers_move_nothing():
    ring = from_spec("ring:3")
    assert not traffic(gw.schedulers.Ring().schedule(ring), 0).link_bytes.any()
    empty = Schedule.from_rows(ring, [], collective="all_gather")
    assert traffic(empty, 1e9).link_bytes.tolist() == [0.0] * 6
