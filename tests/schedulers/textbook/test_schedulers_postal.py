"""Postal trees: textbook times in a star, near the bound if distances differ, any network."""

import contextlib
import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradweave as gw
from gradweave.bounds import latency_bound
from gradweave.bounds.seconds.latency import spread_times
from gradweave.errors import NoScheduleError, OptionError
from gradweave.execute.program import same_bits
from gradweave.schedulers import Binomial, Postal, RecursiveDoubling, to_spec
from gradweave.schedulers.solving.portfolio import FOR_SECONDS
from gradweave.schedulers.solving.timing import timing_of
from gradweave.schedulers.spec import from_spec
from gradweave.schedulers.textbook import postal
from gradweave.schedulers.textbook.postal import SHAPES, PostalClock, _Program
from gradweave.schedules.schedule import COLLECTIVES
from gradweave.simulator import seconds
from gradweave.topology import Topology
from tests.simulator.random_networks import networks

net = gw.topology.from_spec


@settings(max_examples=60, deadline=None)
@given(
    network=networks(max_servers=8),
    shape=st.sampled_from(SHAPES),
    collective=st.sampled_from(COLLECTIVES),
    size=st.sampled_from([None, 1e3, 1e7]),
    pieces=st.integers(1, 3),
)
def test_it_is_valid_on_any_network_and_takes_no_less_than_possible(
    network, shape, collective, size, pieces
):
    strategy = Postal(shape, gradient_bytes=size, pieces=pieces, tries=10)
    try:
        made = strategy.schedule(network, collective=collective)  # verifies
    except NoScheduleError:
        assert collective == "all_reduce" and shape != "root"
        return
    for taken in (0.0, 1e3, 1e7):
        timing = timing_of(made, taken)
        assert timing.bound.seconds <= timing.seconds * (1 + 1e-9)


@pytest.mark.parametrize(("servers", "latency"), [(5, 1), (9, 3), (14, 6)])
def test_in_a_star_a_broadcast_is_the_fastest_of_the_postal_model(servers, latency):
    network = net(f"star:{servers},latency={latency}us,overhead=1us")
    made = Postal(tries=0).schedule(network, collective="all_gather")
    least = spread_times(2 * latency * 1e-6, 1e-6, 1.0, servers)[-1]
    assert seconds(made, 0.0, "events") == pytest.approx(least)


@pytest.mark.parametrize(
    ("spec", "shape", "above"),
    [
        ("mesh:3x5,latency=10us", "root", 0.05),
        ("a100:boxes=2", "cross", 0.01),
        ("star:3,latency=10us", "root", 0.06),
    ],
)
def test_near_the_bound(spec, shape, above):
    network = net(spec)
    taken = seconds(Postal(shape).schedule(network), 0.0, "events")
    assert taken <= latency_bound(network).seconds * (1 + above)


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        ("leaf_spine:leaves=4,spines=2,servers_per_leaf=4,latency=10us", "hubs"),
        ("mesh:3x5,latency=10us", "root"),
    ],
)
def test_faster_than_the_textbook(spec, shape):
    network = net(spec)
    taken = seconds(Postal(shape, gradient_bytes=1e3).schedule(network), 1e3, "events")
    for other in (Binomial("near"), RecursiveDoubling("near")):
        assert taken < 0.9 * seconds(other.schedule(network), 1e3, "events")


def test_options_are_checked():
    for options in ({"shape": "ring"}, {"tries": -1}, {"pieces": 0}, {"gradient_bytes": 0.0}):
        with pytest.raises(OptionError, match="postal: "):
            Postal(**options)  # pyright: ignore[reportArgumentType]
    made = Postal("cross", pieces=4)
    assert from_spec(to_spec(made)) == made


def test_where_there_are_no_groups_it_says_so():
    with pytest.raises(NoScheduleError, match="has no servers for this shape"):
        Postal("hubs").schedule(net("star:5"))


def test_groups_of_two_have_hubs():
    network = net("leaf_spine:leaves=3,spines=1,servers_per_leaf=2")
    assert Postal("hubs").schedule(network).pieces == 1


def test_each_piece_has_another_hub_and_all_others_of_the_group_receive(monkeypatch):
    """Three pieces among two racks of three, first with one receiver in each, then with all."""
    clock = PostalClock.of(net("leaf_spine:leaves=2,spines=1,servers_per_leaf=3"), 1e3)
    program, seen = _Program(clock, 0, 0), list[tuple[int, list[list[int]]]]()

    def record(groups, hubs, receivers, piece):
        for group, hub, others in zip(groups, hubs, receivers, strict=True):
            assert hub in group and hub not in others and set(others) < set(group)
        seen.append((hubs[0], [one.tolist() for one in receivers]))
        return [], [], [], []

    monkeypatch.setattr(_Program, "_through_hubs", lambda _, *given: record(*given))
    (roots, _), (again, _) = program.by_hubs(3)
    assert roots == again == [hub for hub, _ in seen[:3]] and len(set(roots)) == 3
    assert [len(one) for _, both in seen for one in both] == [1] * 6 + [2] * 6


def test_of_several_hops_the_one_that_arrives_first_is_used():
    """Servers with ports on two switches, of which the second is faster."""
    links = [(server, switch) for switch in (3, 4) for server in range(3)]
    both = Topology.from_links("two switches", servers=3, switches=2, links=links)
    slow = (both.source == 3) | (both.target == 3)
    clock = PostalClock.of(
        dataclasses.replace(both, bandwidth_bytes_per_s=np.where(slow, 1e6, 1e9)), 1e3
    )
    arrives = clock.hold + clock.latency
    assert len(arrives) == 12
    for one, other in itertools.permutations(range(3), 2):
        assert arrives[clock.fastest(one, other)] == clock.least[one, other]
    assert clock.fastest(0, 0) == -1


def test_paths_over_servers_are_hops_up_to_a_limit_of_servers(monkeypatch):
    """A ring of six has hops to 12 neighbours, and paths to all 30 others."""
    for most, hops in ((6, 30), (5, 12)):
        tuning = dataclasses.replace(postal.TUNING, forwarded_servers=most)
        monkeypatch.setattr(postal, "TUNING", tuning)
        assert len(PostalClock.of(net("ring:6"), 1e3).hold) == hops


@pytest.mark.parametrize("spec", ["star:12", "ring:7", "torus:3x3", "a100:boxes=2"])
def test_what_is_tried_by_default_leaves_all_servers_with_the_same_bits(spec):
    network, checked = net(spec), 0
    for scheduler in FOR_SECONDS:
        if scheduler.traits.one_root:
            with contextlib.suppress(NoScheduleError):
                assert same_bits(scheduler.schedule(network)), scheduler
                checked += 1
    assert checked >= 5
    exchanged = RecursiveDoubling(order="near", radix=3).schedule(net("complete:9"))
    assert not same_bits(exchanged)  # ids do not determine the order of sums
