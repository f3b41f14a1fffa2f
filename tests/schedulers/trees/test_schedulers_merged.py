"""Merged flow trees: the bound of fixed trees is met, and every option works as documented."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradweave as gw
from gradweave.bounds import fixed_trees
from gradweave.errors import OptionError
from gradweave.schedulers import Merged, ParameterServer
from gradweave.schedules.flow_tree import FlowTrees
from gradweave.schedules.schedule import COLLECTIVES, COPY, REDUCE
from gradweave.topology import from_spec
from gradweave.verifier import verify
from tests.simulator.random_networks import networks


@pytest.mark.parametrize(
    ("spec", "collective", "rounds"),
    [
        ("bcube:n=3,k=1", "all_reduce", 12),
        ("bcube:n=4,k=1", "all_reduce", 24),
        ("bcube:n=5,k=1", "all_reduce", 40),
        ("dcell:n=4,k=1", "reduce_scatter", 12),
        ("dcell:n=5,k=1", "reduce_scatter", 20),
        ("dcell:n=6,k=1", "reduce_scatter", 30),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_it_reaches_the_bound_of_its_trees(spec, collective, rounds, seed):
    network = from_spec(spec)
    assert fixed_trees(FlowTrees.shortest_path(network), collective).rounds == rounds
    assert Merged().schedule(network, collective=collective, seed=seed).rounds == rounds


@pytest.mark.parametrize("seed", range(0, 20, 5))
@pytest.mark.parametrize("name", ["J10", "J15", "J20"])
def test_it_comes_close_on_jellyfish(name, seed):
    network = from_spec(f"jellyfish:reference={name},seed={seed}")
    bound = fixed_trees(FlowTrees.shortest_path(network), "all_reduce").rounds
    assert bound <= Merged().schedule(network).rounds <= bound + 4


@pytest.mark.parametrize("rule", ["random", "deepest", "most_loaded"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_rule_makes_every_collective(rule, collective):
    made = Merged(rule, tries=2).schedule(from_spec("dcell:n=3,k=1"), collective=collective)
    assert made.collective == collective
    assert made.num_transfers == 12 * 11 * (2 if collective == "all_reduce" else 1)
    assert made.scheduler.name == "merged" and made.scheduler.options["rule"] == rule
    assert verify(made, forwarding_servers=False).forwarded == 0


def test_more_tries_are_never_worse():
    network = from_spec("jellyfish:reference=J15,seed=3")
    rounds = [
        Merged("random", tries=tries, swap_passes=0).schedule(network).rounds
        for tries in (1, 2, 4, 16)
    ]
    assert rounds == sorted(rounds, reverse=True)


def test_the_all_gather_is_the_reduce_scatter_reversed():
    network = from_spec("bcube:n=3,k=1")
    scatter, gather = (Merged().schedule(network, collective=c) for c in COLLECTIVES[1:])
    last = scatter.rounds - 1
    assert {
        (last - int(scatter.round[t]), int(scatter.piece[t]), scatter.route(t)[::-1])
        for t in range(scatter.num_transfers)
    } == {
        (int(gather.round[t]), int(gather.piece[t]), gather.route(t))
        for t in range(gather.num_transfers)
    }


@given(
    network=networks(),
    collective=st.sampled_from(COLLECTIVES),
    scheduler=st.sampled_from([Merged(tries=2), Merged("random", 1, 0), ParameterServer()]),
)
def test_directions_of_unequal_capacity_are_no_obstacle(network, collective, scheduler):
    """Reversal moves a direction's load to its opposite; the reversed one must be made for that."""
    assert scheduler.schedule(network, collective=collective).rounds >= 1


