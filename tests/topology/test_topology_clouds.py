"""Hosts of clouds, of Kubernetes and of topograph's models, and Slurm's rings and tori."""

import contextlib
import json

import pytest

import gradweave.topology as gt
from gradweave.errors import AssumedWarning, FileError, InputWarning
from gradweave.topology.formats.files import find

PLACES = {"a": ("r1", "p1"), "b": ("r1", "p1"), "c": ("r2", "p1"), "d": ("r3", "p2")}
AWS = {
    "Instances": [
        {"InstanceId": host, "NetworkNodes": ["top", pod, rack], "ZoneId": "usw2-az2"}
        for host, (rack, pod) in PLACES.items()
    ]
}
GCP = [
    {"name": host, "resourceStatus": {"physicalHost": f"/top/{pod}/{rack}/m{host}"}}
    for host, (rack, pod) in PLACES.items()
]


def nodes(*keys: str, **more: dict) -> dict:
    """Kubernetes' nodes with the labels of racks, pods and the top."""
    items = [
        {"kind": "Node", "metadata": {"name": host, "labels": dict(zip(keys, where, strict=True))}}
        for host, where in ((host, (*place, "top")) for host, place in PLACES.items())
    ]
    items += [{"kind": "Node", "metadata": {"name": name, **rest}} for name, rest in more.items()]
    return {"apiVersion": "v1", "kind": "List", "items": items}


TIERS = tuple(f"fabric.topograph.run/tier-{tier}" for tier in range(3))
LAYERS = tuple(f"topology.k8s.aws/network-node-layer-{layer}" for layer in (3, 2, 1))
MODEL = """
switches:
  top: {labels: {region: here}, switches: [p1, p2]}
  p1: {switches: [r1, r2]}
  p2: {switches: [r3]}
blocks:
- {switch: r1, nodes: ["[a-b]"]}
""".replace('"[a-b]"', '"a,b"')
MODEL += "- {switch: r2, nodes: [c]}\n- {switch: r3, nodes: [d]}\n"


def write(tmp_path, content, name: str = "found.json"):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def edges(net) -> set[tuple[str, str]]:
    """The links by the labels of their ends, lower end first."""
    place = {label: number for number, label in enumerate(net.labels)}
    ends = zip(net.source.tolist(), net.target.tolist(), strict=True)
    named = ((net.labels[a], net.labels[b]) for a, b in ends)
    return {pair for pair in named if place[pair[0]] < place[pair[1]]}


TREES = {
    "aws": ("aws", AWS),
    "gcp": ("gcp", GCP),
    "tiers": ("kubernetes", nodes(*TIERS)),
    "layers": ("kubernetes", nodes(*LAYERS)),
}
CASES = [(*tree, suffix) for tree in TREES.values() for suffix in (".json", ".yaml", ".out")]
CASES += [("topograph_model", MODEL, ".yaml"), ("topograph_model", MODEL, "")]


@pytest.mark.parametrize(("format", "content", "suffix"), CASES)
def test_all_give_one_tree(tmp_path, format: str, content, suffix: str):
    path = write(tmp_path, content, f"found{suffix}")
    said = format == "kubernetes"
    with pytest.warns(InputWarning, match="labels") if said else contextlib.nullcontext():
        net = gt.read(path)
    assert find(path).format == format
    assert net.labels[:4] == tuple(PLACES) and net.num_servers == 4
    up = {("r1", "p1"), ("r2", "p1"), ("r3", "p2"), ("p1", "top"), ("p2", "top")}
    held = {tuple(sorted(pair)) for pair in edges(net)}
    assert held == {
        tuple(sorted(pair)) for pair in up | {(host, rack) for host, (rack, _) in PLACES.items()}
    }


def test_racks_of_one_name_in_two_pods_are_two(tmp_path):
    alike = [
        {"name": f"h{pod}{n}", "resourceStatus": {"physicalHost": f"/top/{pod}/rack/{n}"}}
        for pod in "ab"
        for n in range(2)
    ]
    net = gt.read(write(tmp_path, alike))
    assert ("ha0", "top/a/rack") in edges(net) and ("hb1", "top/b/rack") in edges(net)


def test_nodes_without_labels_are_left_out(tmp_path):
    content = nodes(*TIERS, control={"labels": {"kubernetes.io/os": "linux"}}, other={})
    with pytest.warns(InputWarning, match="2 nodes without them left out: control and other"):
        assert gt.read(write(tmp_path, content)).num_servers == 4


SLURM = """\
- topology: rings
  ring: {rings: [{ring: r0, nodes: "n[0-3]"}, {ring: r1, nodes: "m[0-2]"}]}
- topology: pod
  torus3d:
    toruses:
      - name: pod1
        dims: {x: 3, y: 2, z: 1}
        nodes: "n[0-5]"
        placements: [{dims: {x: 2, y: 2, z: 1}}]
"""
REGIONS = """\
- topology: pod
  torus3d:
    toruses:
      - name: pod1
        dims: {x: 3, y: 2, z: 1}
        regions:
          - {anchor: {x: 0, y: 0, z: 0}, dims: {x: 2, y: 1, z: 1}, nodes: "n[0-1]"}
          - {anchor: {x: 0, y: 1, z: 0}, dims: {x: 1, y: 1, z: 1}, nodes: n3}
"""


