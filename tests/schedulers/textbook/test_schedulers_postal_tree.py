"""Postal trees: optimal in known cases, and refused for demands they do not support."""

import pytest

import gradweave as gw
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedulers import PostalTree
from gradweave.schedules import Job, collective
from gradweave.simulator.seconds import event_seconds


@pytest.mark.parametrize("name", ["broadcast", "reduce"])
@pytest.mark.parametrize(
    ("network", "microseconds"),
    [("star:9", 7), ("ring:8", 8), ("jellyfish:reference=J15", 11)],
)
def test_messages_without_bytes_take_what_the_bound_says(
    name: str, network: str, microseconds: float
):
    topology = gw.topology.from_spec(network)
    demand = collective(name, topology.servers, 1, root=0)
    ends = event_seconds(PostalTree().schedule(topology, demand))[1]
    assert ends.max() == pytest.approx(1e-6 * microseconds, rel=1e-2)
    assert gw.bounds.demand_bound(topology, demand).seconds == pytest.approx(
        1e-6 * microseconds, rel=1e-2
    )


def test_a_group_s_tree_stays_among_its_servers():
    topology = gw.topology.from_spec("star:9")
    group = [1, 3, 4, 8]
    schedule = PostalTree().schedule(topology, Job("broadcast", 8, group, root=3).demand(topology))
    assert {*schedule.source.tolist(), *schedule.target.tolist()} == set(group)


def test_refused():
    ring = gw.topology.ring(6)
    with pytest.raises(NoScheduleError, match="postal_tree: needs one broadcast or one red"):
        PostalTree().schedule(ring, collective("all_reduce", range(6), 8))
    with pytest.raises(NoScheduleError, match="postal_tree: some servers share no link or switch"):
        apart = collective("broadcast", [0, 3], 8, root=0, relays=range(6))
        PostalTree().schedule(ring, apart)
    with pytest.raises(OptionError, match="tries"):
        PostalTree(-1)
