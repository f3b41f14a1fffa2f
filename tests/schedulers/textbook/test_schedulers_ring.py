"""The ring: which piece goes where, SPEC's figures, and Hamiltonian cycles."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradweave.common.stop import Stop
from gradweave.errors import NoScheduleError, OptionError
from gradweave.report.comparison import TABLE_2
from gradweave.schedulers import Ring, solve
from gradweave.schedulers.textbook.hamiltonian import hamiltonian_order
from gradweave.schedules.schedule import COLLECTIVES, COPY, REDUCE
from gradweave.topology import Topology, from_spec
from gradweave.topology.routes import follow, shortest_route, switch_only_trees
from gradweave.verifier import verify
from tests.simulator.random_networks import networks

CASES = {case.label: case for case in TABLE_2}


@pytest.mark.parametrize(
    ("label", "rounds"), [("B3", 18), ("D4", 46.9), ("D5", 75.5), ("D6", 112.3)]
)
def test_the_papers_steps_reproduce_its_figures_where_spec_says_so(label, rounds):
    case = CASES[label]
    found = [
        Ring(steps="paper").schedule(case.network(seed), collective=case.stages, seed=seed).rounds
        for seed in range(20)
    ]
    assert sum(found) / 20 == pytest.approx(rounds, rel=0.03)


@pytest.mark.parametrize(("label", "rounds"), [("B4", 32), ("B5", 50), ("J10", 27)])
def test_the_papers_steps_give_what_spec_found_elsewhere(label, rounds):
    case = CASES[label]
    found = [
        Ring(steps="paper").schedule(case.network(seed), collective=case.stages, seed=seed).rounds
        for seed in range(20)
    ]
    assert sum(found) / 20 == pytest.approx(rounds, rel=0.03)


@pytest.mark.parametrize("order", ["id", (4, 0, 2, 1, 3)])
@pytest.mark.parametrize("steps", ["minimal", "paper"])
def test_in_step_t_the_server_at_place_p_sends_the_piece_of_p_minus_1_minus_t(order, steps):
    """In the all-gather, of p − t. On a complete network each step is one round."""
    network = from_spec("complete:5")
    places = list(range(5)) if order == "id" else list(order)
    length = {"minimal": 4, "paper": 5}[steps]
    for collective, ahead in (("reduce_scatter", 1), ("all_gather", 0)):
        made = Ring(order, steps).schedule(network, collective=collective)
        assert made.rounds == length
        assert {
            (int(made.round[t]), int(made.source[t]), int(made.target[t]), int(made.piece[t]))
            for t in range(made.num_transfers)
        } == {
            (step, places[p], places[(p + 1) % 5], places[(p - ahead - step) % 5])
            for step in range(length)
            for p in range(5)
        }
        late = made.round == 4
        expected = REDUCE if collective == "reduce_scatter" else COPY
        assert set(made.op[~late].tolist()) == {expected}
        assert set(made.op[late].tolist()) <= {COPY}


@given(
    network=networks(),
    collective=st.sampled_from(COLLECTIVES),
    steps=st.sampled_from(["minimal", "paper"]),
    seed=st.integers(0, 50),
)
def test_a_ring_is_valid_on_any_network_and_keeps_its_steps_apart(network, collective, steps, seed):
    made = Ring(steps=steps).schedule(network, collective=collective, seed=seed)
    count = network.num_servers
    stages = 2 if collective == "all_reduce" else 1
    assert made.num_transfers == stages * count * (count - (steps == "minimal"))
    # A step's flows come before any of the next step's: count servers send in each.
    for block in np.split(made.source, len(made.source) // count):
        assert sorted(block.tolist()) == network.servers.tolist()


@given(network=networks())
def test_neighbours_on_the_ring_avoid_other_servers_where_they_can(network):
    made = Ring().schedule(network, collective="all_gather")
    _, lengths = switch_only_trees(network)
    for t in range(made.num_transfers):
        source, target = int(made.source[t]), int(made.target[t])
        length = lengths[network.rank[target], source]
        if length >= 0:
            assert len(made.route(t)) - 1 == length
            assert not network.is_server[list(made.route(t)[1:-1])].any()
        else:
            assert made.route(t) == shortest_route(network, source, target)


@pytest.mark.parametrize(
    "spec",
    [
        "bcube:n=3,k=1",
        "bcube:n=4,k=1",
        "dcell:n=4,k=1",
        "dcell:n=6,k=1",
        "jellyfish:reference=J10",
        "torus:4x4",
        "hypercube:3",
        "mesh:2x4",
        "star:5",
    ],
)
def test_on_a_hamiltonian_cycle_each_step_is_one_round(spec):
    network = from_spec(spec)
    order = hamiltonian_order(network)
    assert sorted(order.tolist()) == network.servers.tolist() and order[0] == network.servers[0]
    toward, _ = switch_only_trees(network, np.roll(order, -1))
    nodes, offsets = follow(toward, order, np.roll(order, -1))
    used = [
        step
        for start, end in itertools.pairwise(offsets.tolist())
        for step in itertools.pairwise(nodes[start:end].tolist())
    ]
    assert len(used) == len(set(used)), "two routes share a link direction"
    made = Ring(order="hamiltonian").schedule(network)
    assert made.rounds == 2 * (network.num_servers - 1)
    assert verify(made, forwarding_servers=False).valid


def test_a_hamiltonian_cycle_may_share_a_link_that_carries_two():
    """Two rows of servers joined by one link that both ways over cross twice."""
    links = [(0, 4), (1, 4), (2, 5), (3, 5), (4, 5)]
    network = Topology.from_links("bridge", servers=4, switches=2, links=links)
    assert sorted(hamiltonian_order(network).tolist()) == [0, 1, 2, 3]
    made = Ring(order="hamiltonian").schedule(network)
    assert made.rounds == 6


@pytest.mark.parametrize("spec", ["mesh:3", "mesh:3x3"])
def test_without_a_hamiltonian_cycle_there_is_no_such_ring(spec):
    """A line of three servers, and a grid with an odd number of them, have none."""
    with pytest.raises(NoScheduleError) as caught:
        Ring(order="hamiltonian").schedule(from_spec(spec))
    assert str(caught.value).startswith("there is no Hamiltonian cycle of the ")
    assert str(caught.value).endswith("; use order=id")


def test_a_star_shaped_tree_of_servers_has_no_cycle():
    links = [(0, 1), (0, 2), (0, 3)]
    tree = Topology.from_links("tree of servers", servers=4, switches=0, links=links)
    with pytest.raises(NoScheduleError, match="there is no Hamiltonian cycle of the 4 servers"):
        hamiltonian_order(tree)
    assert verify(Ring().schedule(tree)).valid


def test_a_search_that_runs_out_of_time_says_so():
    with pytest.raises(NoScheduleError, match=r"found no .* within 0.1 s; .* give more time"):
        hamiltonian_order(from_spec("mesh:12x12"), stop=Stop.after(0.1))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"order": "random"}, "ring: order: expected id, hamiltonian, boxes or node ids, got "),
        ({"steps": "few"}, "ring: steps: expected minimal or paper, got 'few'"),
        ({"order": (0, 1)}, "ring: order: expected each of the 4 servers once, got (0, 1)"),
        ({"order": (0, 1, 2, 2)}, "ring: order: expected each of the 4 servers once"),
        ({"order": (0, 1, 2, 4)}, "ring: order: expected each of the 4 servers once"),
        ({"order": (10**20, 1, 2, 3)}, "ring: order: expected each of the 4 servers once"),
    ],
)
def test_options_are_checked(options, reason):
    with pytest.raises(OptionError) as caught:
        Ring(**options).schedule(from_spec("ring:4"))
    assert str(caught.value).startswith(reason) and "\n" not in str(caught.value)


def test_without_forwarding_a_ring_of_far_neighbours_is_refused():
    with pytest.raises(NoScheduleError, match="only through other servers"):
        Ring(forwarding=False).schedule(from_spec("dcell:n=4,k=1"))
    assert Ring(forwarding=False).schedule(from_spec("ring:8")).rounds == 14


def test_a_fat_tree_is_solved_by_a_ring_that_forwards_nothing():
    solution = solve(from_spec("fat_tree:k=6"))
    assert solution.optimal
    assert solution.scheduler == Ring(forwarding=False)


def test_rings_of_boxes_enter_each_box_at_another_server():
    boxes = from_spec("a100:boxes=3")
    made = Ring(order="boxes", cycles=8).schedule(boxes, collective="all_gather")
    crossing = made.source // 8 != made.target // 8
    # Each card's server receives from outside on only one ring: the pieces that others root.
    received = np.bincount(made.target[crossing], minlength=24)
    assert (received == received[0]).all() and received[0] == 23
    with pytest.raises(NoScheduleError, match="at most 8, as many as a group"):
        Ring(order="boxes", cycles=9).schedule(boxes)
    assert Ring(order="boxes").schedule(from_spec("star:4")).rounds == 6
    with pytest.raises(OptionError, match="several cycles need order=hamiltonian or order=boxes"):
        Ring(cycles=2)
