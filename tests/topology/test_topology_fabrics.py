"""Fabrics by their cables: LLDP tables, labs of containerlab, ASTRA-sim and SNDlib."""

import json
from typing import Any

import pytest

import gradweave.topology as gt
from gradweave.errors import AssumedWarning, FileError, InputWarning
from gradweave.topology.formats.files import find

EOS = """\
leaf1#show lldp neighbors
Last table change time   : 0:00:02 ago
Number of table inserts  : 2

Port       Neighbor Device ID             Neighbor Port ID           TTL
---------- ------------------------ ---------------------- ---
Et1        node1.example.com              0c42.a1d2.0001             120
Et2        node2                          enp65s0f0                  120
Et49/1     spine1.example.com             Ethernet1/1                120
Et50/1     spine1.example.com             Ethernet2/1                120
Ma1        oob-7                          Ethernet7                  120
leaf1#exit
"""
NXOS = """\
admin@leaf2# show lldp neighbors
Capability codes:
  (R) Router, (B) Bridge, (T) Telephone, (C) DOCSIS Cable Device
  (W) WLAN Access Point, (P) Repeater, (S) Station, (O) Other
Device ID            Local Intf      Hold-time  Capability  Port ID
node1.example.com    Eth1/1          120                    mlx5_1
a-node-with-a-very-long-name-7
                     Eth1/2          120        S           eth0
spine1.example.com   Eth1/49         120        BR          Ethernet3/1
oob-7                mgmt0           120        B           Gi1/0/37
Total entries displayed: 4

"""
SPINE = """\
spine1# show lldp neighbors
Device ID            Local Intf      Hold-time  Capability  Port ID
leaf1                Eth1/1          120        BR          Ethernet49/1
leaf2                Eth3/1          120        BR          Ethernet1/49
"""
LAB = """\
name: lab01
topology:
  defaults: {kind: nokia_srlinux}
  groups: {clients: {kind: linux}}
  nodes:
    leaf1: {type: ixrd3}
    leaf2:
    h1: {kind: linux}
    h2: {group: clients}
    gnmic: {kind: linux}
  links:
    - endpoints: ["h1:eth1", "leaf1:e1-1"]
    - endpoints: ["leaf1:e1-49", "leaf2:e1-49"]
    - endpoints: ["leaf1:e1-50", "leaf2:e1-50"]
    - type: veth
      endpoints: [{node: h2, interface: eth1}, {node: leaf2, interface: e1-1}]
    - endpoints: ["leaf1:mgmt0", "host:br0"]
    - {type: dummy, endpoint: {node: leaf1, interface: e1-9}}
"""
ASTRA = """\
topology: [ Ring, FullyConnected, Switch ]  # per dimension
npus_count: [ 3, 2, 2 ]
bandwidth: [ 200.0, 100, 50.0 ]  # GB/s
latency: [ 50.0, 500, 2000.0 ]  # ns
"""
NATIVE = """\
?SNDlib native format; type: network; version: 1.0
# network small
META (
  unit  = MBITPERSEC
  origin  = somebody (once)
)
NODES (
  Aa ( 8.1 53.2 )
  Bb ( 9.1 -53.2 )
  Cc
)
LINKS (
  L1 ( Aa Bb ) 2500.00 0.00 0.00 1.00 ( 40000.00 133.00 )
  L2 ( Cc Bb ) 0.00 0.00 0.00 0.00 ( 622.00 10.00 155.00 4.00 )
)
DEMANDS (
  D1 ( Aa Cc ) 1 3580.00 UNLIMITED
)
"""
XML = """<?xml version="1.0" encoding="ISO-8859-1"?>
<network xmlns="http://sndlib.zib.de/network" version="1.0">
 <meta><unit>MBITPERSEC</unit></meta>
 <networkStructure>
  <nodes coordinatesType="geographical"><node id="Aa"/><node id="Bb"/><node id="Cc"/></nodes>
  <links>
   <link id="L1"><source>Aa</source><target>Bb</target>
    <preInstalledModule><capacity>2500.0</capacity><cost>0.0</cost></preInstalledModule>
    <additionalModules><addModule><capacity>40000</capacity></addModule></additionalModules></link>
   <link id="L2"><source>Cc</source><target>Bb</target><additionalModules>
    <addModule><capacity>622.0</capacity><cost>10</cost></addModule>
    <addModule><capacity>155.0</capacity><cost>4</cost></addModule></additionalModules></link>
  </links>
 </networkStructure>
</network>
"""


def write(tmp_path, text: str, name: str):
    path = tmp_path / name
    path.write_text(text)
    return path


def links(net) -> dict[tuple[str, str], float]:
    """Gbit/s by the labels of the ends, in alphabetical order."""
    ends = zip(net.source.tolist(), net.target.tolist(), strict=True)
    speeds = (net.bandwidth_bytes_per_s * 8e-9).tolist()
    named = (((net.labels[a], net.labels[b]), x) for (a, b), x in zip(ends, speeds, strict=True))
    return {pair: speed for pair, speed in named if pair[0] < pair[1]}


