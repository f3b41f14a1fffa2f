"""solve(objective="seconds"): never behind its strategies, never below its bound."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.bounds import least_seconds, throughput
from gradweave.bounds.seconds_bound import seconds_bound
from gradweave.common.stop import UNLIMITED
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedulers import (
    Binomial,
    CentralParameterServer,
    Grown,
    HalvingDoubling,
    Merged,
    ParameterServer,
    RecursiveDoubling,
    Ring,
    Symmetric,
    Timed,
    solve,
)
from gradweave.schedulers.solving import pieces
from gradweave.schedulers.solving.portfolio import FOR_SECONDS
from gradweave.schedulers.solving.seconds import Seconds
from gradweave.schedulers.solving.timing import timing_of
from gradweave.schedulers.solving.variants import rated, refitted, split
from gradweave.schedules.compose import overlap
from gradweave.schedules.schedule import COLLECTIVES
from gradweave.simulator import seconds
from gradweave.topology import Topology
from gradweave.verifier import verify
from tests.schedules.same import same
from tests.simulator.random_networks import networks

net = gw.topology.from_spec
FEW = (RecursiveDoubling(), Binomial(), HalvingDoubling(), Ring(), Merged(tries=1), Symmetric())
TEXTBOOK = (Ring(), HalvingDoubling(), RecursiveDoubling(), Binomial())


def solved(network: Topology, gradient_bytes: float, **options):
    return solve(network, objective="seconds", gradient_bytes=gradient_bytes, **options)


@pytest.mark.parametrize("spec", ["torus:4x4,latency=10us", "bcube:n=4,k=1,latency=10us"])
@pytest.mark.parametrize("gradient_bytes", [1e3, 1e5, 1e7, 1e9])
def test_the_portfolio_is_never_behind(spec, gradient_bytes):
    network = net(spec)
    solution = solved(network, gradient_bytes)
    timing = solution.timing
    for strategy in TEXTBOOK:
        assert timing.seconds <= seconds(strategy.schedule(network), gradient_bytes, "events")
    assert timing.seconds == seconds(solution.schedule, gradient_bytes, "events")
    assert timing.barrier_seconds == seconds(solution.schedule, gradient_bytes, "rounds")
    assert timing.seconds >= timing.bound.seconds * (1 - 1e-9) and timing.gap >= 0
    tried = [attempt.seconds for attempt in solution.attempts if attempt.seconds is not None]
    assert timing.seconds == min(tried)
    assert verify(solution.schedule).valid
    if gradient_bytes == 1e9:
        assert timing.gap < 0.01 and timing.bound.kind == "bandwidth"


def test_small_gradients_want_few_steps_and_large_ones_bandwidth():
    network = net("torus:8x8,latency=10us,overhead=0s")
    small, large = (solved(network, size, schedulers=FEW) for size in (1e3, 1e9))
    assert small.scheduler.name == "recursive_doubling"
    assert large.scheduler.name == "symmetric"
    assert small.timing.bound.kind == "latency"
    assert small.timing.bound.seconds == pytest.approx(8 * 10e-6, rel=1e-3)  # 4 + 4 links
    assert small.schedule.pieces < large.schedule.pieces


@pytest.mark.parametrize(
    ("spec", "schedulers"),
    [("mesh:4x4", None), ("torus:4x2x3", [Timed()]), ("ring:8,overhead=5us", [Ring(), Grown()])],
)
@pytest.mark.parametrize("gradient_bytes", [1e3, 2.5e5, 1e7])
def test_no_schedule_is_beaten_by_its_own_coarser_cut(spec, schedulers, gradient_bytes):
    network = net(spec)
    solution = solved(network, gradient_bytes, schedulers=schedulers)
    options = solution.schedule.scheduler.options
    base = solution.scheduler.schedule(network, seed=0)
    base = overlap(base) if options.get("overlap") else base
    parts = options.get("parts", 1)
    times = [seconds(split(base, n), gradient_bytes, "events") for n in range(1, parts + 1)]
    if options.get("improved"):  # in another order, with pieces of other sizes
        assert solution.timing.seconds < min(times)
    else:
        assert solution.timing.seconds == times[-1] == min(times)
    count = solution.scheduler.traits.pieces_per_server
    for fewer in (n for n in range(1, count) if count % n == 0 or n.bit_count() == 1):
        coarser = dataclasses.replace(solution.scheduler, pieces_per_server=fewer)
        taken = seconds(coarser.schedule(network, seed=0), gradient_bytes, "events")
        assert solution.timing.seconds <= taken


def test_messages_are_as_many_as_they_are_worth():
    """The cheaper a message, the more pieces; and no schedule is below its bound."""
    pieces = []
    for overhead in ("0s", "100ns", "1us", "100us"):
        network = net(f"mesh:5x5,bandwidth=50GB/s,latency=500ns,overhead={overhead}")
        solution = solved(network, 2.0**18, schedulers=[Merged(tries=1), Grown(restarts=8)])
        pieces.append(solution.schedule.pieces)
        assert solution.timing.bound.seconds <= solution.timing.seconds
    assert pieces == sorted(pieces, reverse=True) and pieces[0] > pieces[-1] == 25


@pytest.mark.parametrize(("servers", "exchanges"), [(2, 1), (4, 2), (5, 3), (16, 4)])
def test_without_bytes_messages_double_those_who_know(servers, exchanges):
    """One port each and no latency: log2 N messages in sequence, which recursive doubling takes."""
    network = net(f"star:{servers},latency=0s,overhead=10us")
    bound = seconds_bound(network, "all_reduce", 0.0)
    assert bound.seconds == pytest.approx(exchanges * 10e-6)
    if servers == 2**exchanges:
        assert bound.kind == "messages" or servers == 2
        made = RecursiveDoubling().schedule(network)
        assert seconds(made, 0.0, "events") == pytest.approx(bound.seconds)


def test_more_pieces_per_server_fill_the_last_round():
    """BCube(4,1): 15 pieces over 2 ports are 8 rounds; 30 half pieces are 15."""
    solution = solved(net("bcube:n=4,k=1"), 1e9, schedulers=[Grown()])
    assert solution.scheduler.pieces_per_server in (2, 4)
    assert solution.timing.gap < 0.005
    assert solution.rounds == solution.rounds_bound.rounds


@settings(max_examples=40, deadline=None)
@given(
    network=networks(),
    gradient_bytes=st.sampled_from([1.0, 1e6, 1e9]),
    collective=st.sampled_from(COLLECTIVES),
)
def test_it_is_valid_and_above_both_bounds_on_any_network(network, gradient_bytes, collective):
    """Unequal bandwidths, latencies and capacities, also between the directions of a link."""
    strategies = [Merged(tries=1), Ring(), Grown(restarts=4), HalvingDoubling()]
    strategies += [RecursiveDoubling(), Binomial()] if collective == "all_reduce" else []
    solution = solved(network, gradient_bytes, schedulers=strategies, collective=collective)
    timing = solution.timing
    assert timing.bound.seconds <= timing.seconds * (1 + 1e-9)
    assert timing.bound.seconds <= timing.barrier_seconds * (1 + 1e-9)
    assert solution.rounds >= solution.rounds_bound.rounds
    assert verify(solution.schedule).valid
    for attempt in solution.attempts:
        assert attempt.seconds >= timing.seconds


@settings(max_examples=40, deadline=None)
@given(network=networks(), strategy=st.sampled_from([*TEXTBOOK, ParameterServer()]))
def test_no_schedule_beats_the_bound(network, strategy):
    made = strategy.schedule(network)
    for size in (0.0, 1e3, 1e9):
        bound = seconds_bound(network, "all_reduce", size)
        for model in ("events", "rounds"):
            assert seconds(made, size, model) >= bound.seconds * (1 - 1e-9)


def test_on_unequal_links_the_bound_is_that_of_groups_and_of_trees():
    """Four pairs in a ring of thin links: as on a ring of four, 2·3 transfers over 8 directions.

    No single set of servers, nor all of their ports, proves it: those give half a second.
    """
    ring = net("ring:8,latency=0s")
    thin = ring.source // 2 != ring.target // 2
    uneven = dataclasses.replace(ring, bandwidth_bytes_per_s=np.where(thin, 1e9, 1e12))
    bound = seconds_bound(uneven, "all_reduce", 1e9)
    assert least_seconds(uneven, 1e9).seconds == pytest.approx(0.75)
    assert throughput(uneven, "all_reduce", overlap=True).seconds(1e9) == pytest.approx(0.75)
    assert bound.seconds_by("bytes") == pytest.approx(0.75, rel=1e-5)  # and a message's overhead
    assert "4 groups of servers" in bound.reason()
    exchanged = RecursiveDoubling().schedule(uneven)
    assert timing_of(exchanged, 1e9).gap >= 0


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_a_stage_to_one_root_has_its_own_bound(collective):
    """With a central server, nothing leaves the others' ports in the all-gather."""
    network = net("star:5")
    slow = (network.source == 4) if collective == "all_gather" else (network.target == 4)
    rates = np.where(slow, 1e6, network.bandwidth_bytes_per_s)
    lame = dataclasses.replace(network, bandwidth_bytes_per_s=rates)
    one = [CentralParameterServer()]
    timing = solved(lame, 1e9, schedulers=one, collective=collective).timing
    assert timing.bound.seconds <= timing.seconds


