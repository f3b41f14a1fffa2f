"""Runtime profiles: what messages cost, and what a schedule takes with that."""

import dataclasses
from importlib import resources

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import OptionError
from gradweave.schedulers.solving.variants import split
from gradweave.simulator.runtime import IDEAL, NAMES, Costs, Runtime, runtime_of
from gradweave.topology.topology import Topology

FREE = gw.topology.Link(bandwidth_bytes_per_s=1e15, latency_s=0.0, overhead_s=0.0)


def star(servers: int) -> Topology:
    """A network on which nothing but messages costs."""
    return gw.topology.star(servers, link=FREE)


def test_costs_are_interpolated_and_go_on_beyond_the_largest():
    costs = Costs((0.0, 10.0, 30.0), (1.0, 2.0, 6.0))
    assert costs.of(np.array([0.0, 5.0, 20.0, 40.0])).tolist() == [1.0, 1.5, 4.0, 8.0]
    assert Costs((8.0,), (3.0,)).of(np.array([1.0, 100.0])).tolist() == [3.0, 3.0]


def test_shared_processors_work_on_all_messages_in_turn():
    ring = gw.schedulers.Ring().schedule(star(4))  # 24 messages, 6 in a row
    shared = Runtime("gloo", processors=2, executor=Costs((0.0,), (1.0,), start_s=0.5))
    assert shared.seconds(ring, 4.0) == pytest.approx(0.5 * 4 / 2 + 24 / 2)
    assert shared.seconds(split(ring, 4), 4.0) == pytest.approx(1 + 96 / 2)


def test_servers_with_processors_of_their_own_are_as_slow_as_the_longest_chain_or_the_busiest():
    own = Runtime("gloo", executor=Costs((0.0,), (1.0,), start_s=0.5))
    ring = gw.schedulers.Ring().schedule(star(4))
    assert own.seconds(ring, 4.0) == pytest.approx(0.5 + 6)  # 6 in a row; 12 halves each
    assert own.seconds(split(ring, 4), 4.0) == pytest.approx(0.5 + 24)  # 48 halves each
    twice = dataclasses.replace(own, at_once=2)
    assert twice.seconds(split(ring, 4), 4.0) == pytest.approx(0.5 + 12)


def test_links_count_where_they_take_longer_than_processors():
    slow = gw.topology.star(4, link=dataclasses.replace(FREE, bandwidth_bytes_per_s=1.0))
    ring = gw.schedulers.Ring().schedule(slow)
    runtime = Runtime("gloo", executor=Costs((0.0,), (0.25,)))
    plain = gw.simulator.seconds(ring, 400.0, "events")
    assert runtime.seconds(ring, 400.0) == pytest.approx(plain + 6 * 0.25)


def test_ideal_is_the_event_model():
    ring = gw.schedulers.Ring().schedule(gw.topology.torus((3, 3)))
    assert IDEAL.seconds(ring, 1e6) == gw.simulator.seconds(ring, 1e6, "events")


def test_rounds_wait_for_each_other_where_the_runtime_says_so():
    ring = gw.schedulers.Ring().schedule(star(3))
    jax = Runtime("jax", barriers=True, round_s=0.125, executor=Costs((0.0,), (1.0,)))
    assert jax.seconds(ring, 3.0) == pytest.approx(4 * (1 + 0.125))


@pytest.mark.parametrize("name", NAMES)
def test_profiles_come_along(name):
    runtime = runtime_of(name)
    assert runtime.name == name and runtime.source
    if name != "ideal":
        assert runtime.algorithm(1e6) is not None and runtime.executor.message_s > 0
        assert resources.files("gradweave.simulator").joinpath("runtimes", f"{name}.toml").is_file()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "x"\nprocessors = 0', "processors: expected more than 0"),
        ('name = "x"\nat_once = 0', "at_once: expected at least 1"),
        ('name = "x"\nround_s = -1.0', "round_s: expected a finite time"),
        ('name = "x"\n[executor]\nbytes = [1, 2]\nseconds = [1]', "as many sizes as times"),
        ('name = "x"\n[executor]\nbytes = [2, 1]\nseconds = [1, 2]', "ascending sizes"),
        ('name = "x"\n[executor]\nbytes = [1, 2]\nseconds = [2, 1]', "no less for a larger"),
        ('name = "x"\n[executor]\nbytes = [1]\nseconds = [nan]', "finite numbers of at least 0"),
        ('name = "x"\n[executor]\nstart_s = -1.0', "start_s: expected a finite time"),
        ('name = "x"\nspeed = 3', "speed"),
        ("[", "not TOML"),
    ],
)
def test_a_bad_profile_is_refused_in_one_line(tmp_path, text, said):
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(OptionError, match=said) as refused:
        runtime_of(file)
    assert "bad.toml" in str(refused.value) and "\n" not in str(refused.value)


def test_an_unknown_runtime_is_named_beside_the_known():
    with pytest.raises(OptionError, match=r"expected gloo, ideal, .* or a file \.toml, got 'glo'"):
        runtime_of("glo")
