"""The best possible throughput: published figures, brute force over all server sets, certificates,
and schedules that never beat it and come up to it."""

import dataclasses
import importlib
import itertools
import math
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradweave.bounds import Bottleneck, Throughput, free_trees, throughput
from gradweave.errors import OptionError
from gradweave.schedulers import Grown, Merged
from gradweave.schedulers.solving.solution import bound_for
from gradweave.schedulers.solving.solve import solve
from gradweave.schedules.schedule import COLLECTIVES
from gradweave.topology import Link, Topology, from_spec
from tests.simulator.random_networks import networks

UNIT = Link(bandwidth_bytes_per_s=1.0)
DGX1_DOUBLE = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
DGX1_SINGLE = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)]


def dgx1() -> Topology:
    return Topology.from_links(
        "dgx1",
        servers=8,
        switches=0,
        links=DGX1_DOUBLE + DGX1_SINGLE,
        capacity=[2] * 8 + [1] * 8,
        link=UNIT,
    )


def a100_boxes(boxes: int) -> Topology:
    """GPUs on an NVSwitch a box at 300 GB/s, and on one outer switch at 25 GB/s."""
    gpus = 8 * boxes
    inner = [(gpu, gpus + gpu // 8) for gpu in range(gpus)]
    outer = [(gpu, gpus + boxes) for gpu in range(gpus)] if boxes > 1 else []
    return Topology.from_links(
        "a100",
        servers=gpus,
        switches=boxes + (boxes > 1),
        links=inner + outer,
        capacity=[12] * len(inner) + [1] * len(outer),
        link=Link(bandwidth_bytes_per_s=25e9),
    )


@pytest.mark.parametrize(
    ("network", "time"),
    [
        (from_spec("ring:8"), Fraction(7, 16)),
        (from_spec("mesh:4x4"), Fraction(15, 32)),
        (from_spec("torus:4x4"), Fraction(15, 64)),
        (from_spec("hypercube:3"), Fraction(7, 24)),
        (dgx1(), Fraction(7, 48)),
        (from_spec("star:6"), Fraction(5, 6)),
        (from_spec("mesh:2"), Fraction(1, 2)),
    ],
    ids=lambda value: value.name if isinstance(value, Topology) else str(value),
)
def test_the_published_times_of_one_unit_of_data_over_unit_links(network, time):
    best = throughput(network)
    assert best.time_per_piece / network.num_servers == time
    assert best.attained
    assert best.bytes_per_s == best.unit_bytes_per_s / time
    both = throughput(network, "all_reduce")
    assert both.time_per_piece == 2 * best.time_per_piece
    assert len(both.bottlenecks) == 2


@pytest.mark.parametrize("box", [a100_boxes(1), from_spec("a100")], ids=["by hand", "family"])
def test_one_box_of_eight_a100_gathers_at_342_9_gigabytes_a_second(box):
    best = throughput(box)
    assert best.bytes_per_s == Fraction(300_000_000_000 * 8, 7)
    assert f"{float(best.bytes_per_s) / 1e9:.1f}" == "342.9"
    assert best.seconds(1e9) == pytest.approx(1 / 342.857142857, rel=1e-9)
    assert throughput(box, "all_reduce").bytes_per_s == best.bytes_per_s / 2


@pytest.mark.parametrize(
    ("boxes", "pieces", "links"),
    [(2, 15, 13), (16, 128 - 8, 8)],
)
def test_several_boxes_are_bound_by_a_gpu_or_by_a_boxs_cards(boxes, pieces, links):
    """A GPU takes 15 pieces at 325 GB/s; or a box takes the 120 of the others at 200 GB/s."""
    best = throughput(a100_boxes(boxes))
    assert best.time_per_piece == Fraction(pieces, links)
    assert best.unit_bytes_per_s == 25_000_000_000


def with_bandwidth(network: Topology, bandwidth: np.ndarray) -> Topology:
    return dataclasses.replace(network, bandwidth_bytes_per_s=bandwidth)


def exact(network: Topology) -> list[Fraction]:
    return [Fraction(value) for value in network.bandwidth_bytes_per_s.tolist()]


def crossing(network: Topology, bandwidth: list[Fraction], inside: set[int]) -> Fraction:
    ends = zip(network.source.tolist(), network.target.tolist(), bandwidth, strict=True)
    return sum((room for a, b, room in ends if a in inside and b not in inside), Fraction(0))


def worst_ratio(network: Topology, bandwidth: list[Fraction]) -> Fraction:
    """max |S| / (bandwidth that leaves S), over all server sets and all placings of switches."""
    servers, switches = network.servers.tolist(), network.switches.tolist()
    sides = list(itertools.product((False, True), repeat=len(switches)))
    return max(
        size / crossing(network, bandwidth, {*chosen, *itertools.compress(switches, side)})
        for size in range(1, len(servers))
        for chosen in itertools.combinations(servers, size)
        for side in sides
    )


def port_ratio(network: Topology, bandwidth: list[Fraction], ends: np.ndarray) -> Fraction:
    count = network.num_servers
    ports = sum(itertools.compress(bandwidth, network.is_server[ends].tolist()), Fraction(0))
    return count * (count - 1) / ports


@given(network=networks(max_servers=6))
@settings(max_examples=80)
def test_it_equals_brute_force_over_all_server_sets(network):
    forward = exact(network)
    backward = [forward[link] for link in network.opposite.tolist()]
    gather = max(worst_ratio(network, forward), port_ratio(network, forward, network.source))
    scatter = max(worst_ratio(network, backward), port_ratio(network, forward, network.target))
    count = network.num_servers
    assert throughput(network, "all_gather").bytes_per_s == count / gather
    assert throughput(network, "reduce_scatter").bytes_per_s == count / scatter
    assert throughput(network, "all_reduce").bytes_per_s == count / (gather + scatter)


@given(network=networks(max_servers=5))
@settings(max_examples=40)
def test_overlapped_stages_equal_brute_force(network):
    forward, count = exact(network), network.num_servers
    switches = network.switches.tolist()
    narrowest = min(
        crossing(network, forward, {*chosen, *itertools.compress(switches, side)})
        for size in range(1, count)
        for chosen in itertools.combinations(network.servers.tolist(), size)
        for side in itertools.product((False, True), repeat=len(switches))
    )
    ports = max(port_ratio(network, forward, ends) for ends in (network.source, network.target))
    best = throughput(network, "all_reduce", overlap=True)
    assert best.bytes_per_s == count / max(count / narrowest, 2 * ports)
    assert best.bytes_per_s >= throughput(network, "all_reduce").bytes_per_s


@given(
    network=networks(),
    collective=st.sampled_from(COLLECTIVES),
    overlap=st.booleans(),
)
@settings(max_examples=100)
def test_certificates_alone_prove_it(network, collective, overlap):
    best = throughput(network, collective, overlap=overlap)
    assert sum(time_proved(network, b) for b in best.bottlenecks) == (
        best.num_servers / best.bytes_per_s
    )
    assert best.time_per_piece == best.unit_bytes_per_s * best.num_servers / best.bytes_per_s
    assert all((value / best.unit_bytes_per_s).denominator == 1 for value in exact(network))


def time_proved(network: Topology, bottleneck: Bottleneck) -> Fraction:
    """Checks a bottleneck against the network, and returns the time that it proves."""
    count, bandwidth = network.num_servers, exact(network)
    size = len(bottleneck.servers)
    both = bottleneck.stage == "all_reduce"
    if bottleneck.kind == "ports":
        ends = network.source if bottleneck.leaving else network.target
        ports = itertools.compress(bandwidth, network.is_server[ends].tolist())
        assert bottleneck.bandwidth_bytes_per_s == sum(ports)
        assert bottleneck.pieces == count * (count - 1) * (2 if both else 1)
        return bottleneck.pieces / bottleneck.bandwidth_bytes_per_s
    assert 0 < size < count
    inside = {*bottleneck.servers, *bottleneck.switches}
    side = inside if bottleneck.leaving else set(range(network.num_nodes)) - inside
    assert bottleneck.bandwidth_bytes_per_s == crossing(network, bandwidth, side)
    own = bottleneck.leaving == (bottleneck.stage == "all_gather")
    assert bottleneck.pieces == (count if both else size if own else count - size)
    return bottleneck.pieces / bottleneck.bandwidth_bytes_per_s


def test_directions_of_a_link_may_differ():
    pair = from_spec("mesh:2")
    network = with_bandwidth(pair, np.where(pair.source == 0, 5e9, 1e9))
    for stage in ("all_gather", "reduce_scatter"):  # a piece each way: the slow way decides
        assert throughput(network, stage).bytes_per_s == 2 * 10**9
    chain = from_spec("mesh:4")
    network = with_bandwidth(chain, np.where(chain.source < chain.target, 1e9, 3e9))
    assert throughput(network, "all_gather").time_per_piece == 3  # three pieces go up to server 3
    assert throughput(network, "reduce_scatter").time_per_piece == 3
    assert throughput(network).attained  # Edmonds: without switches trees always pack


def test_switches_cannot_copy():
    """Every server sends at 1 and takes at 9: sets of servers would do, were there not N(N−1)
    transfers to get out of N ports."""
    star = from_spec("star:6")
    network = with_bandwidth(star, np.where(star.source < 6, 1e9, 9e9))
    best = throughput(network)
    (bottleneck,) = best.bottlenecks
    assert (bottleneck.kind, bottleneck.leaving, best.time_per_piece) == ("ports", True, 5)
    assert not best.attained
    assert str(best) == (
        "at most 9.6 Gbit/s of gradient for schedules that root equal parts at all servers and "
        "add at servers alone, since 30 transfers of the all-gather must leave the servers at "
        "48 Gbit/s"
    )
    mirrored = throughput(with_bandwidth(star, np.where(star.source < 6, 9e9, 1e9)))
    assert (mirrored.bottlenecks[0].kind, mirrored.time_per_piece) == ("cut", 5)


def test_a_chain_of_switches_is_found_whichever_side_they_stand_on():
    """Three servers a leaf, two leaves joined by one thin link: switches belong to their leaf."""
    links = [(server, 6 + server // 3) for server in range(6)] + [(6, 8), (8, 7)]
    network = Topology.from_links(
        "leaves", servers=6, switches=3, links=links, capacity=[4] * 6 + [1] * 2
    )
    best = throughput(network)
    (bottleneck,) = best.bottlenecks
    assert (best.time_per_piece, best.attained) == (3, True)
    assert sorted(bottleneck.servers) in ([0, 1, 2], [3, 4, 5])


def test_bandwidths_without_a_common_unit_stay_exact():
    """1/3 and 1/7 in binary, eighteen orders of magnitude apart: beyond 64 bits."""
    ring = from_spec("ring:4")
    forward = ring.target == (ring.source + 1) % 4
    network = with_bandwidth(ring, np.where(forward, 1e9 / 3, 1e-9 / 7))
    both_ways = Fraction(1e9 / 3) + Fraction(1e-9 / 7)
    assert throughput(network).bytes_per_s == 4 * both_ways / 3
    narrow = with_bandwidth(ring, np.where(ring.source == 0, 1e-9 / 7, 1e9 / 3))
    assert throughput(narrow).bytes_per_s == 4 * 2 * Fraction(1e-9 / 7)


@given(network=networks(), collective=st.sampled_from(COLLECTIVES), overlap=st.booleans())
@settings(max_examples=40)
def test_integers_of_any_size_give_what_64_bits_give(network, collective, overlap):
    module = importlib.import_module("gradweave.bounds.seconds.throughput")
    same = throughput(network, collective, overlap=overlap)
    with mock.patch.object(module, "MAX_INT64_FLOW", 0):
        assert throughput(network, collective, overlap=overlap).bytes_per_s == same.bytes_per_s


@given(
    network=networks(max_servers=5, uniform=True),
    collective=st.sampled_from(COLLECTIVES),
    pieces=st.integers(1, 4),
)
@settings(max_examples=30)
def test_rounds_never_beat_it_and_their_bound_never_contradicts_it(network, collective, pieces):
    """Where bandwidths are in proportion to capacities, c·(1/x*) rounds up to the cut bound."""
    network = with_bandwidth(network, network.capacity * 1e9)
    best = throughput(network, collective)
    slots = Fraction(1_000_000_000) / best.unit_bytes_per_s
    least = best.time_per_piece * pieces * slots
    made = Grown(restarts=3, pieces_per_server=pieces).schedule(network, collective=collective)
    assert made.rounds >= least
    if collective != "all_reduce" and best.bottlenecks[0].kind == "cut":
        bound = free_trees(network, collective, pieces_per_server=pieces)
        assert bound.rounds == math.ceil(least) or bound.kind == "depth"


@pytest.mark.parametrize("spec", ["ring:8", "mesh:4x4", "torus:4x4", "hypercube:3"])
def test_schedules_come_up_to_it_as_pieces_get_smaller(spec):
    network = from_spec(spec)
    best = throughput(network).time_per_piece
    pieces = best.denominator  # so that c·(1/x*) is a whole number of rounds
    made = Grown(pieces_per_server=pieces).schedule(network, collective="all_gather")
    assert Fraction(made.rounds, pieces) == best
    whole = Grown().schedule(network, collective="all_gather")
    assert whole.rounds == math.ceil(best)


def test_long_schedules_without_slack_are_found_too():
    """64 rounds in which no port may idle: a round that leaves one idle is filled anew."""
    made = Grown(pieces_per_server=16).schedule(from_spec("bcube:n=3,k=1"), collective="all_gather")
    assert made.rounds == 16 * throughput(made.topology).time_per_piece == 64


def test_solve_bounds_schedules_of_several_pieces_a_server():
    network = from_spec("hypercube:3")
    solution = solve(network, collective="all_gather", schedulers=[Grown(pieces_per_server=3)])
    assert (solution.rounds, solution.bound.rounds, solution.optimal) == (7, 7, True)
    mixed = bound_for(network, "all_gather", [Grown(pieces_per_server=3), Merged()])
    assert mixed.rounds == 3  # holds for both


def test_three_boxes_are_limited_between_them_as_groups():
    """Each of 24 parts must leave the boxes 2 (3 - 1) times, by 24 ports of 25 GB/s."""
    found = throughput(a100_boxes(3), "all_reduce", overlap=True)
    (limit,) = found.bottlenecks
    said = "96 transfers of the all-reduce must leave 3 groups of servers at 4.8 Tbit/s"
    assert (limit.time_per_byte, str(limit)) == (Fraction(96, 24 * 25 * 10**9), said)


def test_what_is_refused():
    ring = from_spec("ring:4")
    with pytest.raises(OptionError, match="collective: expected one of"):
        throughput(ring, "broadcast")  # pyright: ignore[reportArgumentType]
    best: Throughput = throughput(ring)
    assert best.seconds(0) == 0.0
    for size in (-1, math.inf, math.nan):
        with pytest.raises(OptionError, match="gradient_bytes: expected a finite number"):
            best.seconds(size)


@pytest.mark.parametrize("slow", ["out", "in"])
def test_on_very_large_networks_the_narrowest_port_takes_the_place_of_all_cuts(monkeypatch, slow):
    """Two racks of three; the links of the last server carry half as much one way."""
    racks = from_spec("leaf_spine:leaves=2,spines=3,servers_per_leaf=3")
    ends = racks.source if slow == "out" else racks.target
    bandwidth = np.where(ends == racks.servers[-1], 1.0, 2.0)
    module, found = importlib.import_module("gradweave.bounds.seconds.throughput"), []
    for most in (4096, 4):
        monkeypatch.setattr(module, "MAX_FLOW_NODES", most)
        network = dataclasses.replace(racks, name=f"{most}", bandwidth_bytes_per_s=bandwidth)
        found.append(throughput(network, "all_reduce", overlap=True).bottlenecks[0])
    every, port = found
    assert every.bandwidth_bytes_per_s == port.bandwidth_bytes_per_s == 1
    assert every.kind == port.kind == "cut" and every.time_per_byte == port.time_per_byte