@pytest.mark.parametrize("spec", ["jellyfish:reference=J20", "jellyfish:reference=J20,seed=1"])
def test_overlap_beats_the_barrier_where_the_stages_load_different_links(spec):
    network = from_spec(spec)
    trees = FlowTrees.shortest_path(network)
    apart, together = (Merged(overlap=overlap).schedule(network) for overlap in (False, True))
    assert together.rounds < fixed_trees(trees, "all_reduce").rounds <= apart.rounds
    assert together.rounds >= fixed_trees(trees, "all_reduce", overlap=True).rounds
    assert sum(apart.stages.values()) == apart.rounds


def test_overlap_of_one_stage_is_that_stage():
    network = from_spec("bcube:n=3,k=1")
    for collective in ("reduce_scatter", "all_gather"):
        assert Merged(overlap=True).schedule(network, collective=collective).rounds == 6


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("overlap", [False, True])
def test_aggregating_switches_are_valid_with_the_flag_alone(collective, overlap):
    network = from_spec("fat_tree:k=4")
    scheduler = Merged(tries=2, overlap=overlap, aggregating_switches=True)
    made = scheduler.schedule(network, collective=collective)
    assert verify(made, aggregating_switches=True).valid
    verdict = verify(made)
    assert verdict.violation.kind == "endpoint"
    assert "expected servers, since switches do not aggregate" in verdict.violation.message
    plain = Merged(tries=2).schedule(network, collective=collective)
    assert verify(plain).valid


def test_aggregation_thins_the_flow_towards_the_root():
    """Sixteen servers on a fat tree: with aggregation one partial sum enters each root, not up to
    fifteen."""
    network = from_spec("fat_tree:k=4")
    made = Merged(tries=1, aggregating_switches=True).schedule(network, collective="reduce_scatter")
    entering = [int(p) for p, t in zip(made.piece, made.target, strict=True) if t == made.root[p]]
    assert sorted(entering) == list(range(16))


def test_overlapped_aggregation_is_measured_by_a_bound_that_holds():
    """On a star whose switch adds and multiplies, each server sends N pieces and receives N, so
    N + 3 rounds will do: the 2N(N−1) transfers of the bound by ports are not needed."""
    network, servers = from_spec("star:8"), 8
    hub, rows = servers, []
    for piece in range(servers):
        for server in set(range(servers)) - {piece}:
            up = piece - (server < piece <= server + 2)  # leaves round server + 2 for its piece
            down = piece + 3 if server != piece + 2 else piece + 5
            rows.append((up, piece, REDUCE, (server, hub)))
            rows.append((down, piece, COPY, (hub, server)))
        rows.append((piece + 1, piece, REDUCE, (hub, piece)))
        rows.append((piece + 2, piece, COPY, (piece, hub)))
    by_hand = gw.Schedule.from_rows(network, rows)
    assert verify(by_hand, aggregating_switches=True).valid
    assert by_hand.rounds == 11 < gw.bounds.free_trees(network, overlap=True).rounds == 14
    bound = gw.bounds.free_trees(network, overlap=True, aggregating_switches=True).rounds
    assert bound == 8
    solution = gw.solve(network, schedulers=[Merged(overlap=True, aggregating_switches=True)])
    assert solution.bound.rounds == bound


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"rule": "fastest"}, "merged: rule: expected one of random, deepest, most_loaded, got"),
        ({"tries": 0}, "merged: tries: expected 1 to 1,000,000, got 0"),
        ({"swap_passes": -1}, "merged: swap_passes: expected 0 to 1,000,000, got -1"),
        ({"swap_passes": 10**30}, "merged: swap_passes: expected 0 to 1,000,000, got 1000"),
    ],
)
def test_options_are_checked_when_they_are_given(options, reason):
    with pytest.raises(OptionError) as caught:
        Merged(**options)
    assert str(caught.value).startswith(reason) and "\n" not in str(caught.value)


def test_a_limit_of_time_still_leaves_one_run():
    network = from_spec("jellyfish:reference=J20,seed=1")
    made = Merged("random", tries=1_000_000, swap_passes=0).schedule(network, time_limit=1e-9)
    assert verify(made).valid