def test_unequal_bandwidths_count():
    """One cable of a ring of four is ten times as fast; capacities do not say so."""
    network = net("complete:5")
    slow = (np.minimum(network.source, network.target) == 0) & (
        np.maximum(network.source, network.target) == 4
    )
    rates = np.where(slow, 1.25e9, 12.5e9)
    uneven = dataclasses.replace(network, bandwidth_bytes_per_s=rates)
    assert set(rated(uneven).capacity.tolist()) == {1, 10} and rated(network) is None
    by_rounds = seconds(
        solve(uneven, objective="rounds", schedulers=[Grown()]).schedule, 1e8, "events"
    )
    by_seconds = solved(uneven, 1e8, schedulers=[Grown()])
    assert by_seconds.timing.seconds < 0.5 * by_rounds
    assert verify(by_seconds.schedule).valid


def test_bandwidths_that_have_no_small_unit_are_rounded():
    network = net("ring:3")
    rates = np.where(network.source < network.target, 1.0, 1e6) * 1e3
    wide = rated(dataclasses.replace(network, bandwidth_bytes_per_s=rates))
    assert wide.capacity.max() <= 64 and wide.capacity.min() >= 1
    made = Merged(tries=1).schedule(wide)
    assert verify(refitted(made, network)).valid


def test_overlap_is_tried_and_said():
    solution = solved(net("dcell:n=4,k=1"), 1e3, schedulers=[Merged(tries=1)])
    (attempt,) = solution.attempts
    plain = Merged(tries=1).schedule(net("dcell:n=4,k=1"))
    assert solution.timing.seconds <= seconds(plain, 1e3, "events")
    options = solution.schedule.scheduler.options
    assert attempt.overlapped == bool(options.get("overlap"))
    assert attempt.pieces == 20 * options.get("parts", 1)


