"""Latency and bytes together: closed forms, schedules that never take less, prices recounted."""

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import gradweave as gw
from gradweave.bounds import SlotPrices, least_seconds, seconds_bound, time_expanded
from gradweave.bounds.classes import (
    ROUTES_PASS_SERVERS,
    SUMS_MEET_ANYWHERE,
    SWITCHES_ADD,
    UNEQUAL_PARTS,
)
from gradweave.bounds.of_schedule import liberties_of
from gradweave.bounds.seconds.time_expanded import _Programs
from gradweave.bounds.seconds.time_slots import arcs_of
from gradweave.errors import OptionError
from gradweave.topology import Link, Topology, from_spec

WIDE = Link(bandwidth_bytes_per_s=1e9, latency_s=1e-3, overhead_s=0.0)


def pair(link: Link = WIDE) -> Topology:
    """Two servers."""
    return Topology.from_links("pair", servers=2, switches=0, links=[(0, 1)], link=link)


@pytest.mark.parametrize(("size", "milliseconds"), [(1e6, 2.5), (2e6, 3.0), (4e6, 5.0)])
def test_two_servers_take_what_they_must(size, milliseconds):
    """Half a gradient each way and two latencies; or all of it each way and the last one's.

    Sums leave from the start, copies of what has come back after a latency: of parts as small as
    one likes, this is what is taken, and a slot's length is all that the bound may miss.
    """
    bound = bounded(pair(), size, slots=40)
    assert 1e3 * bound.seconds <= milliseconds * (1 + 1e-9) and bound.seconds < bound.exact
    assert 1e3 * bound.seconds == pytest.approx(milliseconds, rel=2 / 40)
    if size < 2e6:
        assert bound.seconds > 1.1 * least_seconds(pair(), size).seconds
        assert "in 40 slots of time links carry no more" in str(bound) and "0→1" in str(bound)
        whole = seconds_bound(pair(), "all_reduce", size).with_slots(40)
        assert (whole.seconds, whole.kind) == (bound.seconds, "latency and bytes")


@pytest.mark.parametrize("shares", [[1, 0], [0, 1]])
@pytest.mark.parametrize(
    ("collective", "milliseconds"), [("all_gather", 2), ("reduce_scatter", 2), ("all_reduce", 3)]
)
def test_one_root_takes_all_bytes_once_per_stage(collective, milliseconds, shares):
    """A millisecond of bytes and one of latency; both stages overlap but for their latencies."""
    bound = bounded(pair(), 1e6, collective=collective, shares=shares, slots=40)
    assert bound.seconds <= milliseconds / 1e3
    assert 1e3 * bound.seconds == pytest.approx(milliseconds, rel=2 / 40)


def bounded(network: Topology, size: float, **options: Any) -> SlotPrices:
    """The bound, which there must be."""
    found = time_expanded(network, size, **options)
    assert found is not None
    return found


def test_an_overhead_counts_as_latency():
    """A message's last byte comes no earlier than both after what is sent first."""
    split = dataclasses.replace(WIDE, latency_s=4e-4, overhead_s=6e-4)
    assert bounded(pair(split), 1e6, slots=16).seconds == pytest.approx(
        bounded(pair(), 1e6, slots=16).seconds, rel=1e-3
    )


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather", "all_reduce"])
@pytest.mark.parametrize("spec", ["ring:3", "star:3", "a100:boxes=1"])
def test_no_less_than_bytes_alone_but_for_a_slot(spec, collective):
    """Rounding up to slots, and the solver's tolerance, are all that the program loses."""
    network = from_spec(spec)
    plain = least_seconds(network, 1e8, collective)
    bound = bounded(network, 1e8, collective=collective, slots=10)
    assert bound.seconds >= plain.bandwidth_s * (1 - 1 / 10 - 1e-3)


@pytest.mark.parametrize("seed", range(6))
def test_schedules_of_trees_take_no_less(seed):
    """On random networks of few nodes, at sizes where neither latency nor bytes decide alone."""
    rng = np.random.default_rng(seed)
    servers, switches = int(rng.integers(2, 5)), int(rng.integers(0, 3))
    nodes = servers + switches
    links = {(int(rng.integers(node)), node) for node in range(1, nodes)} | {(0, nodes - 1)}
    made = Topology.from_links("random", servers=servers, switches=switches, links=sorted(links))
    count = len(made.source)
    network = dataclasses.replace(
        made,
        latency_s=rng.uniform(1e-4, 1e-3, count),
        bandwidth_bytes_per_s=1e9 * rng.integers(1, 4, count).astype(float),
        overhead_s=np.full(count, float(rng.choice([0.0, 1e-4]))),
    )
    size = float(10 ** rng.uniform(5, 6.5))
    bound = bounded(network, size, slots=12)
    for strategy in (
        gw.schedulers.Timed(gradient_bytes=size, restarts=1),
        gw.schedulers.Packed(size, 8),
    ):
        schedule = strategy.schedule(network)
        assert not bound.holds_unless & liberties_of(schedule)
        for model in ("events", "fair", "rounds"):
            assert gw.simulator.seconds(schedule, size, model) >= bound.seconds


