"""The topology object of the schedule file."""

import copy
import dataclasses
import json

import pytest

import gradweave.topology as gt
from gradweave.errors import FileError, GradweaveError, TopologyError
from gradweave.topology.formats.object import topology_from_object, topology_to_object


@pytest.mark.parametrize("spec", ["bcube:n=3,k=1", "ring:2", "jellyfish:reference=J20,capacity=3"])
def test_round_trip(spec):
    net = gt.from_spec(spec)
    held = json.loads(json.dumps(topology_to_object(net)))
    assert list(held) == ["name", "servers", "switches", "links"]
    read = topology_from_object(held)
    assert read.same_network(net)
    assert read.name == net.name


def test_an_overhead_is_written_where_it_is_not_the_default():
    """So files of before there were overheads say what is meant now, and stay as they were."""
    usual = topology_to_object(gt.ring(4))
    assert "overhead_s" not in usual["links"]
    assert set(topology_from_object(usual).overhead_s) == {gt.Link().overhead_s}
    free = gt.from_spec("ring:4,overhead=0s")
    held = topology_to_object(free)
    assert held["links"]["overhead_s"] == [0.0] * 8
    assert topology_from_object(held).same_network(free)
    held["links"]["overhead_s"][5] = -1e-6
    with pytest.raises(TopologyError, match="overhead_s must be zero or positive"):
        topology_from_object(held)


def test_labels_are_kept():
    net = dataclasses.replace(gt.ring(3), labels=("a", "b", "c"))
    assert topology_from_object(topology_to_object(net)).labels == ("a", "b", "c")


def test_kinds_may_be_mixed():
    held = topology_to_object(gt.star(3))
    held |= {"servers": [3, 0, 2], "switches": [1]}
    assert topology_from_object(held).is_server.tolist() == [True, False, True, True]


def changed(path, value):
    held = copy.deepcopy(topology_to_object(gt.star(3)))
    *outer, last = path
    inside = held
    for key in outer:
        inside = inside[key]
    if value is KeyError:
        del inside[last]
    else:
        inside[last] = value
    return held


@pytest.mark.parametrize(
    ("path", "value", "culprit"),
    [
        (["name"], KeyError, "topology.name: missing"),
        (["name"], 3, "topology.name: expected a string, got the number 3"),
        (["servers"], KeyError, "topology.servers: missing"),
        (["servers"], {}, "topology.servers: expected a list, got an object"),
        (["servers"], [0, 1, "2"], "topology.servers[2]: expected an integer, got a string"),
        (["servers"], [0, 1, None], "topology.servers[2]: expected an integer, got null"),
        (["servers"], [0, 1, True], "is listed twice"),
        (["servers"], [0, 1.5, 2], "topology.servers[1]: expected an integer, got the number 1.5"),
        (["servers"], [0, 1, 1], "1 is listed twice"),
        (["servers"], [0, 1, 7], "must be 0 to 3; got 7"),
        (["servers"], [0, 1, -1], "must be 0 to 3; got -1"),
        (
            ["servers"],
            [0, 1, 10**30],
            "topology.servers[2]: expected an integer, got an integer of more",
        ),
        (
            ["servers"],
            [0, 1, 2**63],
            "topology.servers[2]: expected an integer, got an integer of more",
        ),
        (["servers"], [0, 1, [2]], "topology.servers[2]: expected an integer, got a list"),
        (["servers"], [], "must be 0 to 0; got 3"),
        (["switches"], [], "0 to 2"),
        (["links"], [], "topology.links: expected an object, got a list"),
        (["links", "source"], KeyError, "topology.links.source: missing"),
        (["links", "source"], [0, 1], "link columns differ in length"),
        (["links", "source"], [], "link columns differ in length"),
        (["links", "source"], [0, 1, 2, 3, 3, 9], "node 9"),
        (["links", "source"], [0, 1, 2, 3, 3, -(2**32) + 3], "does not fit in 32 bits"),
        (
            ["links", "source"],
            [0.0, 1, 2, 3, 3, 3],
            "topology.links.source[0]: expected an integer, got the number 0.0",
        ),
        (["links", "latency_s"], [0, 0, 0, 0, 0, None], "topology.links.latency_s[5]"),
        (["links", "latency_s"], [0.0, 0, 0, 0, 0, float("nan")], "latency_s must be"),
        (["links", "capacity"], [1, 1, 1, 1, 1, 0], "capacity must be at least 1"),
        (["links", "bandwidth_bytes_per_s"], [[1]], "topology.links.bandwidth_bytes_per_s[0]"),
        (["labels"], "abc", "topology.labels: expected a list"),
        (["labels"], ["a", "b", "c", 1], "topology.labels[3]: expected a string, got the number 1"),
        (["labels"], ["a"], "labels: expected 4"),
    ],
)
def test_refusals_name_the_field(path, value, culprit):
    with pytest.raises((FileError, TopologyError)) as caught:
        topology_from_object(changed(path, value))
    assert culprit in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [None, [], "ring:8", 3])
def test_no_object(data):
    with pytest.raises(GradweaveError, match="topology: expected an object"):
        topology_from_object(data)
