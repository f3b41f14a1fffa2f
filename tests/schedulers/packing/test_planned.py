"""The strategy `planned`: trees at the duals of a plan, ordered in event time."""

import dataclasses

import numpy as np
import pytest

import gradweave as gw
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedulers import Planned
from gradweave.schedulers.greedy.decoding import Wiring, even, grow_trees, simulate
from gradweave.schedulers.greedy.planned import decode
from gradweave.simulator import seconds
from tests.schedulers.packing.test_unequal_packing import NETWORKS

GIGABYTE = 1e9


@pytest.mark.parametrize("name", NETWORKS)
def test_the_event_model_takes_no_longer_than_the_clock_that_it_was_simulated_on(name: str):
    scheduler, topology = Planned(gradient_bytes=GIGABYTE), NETWORKS[name]
    schedule = scheduler.schedule(topology)
    taken = seconds(schedule, GIGABYTE, "events")
    assert taken <= scheduler.decode(topology).seconds * (1 + 1e-4)
    assert taken >= gw.bounds.least_seconds(topology, GIGABYTE).seconds * (1 - 1e-9)


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather"])
def test_a_stage_alone_is_rooted_alike(collective):
    topology = NETWORKS["torus"]
    schedule = Planned().schedule(topology, collective=collective)
    whole = np.bincount(schedule.root, minlength=topology.num_nodes)[topology.servers]
    assert (whole == whole[0]).all() and whole[0] > 0


def test_links_carry_what_the_trees_say_and_little_more_than_they_must():
    from gradweave.schedulers.greedy.tree_packing_kernel import Plan, grow

    topology = NETWORKS["torus"]
    wiring, proposal = Wiring(topology, "all_reduce", np.inf), even(topology)
    root = grow_trees(wiring, proposal, 48, 1).root
    ones, nothing = np.ones(len(proposal.bias)), np.zeros((1, 1))
    plan = Plan(root, proposal.bias, 10.0, 1.0, 0.0, ones, 0.0, 2, nothing)
    grown = grow(wiring.links, plan, wiring.rates, wiring.stages)
    used = grown.route[grown.route >= 0]
    carried = np.bincount(used, minlength=len(proposal.bias)) / len(root)
    assert np.allclose(grown.load, carried / wiring.links.bandwidth)
    largest = float(topology.bandwidth_bytes_per_s.max())
    least = float(gw.bounds.least_seconds(topology, 1e9).duals.seconds_per_byte) * largest
    assert least * (1 - 1e-9) <= grown.load.max() <= 1.1 * least


def late_and_uneven(spec: str) -> gw.topology.Topology:
    """Links of 10 ms, and of 1, 2 and 3 GB/s in turn."""
    made = gw.topology.from_spec(spec)
    rate = 1e9 * (1 + np.arange(len(made.source)) % 3)
    latency = np.full(len(rate), 1e-2)
    return dataclasses.replace(made, latency_s=latency, bandwidth_bytes_per_s=rate)


@pytest.mark.parametrize("spec", ["complete:6", "torus:4x4"])
def test_where_latency_counts_trees_are_flat(spec: str):
    wiring = Wiring(late_and_uneven(spec), "all_reduce", 1e6)
    near = even(wiring.topology)
    far = near._replace(near=0.0)
    least = gw.bounds.least_seconds(wiring.topology, 1e6).seconds
    assert decode(wiring, near).seconds <= 1.1 * least < 0.5 * decode(wiring, far).seconds


def test_mending_the_order_pays_and_keeps_what_waits_for_what():
    wiring = Wiring(NETWORKS["one way faster"], "all_reduce", GIGABYTE)
    proposal = even(wiring.topology)
    grove = grow_trees(wiring, proposal, 48, 2)
    plain, mended = (simulate(grove, proposal.order, 2, improvements) for improvements in (0, 3))
    assert mended.seconds < plain.seconds
    taken = seconds(mended.schedule(), GIGABYTE, "events")
    assert taken <= mended.seconds * (1 + 1e-4)


def test_servers_that_switches_do_not_join_are_reached_over_others():
    links = [(0, 4, 10.0), (1, 4, 5.0), (1, 2, 3.0), (2, 3, 10.0), (3, 5, 7.0), (0, 5, 2.0)]
    made = gw.topology.Topology.from_links(
        "pairs over switches", servers=4, switches=2, links=[link[:2] for link in links]
    )
    rate = {frozenset(link[:2]): link[2] * 1e9 for link in links}
    ends = zip(made.source.tolist(), made.target.tolist(), strict=True)
    bandwidth = np.array([rate[frozenset(pair)] for pair in ends])
    network = dataclasses.replace(made, bandwidth_bytes_per_s=bandwidth)
    taken = Planned(gradient_bytes=GIGABYTE).decode(network).seconds
    least = gw.bounds.least_seconds(network, GIGABYTE).seconds
    assert least * (1 - 1e-9) <= taken <= 1.2 * least


def test_it_refuses_what_it_cannot_do():
    with pytest.raises(OptionError, match="planned: gradient_bytes: expected more than 0"):
        Planned(gradient_bytes=0.0)
    with pytest.raises(OptionError, match="planned: plan: expected learned or even"):
        Planned(plan="odd")  # type: ignore[arg-type]
    with pytest.raises(NoScheduleError, match="at most 512 servers"):
        Planned().schedule("ring:600")