def test_it_is_determined_by_the_seed():
    network = net("dcell:n=4,k=1")
    first, second = (solved(network, 1e6, schedulers=FEW, seed=3) for _ in range(2))
    assert same(first.schedule, second.schedule)
    assert first.timing.seconds == second.timing.seconds
    assert str(first.timing.bound) == str(second.timing.bound)
    untimed = [
        [dataclasses.replace(attempt, wall_s=0) for attempt in solution.attempts]
        for solution in (first, second)
    ]
    assert untimed[0] == untimed[1]


def test_out_of_time_it_returns_what_it_has():
    solution = solved(net("torus:4x4"), 1e6, time_limit=1e-9)
    assert len(solution.attempts) == 1
    assert verify(solution.schedule).valid


def test_many_servers_on_unequal_links_have_the_learned_plan_and_no_linear_program():
    path = [(server, server + 1) for server in range(299)]
    rate = np.where(np.arange(299) % 8 == 7, 1e9, 1e10)
    network = Topology.from_links(
        "path", servers=300, switches=0, links=path, bandwidth_bytes_per_s=rate, capacity=[1] * 299
    )
    solution = solved(network, 1e9, time_limit=1)
    assert solution.attempts[0].scheduler.name == "planned"
    assert "packed" not in {attempt.scheduler.name for attempt in solution.attempts}


