"""Postal trees: textbook times in a star, near the bound if distances differ, any network."""

import contextlib

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
from gradweave.schedulers.textbook.postal import SHAPES
from gradweave.schedules.schedule import COLLECTIVES
from gradweave.simulator import seconds
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
