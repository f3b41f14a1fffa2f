"""Rings that use both directions, and several edge-disjoint Hamiltonian cycles at once."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradweave as gw
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedulers import Ring, to_spec
from gradweave.schedulers.spec import from_spec
from gradweave.schedulers.textbook.hamiltonian import hamiltonian_orders
from gradweave.schedules.schedule import COLLECTIVES, COPY, REDUCE
from gradweave.topology import Topology
from gradweave.verifier import verify
from tests.simulator.random_networks import networks

net = gw.topology.from_spec


@pytest.mark.parametrize(
    ("spec", "rounds"),
    [
        ("bcube:n=4,k=1", 16),
        ("dcell:n=4,k=1", 20),
        ("dcell:n=6,k=1", 42),
        ("ring:8", 8),
        ("mesh:4x4", 16),
        ("complete:2", 2),
    ],
)
def test_both_ways_round_a_cycle_the_optimum_is_met(spec, rounds):
    made = Ring(order="hamiltonian", directions=2).schedule(net(spec))
    assert made.rounds == gw.bounds.free_trees(net(spec)).rounds == rounds
    assert verify(made, forwarding_servers=False).valid


@pytest.mark.parametrize(("label", "rounds"), [("J10", 18), ("J15", 28), ("J20", 38)])
def test_on_one_port_servers_the_plain_cycle_is_the_optimum(label, rounds):
    network = net(f"jellyfish:reference={label}")
    assert Ring(order="hamiltonian").schedule(network).rounds == rounds
    assert gw.bounds.free_trees(network).rounds == rounds


@pytest.mark.parametrize(
    ("spec", "cycles"),
    [("torus:4x4", 2), ("torus:5x5", 2), ("torus:8x8", 2), ("hypercube:4", 2), ("complete:5", 2)],
)
def test_as_many_cycles_as_pairs_of_ports_use_every_port(spec, cycles):
    network = net(spec)
    made = Ring(order="hamiltonian", directions=2, cycles=cycles).schedule(network)
    assert made.pieces == cycles * network.num_servers
    assert made.rounds == gw.bounds.free_trees(network, pieces_per_server=cycles).rounds
    stage_rounds = made.rounds // 2
    links, _ = made.route_links
    load = np.bincount(links, minlength=len(network.source))
    # Where N is odd, every link direction works in every round.
    if network.num_servers % 2:
        assert (load == 2 * stage_rounds).all()


def test_cycles_share_no_link_either_way():
    network = net("torus:4x4")
    used = [
        step
        for order in hamiltonian_orders(network, cycles=2, both_ways=True)
        for a, b in itertools.pairwise([*order.tolist(), int(order[0])])
        for step in ((a, b), (b, a))
    ]
    assert len(used) == len(set(used)) == 2 * network.num_links


def test_on_bcube_a_cycle_leaves_by_another_port_than_it_entered():
    network = net("bcube:n=4,k=1")
    made = Ring(order="hamiltonian", directions=2).schedule(network, collective="all_gather")
    first = [made.route(t) for t in range(made.num_transfers) if made.round[t] == 0]
    ports = {(route[0], route[1]) for route in first}
    assert len(first) == len(ports) == 2 * network.num_servers


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8])
def test_each_piece_goes_both_ways_and_meets(count):
    """In half the steps: ⌈(N−1)/2⌉ forward, ⌊(N−1)/2⌋ backward, and every server once."""
    network = net(f"complete:{count}")
    gathered = Ring(directions=2).schedule(network, collective="all_gather")
    assert gathered.rounds == -(-(count - 1) // 2)
    for piece in range(count):
        mine = gathered.piece == piece
        assert sorted(gathered.target[mine].tolist()) == [s for s in range(count) if s != piece]
        ahead = (gathered.target[mine] - gathered.source[mine]) % count
        assert (ahead == 1).sum() == count // 2 or count == 2
    scattered = Ring(directions=2).schedule(network, collective="reduce_scatter")
    assert set(scattered.op.tolist()) == {REDUCE} and set(gathered.op.tolist()) == {COPY}
    sent = gw.simulator.traffic(scattered, 1.0).sent_bytes
    assert sent == pytest.approx((count - 1) / count)


@given(network=networks(), collective=st.sampled_from(COLLECTIVES), seed=st.integers(0, 50))
def test_both_ways_is_valid_on_any_network(network, collective, seed):
    made = Ring(directions=2).schedule(network, collective=collective, seed=seed)
    stages = 2 if collective == "all_reduce" else 1
    assert made.num_transfers == stages * network.num_servers * (network.num_servers - 1)


@pytest.mark.parametrize("spec", ["bcube:n=3,k=1", "dcell:n=5,k=1", "star:5", "mesh:3x3"])
def test_where_there_is_no_such_cycle_it_says_so(spec):
    with pytest.raises(NoScheduleError) as caught:
        Ring(order="hamiltonian", directions=2).schedule(net(spec))
    assert str(caught.value).startswith("there is no Hamiltonian cycle of the ")
    assert str(caught.value).endswith("; use directions=1, or order=id")


def test_where_there_are_not_enough_cycles_it_says_so():
    with pytest.raises(NoScheduleError, match=r"are no 2 Hamiltonian cycles .* use cycles=1, dir"):
        Ring(order="hamiltonian", directions=2, cycles=2).schedule(net("ring:8"))


def test_a_port_that_takes_two_may_be_used_twice():
    links = [(0, 4), (1, 4), (2, 4), (3, 4)]
    wide = Topology.from_links("wide", servers=4, switches=1, links=links, capacity=[2] * 4)
    made = Ring(order="hamiltonian", directions=2).schedule(wide)
    assert made.rounds == gw.bounds.free_trees(wide).rounds == 4


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"directions": 3}, "ring: directions: expected 1 or 2, got 3"),
        ({"directions": 2, "steps": "paper"}, "ring: steps=paper goes one way round"),
        ({"cycles": 0}, "ring: cycles: expected 1 to 16, got 0"),
        ({"cycles": 2}, "ring: cycles: several cycles need order=hamiltonian"),
    ],
)
def test_options_are_checked(options, reason):
    with pytest.raises(OptionError) as caught:
        Ring(**options)
    assert str(caught.value).startswith(reason) and "\n" not in str(caught.value)


def test_it_has_a_specification():
    text = "ring:order=hamiltonian,directions=2,cycles=2"
    assert to_spec(from_spec(text)) == text