def pair(a: int, b: int) -> tuple[str, str]:
    return min(str(a), str(b)), max(str(a), str(b))


def test_tables_of_several_switches(tmp_path):
    """Cables that both ends list count once; management does not count; domains are dropped."""
    path = write(tmp_path, EOS + NXOS + SPINE, "neighbors.txt")
    with pytest.warns(AssumedWarning, match="no speed of 7 of 7 cables: assumed 100 Gbit/s"):
        net = gt.read(path)
    long = "a-node-with-a-very-long-name-7"
    assert find(path).format == "lldp" and set(net.labels[:3]) == {"node1", "node2", long}
    assert links(net) == {
        ("leaf1", "node1"): 100, ("leaf1", "node2"): 100, ("leaf2", "node1"): 100,
        (long, "leaf2"): 100, ("leaf1", "spine1"): 200, ("leaf2", "spine1"): 100,
    }  # fmt: skip
    link = gt.Link(bandwidth_bytes_per_s=50e9)
    assert links(gt.read(path, host_links=gt.HostLinks(link)))["leaf1", "node1"] == 400


def test_a_table_without_a_prompt_is_of_the_file(tmp_path):
    path = write(tmp_path, EOS.partition("\n")[2], "tor7.log")
    with pytest.warns(AssumedWarning):
        assert ("node1", "tor7") in links(gt.read(path))


def test_a_lab_of_containerlab(tmp_path):
    path = write(tmp_path, LAB, "lab.clab.yml")
    with (
        pytest.warns(AssumedWarning, match="no speed of 4 of 4 cables"),
        pytest.warns(InputWarning, match="1 node without a cable left out: gnmic"),
    ):
        net = gt.read(path)
    assert find(path).format == "containerlab" and net.labels[:2] == ("h1", "h2")
    assert links(net) == {("h1", "leaf1"): 100, ("h2", "leaf2"): 100, ("leaf1", "leaf2"): 200}


def test_a_network_of_astra_sim(tmp_path):
    path = write(tmp_path, ASTRA, "network.yml")
    net = gt.read(path)
    held, gib = links(net), 8 * 2**30 / 1e9
    assert find(path).format == "astra_sim" and net.num_servers == 12
    rings = {pair(3 * r + a, 3 * r + b) for r in range(4) for a, b in ((0, 1), (1, 2), (0, 2))}
    full = {pair(a + b, a + b + 3) for a in range(3) for b in (0, 6)}
    switch = {(str(npu), f"switch2-{npu % 6}") for npu in range(12)}
    assert held.keys() == rings | full | switch
    assert all(held[one] == pytest.approx(200 * gib) for one in rings)
    assert all(held[one] == pytest.approx(100 * gib) for one in full)
    assert all(held[one] == pytest.approx(50 * gib) for one in switch)
    assert sorted(set(net.latency_s.tolist())) == pytest.approx([50e-9, 500e-9, 2e-6])


NETQ: list[dict[str, Any]] = [
    {
        "nodes": [
            {"compounded_nodes": [{"id": "node0", "name": "leaf1", "tier": 1}]},
            {
                "compounded_nodes": [
                    {"id": f"node{n}", "name": f"dgx-{n}", "tier": -1} for n in (1, 2)
                ]
            },
        ],
        "links": [
            {
                "id": f"node0-*-node{n}",
                "compounded_links": [
                    {
                        "interfaces": [
                            {"node": "node0", "interface": f"swp{n}s{lane}"},
                            {"node": f"node{n}", "interface": f"eth{lane}"},
                        ]
                    }
                    for lane in range(n)
                ],
            }
            for n in (1, 2)
        ],
    }
]


def test_a_graph_of_netq(tmp_path):
    path = write(tmp_path, json.dumps(NETQ), "topology.json")
    with pytest.warns(AssumedWarning, match="no speed of 3 of 3 cables"):
        net = gt.read(path)
    assert find(path).format == "netq" and net.num_servers == 2
    assert links(net) == {("dgx-1", "leaf1"): 100, ("dgx-2", "leaf1"): 200}


