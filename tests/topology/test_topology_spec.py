"""Specifications: what is understood, what is refused and how, and that names lead back."""

import pytest

import gradweave.topology as gt
from gradweave.errors import GradweaveError, SpecError
from gradweave.topology.spec import UNNAMED, from_spec, parse_spec

PLAIN = [
    "bcube:n=3,k=1",
    "bcube:n=2,k=2",
    "dcell:n=4,k=1",
    "dcell:n=2,k=2",
    "jellyfish:switches=10,degree=4,seed=0",
    "jellyfish:switches=9,degree=3,servers_per_switch=2,seed=7",
    "jellyfish:reference=J15,seed=4",
    "torus:4x4",
    "torus:2x3x4",
    "mesh:3x3",
    "mesh:5",
    "hypercube:dimension=3",
    "fat_tree:k=4",
    "ring:n=8",
    "star:n=8",
    "complete:n=8",
]
PROPERTIES = [
    "bandwidth=10Gbit/s",
    "latency=5us",
    "overhead=20us",
    "capacity=2",
    "bandwidth=1Mbit/s,latency=0s,capacity=7",
    "bandwidth=333333333.3333333",
    "latency=1.2345678901234e-05",
]


@pytest.mark.parametrize("spec", PLAIN)
def test_a_canonical_name_is_kept(spec):
    assert from_spec(spec).name == spec


@pytest.mark.parametrize("properties", ["", *PROPERTIES])
@pytest.mark.parametrize("spec", PLAIN)
def test_a_name_leads_back_to_the_network(spec, properties):
    net = from_spec(",".join(filter(None, (spec, properties))))
    assert properties.count("=") == net.name.count("=") - spec.count("=")
    assert from_spec(net.name).same_network(net)
    assert from_spec(net.name).name == net.name


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("hypercube:3", "hypercube:dimension=3"),
        ("hypercube:d=3", "hypercube:dimension=3"),
        ("hypercube:n=3", "hypercube:dimension=3"),
        ("ring:8", "ring:n=8"),
        ("star:8", "star:n=8"),
        ("complete:8", "complete:n=8"),
        ("fat_tree:4", "fat_tree:k=4"),
        ("fat-tree:k=4", "fat_tree:k=4"),
        ("fattree:k=4", "fat_tree:k=4"),
        ("torus:dimensions=4x4", "torus:4x4"),
        ("jellyfish:switches=10,degree=4", "jellyfish:switches=10,degree=4,seed=0"),
        ("jellyfish:reference=J10", "jellyfish:reference=J10,seed=0"),
        ("BCube:k=1,n=3", "bcube:n=3,k=1"),
        (" ring : n = 8 , capacity = 2 ", "ring:n=8,capacity=2"),
        ("ring:8,bandwidth=100Gbit/s,latency=1us,capacity=1,overhead=1us", "ring:n=8"),
        ("ring:8,overhead=0", "ring:n=8,overhead=0s"),
        ("ring:8,bandwidth=1.25GB/s", "ring:n=8,bandwidth=10Gbit/s"),
    ],
)
def test_other_spellings(spec, canonical):
    assert from_spec(spec).name == canonical


def test_link_properties():
    net = from_spec("star:4,bandwidth=10Gbit/s,latency=5us,capacity=2,overhead=3us")
    assert set(net.bandwidth_bytes_per_s) == {1.25e9}
    assert set(net.latency_s) == {5e-6}
    assert set(net.overhead_s) == {3e-6}
    assert set(net.capacity) == {2}