def test_for_a_stage_the_default_has_one_root_per_server():
    solution = solved(net("mesh:3x3"), 1e3, collective="all_gather")
    names = {attempt.scheduler.name for attempt in solution.attempts}
    left_out = {"recursive_doubling", "postal", "hierarchical"}  # there are no groups
    left_out |= {"packed", "planned"}  # links are equal
    assert names == {one.name for one in FOR_SECONDS} - left_out
    with pytest.raises(OptionError, match="to one root and to all servers are not comparable"):
        solved(net("ring:4"), 1e6, collective="all_gather", schedulers=[Ring(), Binomial()])


def test_what_found_nothing_says_why():
    solution = solved(net("mesh:3"), 1e6, schedulers=[Ring(order="hamiltonian"), Binomial()])
    assert solution.attempts[0].seconds is None
    assert "no Hamiltonian cycle" in solution.attempts[0].reason
    with pytest.raises(NoScheduleError, match="no schedule for 'mesh:3': ring: there is no"):
        solved(net("mesh:3"), 1e6, schedulers=[Ring(order="hamiltonian")])


def test_rounds_of_pieces_of_different_size_do_not_compare():
    with pytest.raises(OptionError, match="rounds do not compare; use objective=seconds"):
        solve(net("ring:4"), schedulers=[Ring(), Binomial()])
    alone = solve(net("ring:4"), schedulers=[Binomial()])
    assert alone.bound.rounds <= alone.rounds == 4 and alone.timing is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"objective": "speed"}, "solve: objective: expected one of rounds, seconds, got 'speed'"),
        ({"gradient_bytes": 0}, "solve: gradient_bytes: expected a finite number above 0, got 0"),
        ({"gradient_bytes": -1}, "solve: gradient_bytes: expected a finite number above 0"),
        ({"gradient_bytes": float("nan")}, "solve: gradient_bytes: expected a finite number"),
        ({"gradient_bytes": float("inf")}, "solve: gradient_bytes: expected a finite number"),
        ({"gradient_bytes": 1, "time_limit": 0}, "solve: time_limit: expected more than 0"),
        ({"gradient_bytes": 1, "schedulers": []}, "solve: expected at least one scheduler"),
    ],
)
def test_bad_input_gets_one_line(options, reason):
    with pytest.raises(OptionError) as caught:
        solve(net("ring:3"), **{"objective": "seconds", **options})
    assert str(caught.value).startswith(reason) and "\n" not in str(caught.value)


def test_what_is_far_behind_is_not_cut(monkeypatch):
    """A ring with one piece per server, if another schedule takes a twentieth of its time."""
    network = gw.topology.from_spec("ring:6,latency=1us,bandwidth=10GBps")
    objective = Seconds(network, "all_reduce", 1e8, np.zeros(6))
    schedule, ring = Ring().schedule(network), Ring()
    all_of_it = [one.value for one in objective.variants(schedule, ring, UNLIMITED, math.inf)]
    behind = [one.value for one in objective.variants(schedule, ring, UNLIMITED, all_of_it[0] / 20)]
    assert behind == all_of_it[:1] and len(all_of_it) > 1


def test_pieces_suit_the_stage_that_takes_longest(monkeypatch):
    """Whole pieces make an all-gather longer by a half, and by a fifth if there are several."""
    excess = {"all_gather": lambda count: 0.5 if count == 1 else 0.2}

    def longer(bandwidth, overhead, stage, count):
        return excess.get(stage.stage, lambda _: 0.1)(count)

    monkeypatch.setattr(pieces, "_excess", longer)
    torus = net("torus:2x3")
    assert pieces.piece_counts(torus, "all_reduce") == (1, 2, 16)
    assert pieces.piece_counts(torus, "reduce_scatter") == (1, 16)