def test_it_holds_only_for_trees_over_switches():
    """Partners that exchange sums, and routes that pass servers, may take less."""
    square = from_spec("ring:4")
    bound = bounded(square, 1e5, slots=4)

    def taken(strategy: gw.schedulers.Scheduler) -> frozenset[str]:
        return bound.holds_unless & liberties_of(strategy.schedule(square))

    assert not taken(gw.schedulers.Ring())
    both = {SUMS_MEET_ANYWHERE, ROUTES_PASS_SERVERS}
    assert taken(gw.schedulers.RecursiveDoubling()) == both
    assert taken(gw.schedulers.ParameterServer()) == {ROUTES_PASS_SERVERS}
    stage = bounded(from_spec("star:3"), 1e5, collective="all_gather", slots=4)
    assert stage.holds_unless == {SUMS_MEET_ANYWHERE, SWITCHES_ADD, UNEQUAL_PARTS}


def test_any_prices_prove_no_more_than_the_best():
    """Prices at random, of which some are negative, are evaluated as what they are."""
    rng = np.random.default_rng(0)
    best = bounded(from_spec("star:3"), 1e5, slots=12)
    for _ in range(10):
        prices = tuple(rng.uniform(-0.5, 1, one.shape) for one in best.prices)
        tolls = tuple(rng.uniform(-1, 1, one.shape) for one in best.tolls)
        drawn = dataclasses.replace(best, prices=prices, tolls=tolls)
        assert 0 <= drawn.seconds <= best.seconds * 1.001


def test_symmetry_changes_nothing():
    """One server of an orbit stands for all: a star whose name tells nothing takes as long."""
    named = from_spec("star:3")
    links = [(server, 3) for server in range(3)]
    plain = Topology.from_links("three", servers=3, switches=1, links=links)
    slightly = plain.bandwidth_bytes_per_s * np.linspace(1, 1 + 1e-7, 6)
    plain = dataclasses.replace(plain, bandwidth_bytes_per_s=slightly)
    bounds = [bounded(one, 1e5, slots=10).seconds for one in (named, plain)]
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-3)


def test_latency_over_switches_is_the_route_s():
    """Through a far switch a message has more behind it than through the near one alone."""
    links = [(0, 4), (1, 4), (2, 5), (3, 5), (4, 5)]
    made = Topology.from_links("two racks", servers=4, switches=2, links=links)
    far = ~made.is_server[made.source] & ~made.is_server[made.target]
    network = dataclasses.replace(
        made, latency_s=np.where(far, 1e-3, 1e-5), overhead_s=np.zeros(len(far))
    )
    arcs = arcs_of(network)
    arrives = network.is_server[network.target[arcs.link]]
    assert np.unique(arcs.delay_s[arrives].round(9)).tolist() == [2e-5, 1.02e-3]


def test_symmetric_servers_share_their_variables():
    """A ring of five has ten arcs: one orbit with each of five servers, or none alike."""
    ring, unlike = from_spec("ring:5"), tuple(Fraction(part, 15) for part in range(1, 6))
    for collective, stages in (("all_reduce", 2), ("all_gather", 1)):
        assert _Programs(ring, collective, None, 1e6).flows == stages * 5
        assert _Programs(ring, collective, unlike, 1e6).flows == stages * 50


def test_what_is_given_must_make_sense():
    """One line says what was expected."""
    network = from_spec("ring:3")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"slots": 1}, "slots: expected 2 to 1000, got 1"),
        ({"time_limit": 0.0}, "time_limit: expected more than 0"),
        ({"upper_s": float("nan")}, "upper_s: expected more than 0"),
        ({"collective": "broadcast"}, "collective: expected one of"),
    ]
    for options, said in wrong:
        with pytest.raises(OptionError, match=said):
            time_expanded(network, 1e6, **options)
    with pytest.raises(OptionError, match="at most 64 servers, got 65"):
        time_expanded(from_spec("ring:65"), 1e6)


def test_without_time_or_bytes_there_is_no_bound_by_slots():
    """No time for any program, and nothing to send."""
    assert time_expanded(from_spec("star:4"), 1e6, time_limit=1e-9) is None
    assert time_expanded(pair(), 0.0) is None
    assert seconds_bound(pair(), "all_reduce", 0.0).with_slots(4).kind != "latency and bytes"


def test_numbers_of_nodes_change_nothing():
    """Servers behind a switch of two latencies: the bound as with servers first, and valid.

    10 kB in thirds takes 6.667 us, two messages on each link; the late link is not used.
    """
    links = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (2, 4), (3, 4)]

    def numbered(new: list[int]) -> Topology:
        links_there = [(new[a], new[b]) for a, b in links]
        ends = sorted([*links_there, *((b, a) for a, b in links_there)])
        server = np.zeros(5, bool)
        server[[new[1], new[2], new[4]]] = True
        return gw.Topology(
            name="late link",
            is_server=server,
            source=np.array([a for a, _ in ends]),
            target=np.array([b for _, b in ends]),
            bandwidth_bytes_per_s=np.full(16, 1e9),
            latency_s=np.array([1e-6 * (pair == (new[2], new[3])) for pair in ends]),
            capacity=np.ones(16, np.int64),
        )

    for slots in (2, 8):
        switch_first, servers_first = (
            bounded(numbered(new), 1e4, slots=slots).seconds
            for new in ([0, 1, 2, 3, 4], [4, 0, 1, 3, 2])
        )
        assert switch_first == pytest.approx(servers_first, rel=1e-3)
        assert switch_first <= 20e-6 / 3