@pytest.mark.parametrize(
    ("spec", "culprits"),
    [
        ("", ["''", "expected a name"]),
        (":n=3", ["':n=3'", "expected a name"]),
        ("bcub:n=3,k=1", ["'bcub'", "did you mean bcube?", "torus"]),
        ("cube", ["unknown family", "known are bcube, circulant, cities, complete, dcell"]),
        ("bcube", ["n and k are missing", "bcube:n=3,k=1"]),
        ("bcube:n=3", ["k is missing"]),
        ("bcube:3", ["'3' needs a key", "bcube:n=3,k=1"]),
        ("bcube:n=3,k=1,z=4", ["unknown parameter z", "known are n, k, bandwidth"]),
        ("bcube:n=3,k=1,bandwith=1", ["unknown parameter bandwith", "did you mean bandwidth?"]),
        ("bcube:n=3,k=1,n=4", ["n is given twice"]),
        ("hypercube:3,d=3", ["dimension is given twice"]),
        ("bcube:n=three,k=1", ["n must be an integer", "'three'"]),
        ("bcube:n=3.0,k=1", ["n must be an integer", "'3.0'"]),
        ("bcube:n=1_0,k=1", ["n must be an integer", "'1_0'"]),
        ("bcube:n=٣,k=1", ["n must be an integer"]),
        ("ring:" + "9" * 5000, ["n must be an integer of at most 18 digits"]),
        ("bcube:n=3,k=1,", ["expected key=value, got ''"]),
        ("bcube:n=3,k=1 extra", ["k must be an integer", "'1 extra'"]),
        ("bcube:n=3;k=1", ["n=", "got '3;k=1'"]),
        ("bcube:", ["expected a value after bcube:"]),
        ("bcube:n=,k=1", ["expected a value after n="]),
        ("bcube:=3", ["expected key=value, got '=3'"]),
        ("torus", ["dimensions is missing", "torus:4x4"]),
        ("torus:4x", ["dimensions must be sizes joined by x", "'4x'"]),
        ("torus:4x4x4 rubbish", ["dimensions must be sizes", "rubbish"]),
        ("torus:4,4", ["expected key=value, got '4'"]),
        ("mesh:-3x3", ["dimensions must be sizes", "'-3x3'"]),
        ("jellyfish:degree=4", ["switches is missing", "reference=J10"]),
        (
            "jellyfish:reference=J10,degree=4",
            ["unknown parameter degree", "known are reference, seed"],
        ),
        ("ring:8,bandwidth=10Gflop", ["bandwidth '10Gflop'", "unknown unit 'Gflop'"]),
        ("ring:8,bandwidth=nan", ["bandwidth 'nan'"]),
        ("ring:8,latency=-5us", ["latency '-5us'", "zero or more"]),
        ("ring:8,overhead=5m", ["overhead '5m'", "unknown unit 'm'"]),
        ("ring:8,capacity=half", ["capacity must be an integer"]),
        ("ring:8,capacity=0", ["capacity must be at least 1"]),
        ("ring:8,capacity=99999999999", ["capacity", "99999999999"]),
        ("nowhere/cluster", ["'nowhere/cluster'", "no such file"]),
        ("cluster.toml", ["'cluster.toml'", "no such file"]),
        ("cluster.yaml", ["cluster.yaml", "No such file"]),
        ("nowhere.graphml", ["nowhere.graphml", "No such file"]),
        ("a\nb\n", ["'a\\nb\\n'"]),
        ("bcube:n=3,k=1\nn=4", ["expected a value after k=", "'1\\nn=4'"]),
        ("x\0.json", ["null"]),
        ("y" * 100_000, ["unknown family"]),
    ],
)
def test_refusals_name_the_culprit_in_one_line(spec, culprits):
    if not culprits:
        from_spec(spec)
        return
    with pytest.raises(GradweaveError) as caught:
        from_spec(spec)
    message = str(caught.value)
    assert all(culprit in message for culprit in culprits), message
    assert message.isprintable() and len(message) < 400


def test_parse_spec():
    assert parse_spec("ring:order=hamiltonian,steps=paper") == (
        "ring",
        {"order": "hamiltonian", "steps": "paper"},
    )
    assert parse_spec("grown") == ("grown", {})
    assert parse_spec("torus:4x4,capacity=2") == ("torus", {UNNAMED: "4x4", "capacity": "2"})
    with pytest.raises(SpecError, match="steps is given twice"):
        parse_spec("ring:steps=paper,steps=paper")


@pytest.mark.parametrize("suffix", [".graphml", ".json", ".edges", ".edgelist", ".txt", ".JSON"])
def test_paths(tmp_path, suffix):
    net = gt.dcell(3, 1)
    path = tmp_path / f"net{suffix}"
    gt.save(net, path)
    read = from_spec(str(path))
    assert read.same_network(net)
    assert read.name == str(path)
    assert from_spec(read.name).same_network(net)