def slurm(tmp_path, text: str):
    with pytest.warns(AssumedWarning, match="cables: assumed 100 Gbit/s"):
        return gt.read(write(tmp_path, text, "topology.yaml"))


def test_rings_and_tori_of_slurm(tmp_path):
    net = slurm(tmp_path, SLURM)
    rings = {("n0", "n1"), ("n1", "n2"), ("n2", "n3"), ("n0", "n3")}
    rings |= {("m0", "m1"), ("m1", "m2"), ("m0", "m2")}
    core = {(host, "core") for pair in rings for host in pair}
    assert edges(net) == rings | core
    torus = slurm(
        tmp_path, SLURM.replace("- topology: pod", "- topology: pod\n  cluster_default: true")
    )
    rows = {(f"n{y}", f"n{z}") for y, z in [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)]}
    assert edges(torus) == rows | {("n0", "n3"), ("n1", "n4"), ("n2", "n5")}
    assert edges(slurm(tmp_path, REGIONS)) == {("n0", "n1"), ("n0", "n3")}
    path = tmp_path / "topology.yaml"
    links = gt.HostLinks(gt.Link(bandwidth_bytes_per_s=1e9))
    assert set(gt.read(path, host_links=links).bandwidth_bytes_per_s) == {1e9}
    with pytest.raises(FileError, match="oversubscription is for lists of hosts"):
        gt.read(path, host_links=gt.HostLinks(oversubscription=2))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"Instances": []}, "expected hosts, got none"),
        ({"Instances": [1]}, r"Instances\[0\]: expected an object"),
        ({"Instances": [{"InstanceId": "i", "NetworkNodes": "top"}]}, "names of what is above"),
        ({"Instances": [{"InstanceId": 7, "NetworkNodes": ["a"]}]}, "the name of a host"),
        ({"Instances": [AWS["Instances"][0]] * 2}, "'a' is listed twice"),
        ({"Instances": [{"InstanceId": "i", "NetworkNodes": ["x"] * 40}]}, "fewer levels"),
        ({"Instances": [{"InstanceId": "i" * 999, "NetworkNodes": ["a"]}]}, "the name of a host"),
        ([GCP[0], {"name": "b"}], "'b': expected the names of what is above it"),
        ([GCP[0], {"name": "b", "resourceStatus": {"physicalHost": 5}}], "'b': expected the names"),
        ([GCP[0], GCP[0]], "listed twice"),
        (nodes(*("zone", "rack", "x")), "no node has a label that names its switch"),
        ({"items": [{"kind": "Node", "metadata": 1}]}, "metadata: expected name and labels"),
        ({"items": [{"kind": "Node"}, 5]}, "expected name|expected an object"),
        (nodes(*TIERS, a={}), "'a' is listed twice"),
        (MODEL.replace("nodes: [c]", "nodes: c"), r"blocks\[1\]: expected switch"),
        (MODEL.replace("nodes: [c]", "nodes: [b]"), "'b' is listed twice"),
        (MODEL.replace("switch: r2", "switch: [r2]"), "switch: expected the name"),
        (MODEL.replace("[r3]", "[r3, top]"), "above itself"),
        (MODEL.replace("[c]", '["c[0-99999]"]'), "more than 65,536 hosts"),
        (SLURM.replace("n[0-3]", "m[0-3]"), "'m0' is listed twice"),
        (SLURM.replace("n[0-3]", "n[3-0]"), "rings.0.: 'n.3-0.': expected a range"),
        (SLURM.replace("rings: [", "rings: 5 #"), "not valid YAML|expected a list of rings"),
        (REGIONS.replace("x: 3", "x: 9999999999999"), "dims: expected whole numbers"),
        (REGIONS.replace("x: 3, y: 2, z: 1", "x: 999, y: 999, z: 9"), "more than 65,536 cells"),
        (REGIONS.replace("y: 1, z: 0", "y: 2, z: 0"), "expected a region within the torus"),
        (REGIONS.replace("anchor: {x: 0, y: 1", "anchor: {x: 0, y: 0"), "cell .0, 0, 0. is given"),
        (REGIONS.replace("nodes: n3", 'nodes: "n[3-4]"'), "2 nodes for 1 cells"),
    ],
)  # fmt: skip
def test_broken_files_are_one_line(tmp_path, content, message: str):
    path = write(tmp_path, content, "found.yaml" if isinstance(content, str) else "found.json")
    with pytest.raises(FileError, match=message) as error:
        gt.read(path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400
