"""Files of hosts under switches: Slurm's, topograph's, and lines of racks and hosts."""

import json
import time

import pytest

import gradweave as gw
from gradweave.errors import FileError, OptionError
from gradweave.topology.formats.host_tree import HostLinks
from gradweave.topology.formats.hostlist import hosts_of

TREE_CONF = """\
# two leaves under a root
SwitchName=s0 Nodes=tux[0-1] LinkSpeed=100
switchname=s1 nodes=tux[2-3]
SwitchName=root \\
    Switches=s[0-1]
"""
BLOCK_CONF = "BlockName=b1 Nodes=n[01-02]\nBlockName=b2 Nodes=n[03-04]\nBlockSizes=2,4\n"
TREE_YAML = """\
- topology: flat-one
  flat: true
- topology: other
  block: {block_sizes: [2], blocks: [{block: b, nodes: x}]}
- topology: ours
  cluster_default: true
  tree:
    switches:
      - {switch: root, children: "s[0-1]"}
      - {switch: s0, nodes: "tux[0-1]"}
      - {switch: s1, nodes: "tux[2-3]"}
"""
BLOCK_YAML = """\
- topology: blocks
  block:
    block_sizes: [2, 4]
    blocks:
      - {block: b1, nodes: "n[01-02]"}
      - {block: b2, nodes: "n[03-04]"}
      - {block: b3, nodes: "n[05-06]"}
"""
TOPOGRAPH = json.dumps(
    {
        "instances": [
            {"id": f"tux{n}", "type": "H100", "network_layers": [f"s{n // 2}", "root"]}
            for n in range(4)
        ]
    }
)
LINES = "# rack:host\ns0:tux0\ns0:tux1  # a comment\n\ns1:tux2\ns1:tux3\n"


def read(tmp_path, name: str, text: str, **links) -> gw.Topology:
    path = tmp_path / name
    path.write_text(text)
    return gw.topology.load(path, host_links=HostLinks(**links) if links else None)


def racks(net: gw.Topology) -> dict[str, set[str]]:
    """Hosts of each switch."""
    found: dict[str, set[str]] = {}
    for a, b in zip(net.source.tolist(), net.target.tolist(), strict=True):
        if net.is_server[a]:
            found.setdefault(net.labels[b], set()).add(net.labels[a])
    return found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("topology.conf", TREE_CONF),
        ("topology.yaml", TREE_YAML),
        ("found.json", TOPOGRAPH),
        ("ours.hosts", LINES),
        ("ours.txt", LINES),
    ],
)
def test_each_says_the_same_network(tmp_path, name: str, text: str):
    net = read(tmp_path, name, text)
    assert racks(net) == {"s0": {"tux0", "tux1"}, "s1": {"tux2", "tux3"}}
    assert net.labels[:4] == ("tux0", "tux1", "tux2", "tux3") and net.num_links == 6
    assert set(net.bandwidth_bytes_per_s.tolist()) == {12.5e9, 25e9}
    assert gw.order(net, "gloo", 1e6, runtime="ideal").gap < 0.05


def test_bandwidths_are_those_asked_for(tmp_path):
    link = gw.topology.Link(bandwidth_bytes_per_s=1e9)
    net = read(tmp_path, "a.hosts", LINES, link=link, oversubscription=4)
    assert set(net.bandwidth_bytes_per_s.tolist()) == {1e9, 0.5e9}
    deep = "p1:r1:a\np1:r1:b\np1:r2:c\np2:r1:d\n"
    net = read(tmp_path, "b.hosts", deep, link=link, oversubscription=2)
    assert racks(net) == {"p1:r1": {"a", "b"}, "p1:r2": {"c"}, "p2:r1": {"d"}}
    up = net.find_links(net.labels.index("p1"), net.labels.index("core"))
    assert net.bandwidth_bytes_per_s[int(up)] == 0.75e9  # (2/2 + 1/2) / 2


