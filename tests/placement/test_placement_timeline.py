"""Pipelines in time, against what is known of them, and groups that share links."""

import dataclasses

import numpy as np
import pytest

import gradweave as gw
from gradweave.placement import even_stages, place, step_time
from gradweave.placement.timeline.step import exchange_seconds

FREE = gw.topology.Link(bandwidth_bytes_per_s=1e15, latency_s=0.0, overhead_s=0.0)


def placed(network, stages, microbatches, *, activation=1.0, gradient=0.0, data=None):
    work = even_stages(stages, activation_bytes=activation, gradient_bytes=gradient,
                       forward_s=1.0, backward_s=2.0, microbatches=microbatches)  # fmt: skip
    return place(network, work, data=data, strategy="rank_order", bound=False)


@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "microbatches"), [(4, 8), (3, 2), (2, 1)])
def test_bubble_without_messages(order, stages, microbatches):
    one = placed(gw.topology.complete(stages, link=FREE), stages, microbatches)
    step = step_time(one, order)
    assert step.seconds == pytest.approx(3.0 * (microbatches + stages - 1), rel=1e-6)
    assert step.bubble == pytest.approx((stages - 1) / (microbatches + stages - 1), rel=1e-6)
    assert step.busy_s == pytest.approx(np.full((stages, 1), 3.0 * microbatches))


@pytest.mark.parametrize("chunks", [2, 4])
def test_interleaving_divides_the_bubble(chunks):
    one = placed(gw.topology.complete(4, link=FREE), 4, 8)
    step = step_time(one, "interleaved", chunks=chunks)
    assert step.seconds == pytest.approx(3.0 * (8 + 3 / chunks), rel=1e-6)


def test_1f1b_waits_for_messages_longer_than_gpipe():
    slow = dataclasses.replace(FREE, latency_s=1.0)
    one = placed(gw.topology.complete(4, link=slow), 4, 8)
    assert step_time(one, "gpipe").seconds == pytest.approx(3 * (8 + 3) + 6, rel=1e-6)
    assert step_time(one, "1f1b").seconds > step_time(one, "gpipe").seconds


def test_pipelines_share_a_trunk():
    """Two halves of a star of stars: both pipelines' messages cross one trunk of 1 byte/s."""
    links = [(0, 4), (1, 4), (2, 5), (3, 5), (4, 5)]
    net = gw.topology.Topology.from_links("halves", servers=4, switches=2, links=links, link=FREE)
    trunk = (net.source >= 4) & (net.target >= 4)
    net = dataclasses.replace(
        net, bandwidth_bytes_per_s=np.where(trunk, 1.0, net.bandwidth_bytes_per_s)
    )
    across = placed(net, 2, 1)
    across = dataclasses.replace(across, servers=np.array([[0, 1], [2, 3]]))
    within = dataclasses.replace(across, servers=np.array([[0, 2], [1, 3]]))
    assert step_time(within).seconds == pytest.approx(6.0, rel=1e-6)
    assert step_time(across).seconds == pytest.approx(6.0 + 2 + 2, rel=1e-6)


def test_all_reduces_follow_the_passes_and_share_links():
    net = gw.topology.star(4, link=gw.topology.Link(1e9, 1e-6, overhead_s=0.0))
    both = placed(net, 2, 2, gradient=1e9)
    step = step_time(both)
    alone = [one.seconds for one in step.groups]
    assert exchange_seconds(step.groups, both) == pytest.approx(max(alone), rel=1e-3)
    first, last = step.end_s[step.stage == 0].max(), step.end_s[step.stage == 1].max()
    assert last < first == pytest.approx(step.passes_s)
    assert step.reduced_s == pytest.approx([first + alone[0], last + alone[1]], rel=1e-3)
    assert step.seconds == pytest.approx(step.reduced_s.max())


def test_a_group_has_its_own_network():
    tree = gw.topology.from_spec("leaf_spine:leaves=3,spines=2,servers_per_leaf=2")
    alone, nodes = gw.topology.subnetwork(tree, np.array([0, 2]))
    assert alone.num_servers == 2 and alone.num_nodes == len(nodes)
    assert nodes[alone.servers].tolist() == [0, 2]
    ring, nodes = gw.topology.subnetwork(gw.topology.ring(6), np.array([0, 2]))
    assert ring.num_servers == 2 and 1 in nodes.tolist()


def test_schedules_cost_less_than_direct_exchanges():
    net = gw.topology.cities(["Oregon", "Ohio", "Tokyo", "Seoul"], each=2)
    work = even_stages(2, activation_bytes=2e8, gradient_bytes=1e9)
    one = place(net, work, cost="scheduled", strategy="annealing:moves=500", time_limit=0.5)
    ours = one.scheduled
    assert ours is not None and one.bound is not None
    assert ours.data_s < one.data_s / 2
    assert ours.pipeline_s == pytest.approx(one.pipeline_s, rel=1e-3)  # each pair has its own link
    assert one.as_object()["scheduled_s"] == ours.seconds