def netq(*change: str) -> str:
    return json.dumps(NETQ).replace(*change)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (netq('"tier": -1', '"tier": 2'), "no hosts; nodes of tier -1 are hosts"),
        (netq('"tier": 1', '"tier": "1"'), r"nodes.0..compounded_nodes.0.: expected id, name"),
        (netq('"id": "node0"', '"id": 0'), r"nodes.0..compounded_nodes.0.: expected id, name"),
        (netq("dgx-2", "dgx-1"), "'dgx-1' is there twice"),
        (netq('"node": "node2"', '"node": "node7"'), "no node has the id 'node7'"),
        (
            netq('"interfaces"', '"interface"'),
            r"links.0..compounded_links.0.: interfaces: expected",
        ),
        (netq('"compounded_links"', '"more"'), r"links.0.: compounded_links: expected a list"),
        (netq(', {"node": "node1", "interface": "eth0"}', ""), "expected two interfaces, got 1"),
    ],
)
def test_broken_graphs_of_netq_are_one_line(tmp_path, text: str, message: str):
    with pytest.raises(FileError, match=message) as error:
        gt.read(write(tmp_path, text, "n.json"))
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize(("text", "name"), [(NATIVE, "n.txt"), (NATIVE, "n"), (XML, "n.xml")])
@pytest.mark.filterwarnings("ignore:.*no useful common unit")
def test_networks_of_sndlib(tmp_path, text: str, name: str):
    """A link has its installed capacity, or else its smallest module."""
    net = gt.read(write(tmp_path, text, name))
    assert net.labels == ("Aa", "Bb", "Cc") and find(tmp_path / name).format == "sndlib"
    assert links(net) == {("Aa", "Bb"): pytest.approx(2.5), ("Bb", "Cc"): pytest.approx(0.155)}
    unitless = write(tmp_path, text.replace("MBITPERSEC", "SOMETHING"), f"2{name}")
    with pytest.warns(AssumedWarning, match="no unit; it states no speed of 2 of 2"):
        assert set(links(gt.read(unitless)).values()) == {100}


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (EOS.replace("Et2 ", "Et2\x00"), "n.txt", "line 8: expected a neighbour"),
        (EOS.replace("enp65s0f0", ""), "n.txt", "line 8: expected a neighbour"),
        (EOS.replace("120", "1" * 5000), "n.txt", "line 7: expected a neighbour"),
        (SPINE, "n.txt", "no neighbour is a host"),
        (NXOS[: NXOS.index("node1")], "n.txt", "no neighbours; expected rows"),
        (NXOS.replace("spine1.example.com   ", "  "), "n.txt", "line 9: no device"),
        (LAB.replace("interface: e1-1}", "port: 1}"), "n.yml", "links.3.: expected endpoints"),
        (LAB.replace("leaf1:e1-1", "leaf9:e1-1"), "n.yml", "links.0.: no node is called 'leaf9'"),
        (LAB.replace("leaf1:e1-1", "leaf1"), "n.yml", r"links.0.: expected endpoints: .* 'leaf1'"),
        (LAB.replace("h1: {kind: linux}", "h1: [1]"), "n.yml", "nodes: h1: expected keys"),
        (LAB.replace("linux", "ceos"), "n.yml", "no hosts; nodes of kind linux"),
        (LAB.replace("{kind: nokia_srlinux}", "&a {kind: x}\n  b: *a"), "n.yml", "aliases"),
        (LAB.replace("- type: veth\n", "- 7\n    -"), "n.yml", "links.3.: expected endpoints"),
        (ASTRA.replace("200.0", "tbd"), "n.yml", "bandwidth: expected GB/s above 0, got 'tbd'"),
        (ASTRA.replace("200.0", "-1"), "n.yml", "bandwidth: expected GB/s above 0"),
        (ASTRA.replace("3, 2, 2", "3, 2"), "n.yml", "npus_count: expected a list with an entry"),
        (ASTRA.replace("3, 2, 2", "99999, 999, 9"), "n.yml", "more than .* NPUs"),
        (ASTRA.replace("3, 2, 2", "true, 2, 2"), "n.yml", "whole numbers from 2, got True"),
        (ASTRA.replace("Ring", "Moebius"), "n.yml", "topology: expected Ring, .* got 'Moebius'"),
        (ASTRA.replace("topology: [", "topology: #"), "n.yml", "topology: expected a list"),
        (ASTRA.replace("2000.0", "1e300"), "n.yml", "latency: expected nanoseconds"),
        (NATIVE[: NATIVE.index("  L2")], "n.txt", "the section LINKS is missing or does not end"),
        (NATIVE.replace("2500.00", "1e999"), "n.txt", "'L1': expected a number from 0"),
        (NATIVE.replace("2500.00", "much"), "n.txt", "'L1': expected a number, got 'much'"),
        (NATIVE.replace("( Cc Bb )", "( Dd Bb )"), "n.txt", "'L2': no node is called 'Dd'"),
        (NATIVE.replace("( Cc Bb )", "( Cc )"), "n.txt", "line 14: expected a link"),
        (NATIVE.replace("  Bb (", "  Aa ("), "n.txt", "'Aa' is listed twice"),
        (XML.replace("<target>Bb", "<target>Zz"), "n.xml", "'L1': no node is called 'Zz'"),
        (XML.replace("2500.0", "&a;"), "n.xml", "not well-formed"),
        (XML.replace("<network", "<!DOCTYPE n [<!ENTITY a 'b'>]><network"), "n.xml", "document t"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::gradweave.errors.InputWarning")
def test_broken_files_are_one_line(tmp_path, text: str, name: str, message: str):
    path = write(tmp_path, text, name)
    with pytest.raises(FileError, match=message) as error:
        gt.read(path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400