def test_blocks_become_larger_ones(tmp_path):
    net = read(tmp_path, "topology.conf", BLOCK_CONF)
    assert racks(net) == {"b1": {"n01", "n02"}, "b2": {"n03", "n04"}}
    net = read(tmp_path, "topology.yaml", BLOCK_YAML)
    assert set(net.labels[6:]) == {"b1", "b2", "b3", "b1..b2", "b3..", "core"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.conf", "", "no switches and no blocks"),
        ("t.conf", "SwitchName=a Nodes=b[", r"line 1: expected names such as tux\[0-3,12\]"),
        ("t.conf", "SwitchName=a Nodes=b[3-1]", "line 1: 'b.*: expected a range such as 0-3"),
        ("t.conf", "SwitchName=a Nodes=b[0-999999]", "more than 65,536 hosts"),
        ("t.conf", "SwitchName=a Nodes=b[0-999][0-999]", "more than 65,536 hosts"),
        ("t.conf", "\nSwitchName=a Nods=b", "line 2: unknown key 'Nods'; did you mean nodes"),
        ("t.conf", "SwitchName=a", "line 1: expected SwitchName=… with Nodes"),
        ("t.conf", "Nodes=a", "line 1: expected SwitchName"),
        ("t.conf", "what is this", "line 1: expected Key=value, got 'what'"),
        ("t.conf", "SwitchName=a Nodes=b Nodes=c", "Nodes is given twice"),
        ("t.conf", "SwitchName=a Nodes=b,c\nSwitchName=a Nodes=d", "line 2: switch 'a' has an"),
        ("t.conf", "SwitchName=a Nodes=b,c\nSwitchName=d Nodes=b", "line 2: host 'b' is on 'a'"),
        ("t.conf", "SwitchName=a Switches=b", "line 1: switch 'b' has no entry of its own"),
        ("t.conf", "SwitchName=a Switches=b\nSwitchName=b Switches=a", "no hosts"),
        (
            "t.conf",
            "SwitchName=a Switches=b\nSwitchName=b Switches=a\nSwitchName=c Nodes=d,e",
            "is above itself",
        ),
        ("t.conf", "SwitchName=a Nodes=a,b", "'a' is a host and a switch"),
        ("t.conf", "SwitchName=a Nodes=b", "an all-reduce needs at least 2"),
        ("t.conf", "SwitchName=a Nodes=b,c\nBlockName=d Nodes=e", "line 2: a block beside switch"),
        ("t.conf", "BlockName=d Nodes=e,f\nBlockSizes=0", "line 2: expected sizes of blocks"),
        ("t.conf", "BlockName=d Nodes=e,f\nBlockSizes=4,6", "each a multiple of the one before"),
        ("t.yaml", "- topology: a\n  flat: true\n", "expected a topology with tree or block"),
        ("t.yaml", "- topology: a\n  tree: {switches: 3}\n", "topology a: switches: expected a"),
        ("t.yaml", "- topology: a\n  tree: {switches: [3]}\n", r"switches\[0\]: expected keys"),
        ("t.yaml", "- topology: a\n  tree: {switches: [{switch: s}]}\n", "expected switch and"),
        ("t.yaml", "- topology: a\n  block: {blocks: [{block: [s]}]}\n", "block: expected text"),
        ("t.json", '{"instances": []}', "at least twice, got none"),
        ("t.json", '{"instances": [{"id": 3}]}', r"instances\[0\]: expected"),
        ("t.json", '{"instances": [{"id": "a", "network_layers": []}]}', "network_layers: expect"),
        (
            "t.json",
            '{"instances": [{"id": "a", "network_layers": ["s", "t"]}, '
            '{"id": "b", "network_layers": ["s", "u"]}]}',
            r"instances\[1\]: switch 's' is under 't' and 'u'",
        ),
        ("t.hosts", "# nothing\n", "no hosts; expected a rack and a host"),
        ("t.hosts", "r1:a\nr1 b\n", "line 2: expected a rack and a host, as in rack1:node7, got"),
        ("t.hosts", "r1:a\nr2:a\n", "line 2: host 'a' is on line 1 already"),
        ("t.hosts", f"{'r:' * 20}a\n", "at most 16 levels"),
    ],
)
def test_malformed_files_are_refused_in_one_line(tmp_path, name: str, text: str, message: str):
    with pytest.raises((FileError, gw.errors.TopologyError), match=message) as raised:
        read(tmp_path, name, text)
    said = str(raised.value)
    assert said.startswith(str(tmp_path / name)) and said.isprintable() and len(said) < 400


def test_long_chains_and_many_hosts_take_no_time(tmp_path):
    chain = "".join(f"SwitchName=s{n} Switches=s{n + 1}\n" for n in range(3000))
    begun = time.process_time()
    with pytest.raises(FileError, match="has 16 above it"):
        read(tmp_path, "t.conf", chain + "SwitchName=s3000 Nodes=a,b\n")
    many = "".join(f"SwitchName=s{n} Nodes=h{n}n[0-99]\n" for n in range(100))
    assert read(tmp_path, "u.conf", many).num_servers == 10_000
    assert time.process_time() - begun < 2


def test_options_for_hosts_are_refused_elsewhere(tmp_path):
    with pytest.raises(FileError, match="are for lists of hosts"):
        read(tmp_path, "a.edges", "a b\nb c\n", oversubscription=2)
    with pytest.raises(OptionError, match="oversubscription: expected a number of at least 1"):
        HostLinks(oversubscription=0.5)


def test_expressions_keep_order_and_zeros():
    assert hosts_of("b,a[2,00-01]c") == ["b", "a2c", "a00c", "a01c"]
