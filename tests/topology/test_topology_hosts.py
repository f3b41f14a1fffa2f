"""Files of hosts under switches: Slurm's, topograph's, and lines of racks and hosts."""

import contextlib
import json
import time

import pytest

import gradweave as gw
from gradweave.errors import FileError, InputWarning, OptionError
from gradweave.topology.formats.files import read as read_file
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
    return read_file(path, host_links=HostLinks(**links) if links else None)


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
    names_root = text is not LINES
    with contextlib.nullcontext() if names_root else pytest.warns(InputWarning, match="s0, s1"):
        net = read(tmp_path, name, text)
    assert racks(net) == {"s0": {"tux0", "tux1"}, "s1": {"tux2", "tux3"}}
    assert net.labels[:4] == ("tux0", "tux1", "tux2", "tux3") and net.num_links == 6
    assert set(net.bandwidth_bytes_per_s.tolist()) == {12.5e9, 25e9}
    assert gw.ranks.optimize(net, "gloo", 1e6, runtime="ideal").gap < 0.05


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
    net = read(tmp_path, "topology.conf", BLOCK_CONF, oversubscription=1)
    assert racks(net) == {"b1": {"n01", "n02"}, "b2": {"n03", "n04"}}
    net = read(tmp_path, "topology.yaml", BLOCK_YAML, oversubscription=1)
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
        ("t.yaml", "- topology: a\n  flat: true\n", "expected a topology with tree, block"),
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
        ("t.hosts", "node1:4\nnode2 slot=4 what\n", "line 2: expected a rack"),
        ("t.hosts", "node1\nnode2 slots=4 what=5\n", "line 2: expected a host, as in node1"),
        ("t.txt", "node1 slots=4\n^node2\n", "line 2: expected a host, as in node1"),
        ("t.txt", "node[1-4\n", r"line 1: expected names such as tux\[0-3,12\],login1"),
        ("t.hosts", "node1\nnode[4-1]\n", "line 2: 'node.*: expected a range such as 0-3"),
        ("t.txt", "node1:4\n", "an all-reduce needs at least 2"),
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
    with pytest.warns(InputWarning, match="s0, s1, s2 and 97 more: one above them is assumed"):
        assert read(tmp_path, "u.conf", many).num_servers == 10_000
    assert time.process_time() - begun < 2


def test_options_for_hosts_are_refused_elsewhere(tmp_path):
    with pytest.raises(FileError, match="are for lists of hosts"):
        read(tmp_path, "a.edges", "a b\nb c\n", oversubscription=2)
    with pytest.raises(OptionError, match="oversubscription: expected a number of at least 1"):
        HostLinks(oversubscription=0.5)


def test_expressions_keep_order_and_zeros():
    assert hosts_of("b,a[2,00-01]c") == ["b", "a2c", "a00c", "a01c"]


OPEN_MPI = """\
# This is an example hostfile.  Comments begin with #
#
# The following node is a single processor machine:
foo.example.com

# The following node is a dual-processor machine:
bar.example.com slots=2

# The following node is a quad-processor machine, and we absolutely
# want to disallow over-subscribing it:
yow.example.com slots=4 max-slots=4
"""
OPEN_MPI_HOSTS = ("foo.example.com", "bar.example.com", "yow.example.com")
HYDRA = """\
 # This is a sample host file
 donner:2     # The first 2 procs are scheduled to run here
 foo:3        # The next 3 procs run on this host
 shakey:2     # The last 2 procs run on this host
"""


@pytest.mark.parametrize("name", ["a.txt", "a.hosts", "hostfile"])
@pytest.mark.parametrize(
    ("text", "hosts", "slots"),
    [
        (OPEN_MPI, OPEN_MPI_HOSTS, "yow.example.com has 4"),
        ("aa slots = 2 max_slots = 4\nbb // spare\nbb\nbb\n", ("aa", "bb"), "bb has 3"),
        ("me@aa port=22 cpus=1\nbb username=me\n", ("aa", "bb"), None),
        (HYDRA, ("donner", "foo", "shakey"), "foo has 3"),
        ("node1:4\nnode2:4\n", ("node1", "node2"), "node1 has 4"),
        ("a:1\nb:1\na:1\n", ("a", "b"), "a has 2"),
        ("host1:2 ifname=ib0\nhost2 binding=user:0,1\n", ("host1", "host2"), "host1 has 2"),
        ("tux[0-2,12],login1\n", ("tux0", "tux1", "tux2", "tux12", "login1"), None),
        ("10.0.0.7\n10.0.0.8\n", ("10.0.0.7", "10.0.0.8"), None),
        ("\ufeffcore\r\nn2\r\n", ("core", "n2"), None),
    ],
)
def test_hosts_as_launchers_list_them_are_on_one_switch(tmp_path, name, text, hosts, slots):
    with pytest.warns(InputWarning, match=f"all {len(hosts)} hosts are assumed") as warned:
        net = read(tmp_path, name, text)
    assert net.labels[:-1] == hosts and net.num_links == len(hosts)
    assert list(racks(net).values()) == [set(hosts)]
    (said,) = (str(one.message) for one in warned)
    assert (f"slots ({slots})" in said) if slots else ("slots" not in said)


@pytest.mark.parametrize(
    "text", ["r1:1\nr1:2\nr2:3\n", "r1:node1\nr2:2\n", "r1:1\nr2:node2\n", "p1:r1:1\np1:r2:2\n"]
)
def test_racks_of_numbered_hosts_are_no_slots(tmp_path, text: str):
    net = read(tmp_path, "a.hosts", text, oversubscription=1)
    assert len(racks(net)) == 2


def test_a_file_of_words_is_no_list_of_hosts(tmp_path):
    for text in ("Notes\nof this network\n", "", "# only a comment\n"):
        with pytest.raises(FileError, match="unknown kind of file"):
            read(tmp_path, "README", text)


FABRICS = "SwitchName=hallA Nodes=a[1-4]\nSwitchName=hallB Nodes=b[1-4]\n"
FABRICS_YAML = """\
- topology: ours
  tree:
    switches: [{switch: hallA, nodes: "a[1-4]"}, {switch: hallB, nodes: "b[1-4]"}]
"""
FABRICS_JSON = json.dumps(
    {"instances": [{"id": f"{h}{n}", "network_layers": [f"hall{h}"]} for h in "AB" for n in "1234"]}
)


@pytest.mark.parametrize(
    ("name", "text"),
    [("t.conf", FABRICS), ("t.yaml", FABRICS_YAML), ("t.json", FABRICS_JSON)],
)
def test_fabrics_without_a_common_switch_are_joined_with_a_warning(tmp_path, name, text):
    said = r"no switch joins hallA, hallB: one above .* 400 Gbit/s to each; name it in the file"
    with pytest.warns(InputWarning, match=said):
        assert len(racks(read(tmp_path, name, text))) == 2
    with pytest.warns(InputWarning, match="with 100 Gbit/s to each"):
        read(tmp_path, name, text, oversubscription=4)


def test_racks_are_joined_with_a_warning_unless_links_are_given(tmp_path):
    rows = "r1:a\nr1:b\nr2:c\n"
    with pytest.warns(InputWarning, match=r"joins r1, r2: .* 100 Gbit/s to 200 Gbit/s to each; --"):
        read(tmp_path, "a.hosts", rows)
    blocks = "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\n"
    with pytest.warns(InputWarning, match="joins b1, b2"):
        read(tmp_path, "t.conf", blocks)
    for name, text in (("a.hosts", rows), ("t.conf", blocks)):
        assert len(racks(read(tmp_path, name, text, oversubscription=2))) == 2
