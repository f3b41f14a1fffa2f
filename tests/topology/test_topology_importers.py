"""Files of NCCL, msccl-tools and SimAI: realistic ones, and broken ones."""

import json
import re
import time
import warnings
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

import gradweave as gw
import gradweave.topology as gt
from gradweave.bounds import least_seconds
from gradweave.errors import AssumedWarning, FileError, InputWarning
from gradweave.topology import Link
from gradweave.topology.formats.nccl_xml import topology_from_nccl_xml
from gradweave.topology.formats.simai import is_simai

DATA = Path(__file__).parent / "data"
SIMAI = DATA / "rail_16g_8gps_400Gbps_H100"
SAMPLES = sorted(path for path in DATA.iterdir() if "slow" not in path.name)


def bandwidth(net, a, b):
    """GB/s from the node labelled a to the node labelled b."""
    names = net.labels or tuple(map(str, range(net.num_nodes)))
    link = int(net.find_links(np.array(names.index(a)), np.array(names.index(b))))
    return net.bandwidth_bytes_per_s[link] / 1e9 if link >= 0 else 0.0


def load_text(tmp_path, text, name="net.xml", format=None):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return gt.read(tmp_path / name, format)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_samples_survive_saving(tmp_path, sample):
    net = gt.read(sample)
    assert net.name == str(sample)
    assert gt.from_spec(str(sample)).same_network(net)
    for suffix in (".json", ".graphml", ".edges"):
        gt.save(net, tmp_path / f"net{suffix}")
        read = gt.read(tmp_path / f"net{suffix}")
        assert read.same_network(net) and read.labels == net.labels


@pytest.mark.parametrize(
    ("sample", "machine"),
    [
        ("dgx1v.xml", gt.gpu_boxes("dgx1v")),
        (
            "mi250.xml",
            gt.gpu_boxes("mi250", link=Link(36e9, overhead_s=0.0)),
        ),  # as RCCL counts a link
        (
            "dgx_a100.xml",
            gt.gpu_boxes("a100", link=Link(240e9, overhead_s=0.0)),
        ),  # as NCCL counts twelve NVLinks
    ],
)
def test_the_links_of_gpus_are_those_of_the_machine(sample, machine):
    net = gt.read(DATA / sample, format="nccl_xml_nvlink_only")
    assert net.same_network(machine)
    assert net.labels[: net.num_servers] == tuple(f"gpu{i}" for i in range(net.num_servers))


def test_dgx1v_dump():
    net = gt.read(DATA / "dgx1v.xml")
    # Two processors and four PCIe switches; the cards lead nowhere and are left out.
    assert (net.num_servers, len(net.switches), net.num_links) == (8, 6, 16 + 8 + 4 + 1)
    assert bandwidth(net, "gpu0", "gpu3") == 40 and bandwidth(net, "gpu0", "gpu1") == 20
    assert bandwidth(net, "gpu0", "pci-0000:05:00.0") == 12  # 8 GT/s, 16 lanes
    assert bandwidth(net, "cpu0", "pci-0000:05:00.0") == 12
    assert bandwidth(net, "cpu0", "cpu1") == 6  # Broadwell
    assert sorted(set(net.capacity.tolist())) == [3, 6, 10, 20]  # units of 2 GB/s
    assert set(net.latency_s) == {Link().latency_s}


def test_dgx1v_dump_with_its_network():
    net = gt.read(DATA / "dgx1v.xml", format="nccl_xml_with_network")
    cards = [label for label in net.labels if label.startswith("nic-")]
    assert len(cards) == 4 and net.num_links == 29 + 2 * 4
    assert all(bandwidth(net, card, "fabric") == 12.5 for card in cards)  # 100 Gbit/s
    assert bandwidth(net, "pci-0000:05:00.0", "nic-0000:08:00.0") == 12


def test_dgx_a100_dump():
    net = gt.read(DATA / "dgx_a100.xml")
    # One switch for six NVSwitches, four PCIe switches, four of eight processors.
    assert (net.num_servers, len(net.switches)) == (8, 9)
    assert net.num_links == 8 + 8 + 4 + 4 * 3 // 2
    assert bandwidth(net, "gpu0", "nvswitch") == 240  # 6 × 2 × 20
    assert bandwidth(net, "gpu5", "nvswitch") == 240
    assert bandwidth(net, "gpu0", "pci-0000:01:00.0") == 24  # GPUs go by rank, not by place
    assert bandwidth(net, "cpu1", "cpu7") == 16  # Rome
    full = gt.read(DATA / "dgx_a100.xml", format="nccl_xml_with_network")
    assert sum(label.startswith("nic-") for label in full.labels) == 8
    assert full.num_links == net.num_links + 16


def test_mi250_dump():
    net = gt.read(DATA / "mi250.xml")
    # Four processors; under each a PCIe switch, two below it, and a bridge for each of the dies.
    assert (net.num_servers, len(net.switches)) == (16, 4 + 4 + 8 + 16)
    assert bandwidth(net, "gpu0", "gpu1") == 144 and bandwidth(net, "gpu0", "gpu4") == 72
    assert bandwidth(net, "gpu0", "pci-0000:4c:00.0") == 48  # 32 GT/s, 16 lanes
    assert bandwidth(net, "pci-0000:49:00.0", "pci-0000:4c:00.0") == 12  # 16 GT/s, 8 lanes
    assert nx.is_connected(gt.to_networkx(net).to_undirected())


def nccl(gpus, *, sm="90", numa="", cpu='arch="x86_64" vendor="GenuineIntel" modelid="143"'):
    """A host with one processor; the GPUs' own elements are given."""
    devices = "".join(
        f'<pci busid="0000:0{i}:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" '
        f'link_width="16"><gpu dev="{i}" sm="{sm}" rank="{i}">{inside}</gpu></pci>'
        for i, inside in enumerate(gpus)
    )
    return f'<system version="1"><cpu numaid="0{numa}" {cpu}>{devices}</cpu></system>'


NVSWITCH = '<nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>'


@pytest.mark.parametrize(
    ("sm", "gbytes"),
    [("60", 18), ("70", 20), ("80", 20), ("86", 12), ("90", 20.6), ("100", 40.1), ("107", 31.2)],
)
def test_nvlinks_have_the_speed_of_their_generation(tmp_path, sm, gbytes):
    net = load_text(tmp_path, nccl([NVSWITCH] * 4, sm=sm))
    assert bandwidth(net, "gpu2", "nvswitch") == pytest.approx(18 * gbytes)
    assert bandwidth(net, "gpu2", "cpu0") == 48


@pytest.mark.parametrize(
    ("gcn", "gbytes"), [("906", 24), ("910", 36), ("gfx90a", 36), ("gfx942", 48), ("950", 48)]
)
def test_infinity_fabric_has_the_speed_of_its_generation(tmp_path, gcn, gbytes):
    peer = '<xgmi target="0000:0{}:00.0" count="3" tclass="0x{}"/>'
    text = nccl([peer.format(1, "038000"), peer.format(0, "120000")])
    text = text.replace("sm=", f'gcn="{gcn}" sm=')
    assert bandwidth(load_text(tmp_path, text), "gpu0", "gpu1") == 3 * gbytes


@pytest.mark.parametrize(
    ("cpu", "gbytes"),
    [
        ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="79"', 6),
        ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85"', 10),
        ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"', 22),
        ('arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="207"', 40),
        ('arch="x86_64" vendor="AuthenticAMD" familyid="23" modelid="49"', 16),
        ('arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1"', 24),
        ('arch="x86_64" vendor="AuthenticAMD" familyid="26" modelid="1"', 32),
        ('arch="ppc64"', 32),
        ('arch="arm64"', 6),
    ],
)
def test_processors_are_linked_at_their_speed(tmp_path, cpu, gbytes):
    device = '<pci busid="0:{0}" link_speed="" link_width="0"><gpu dev="{0}" sm="80"/></pci>'
    cpus = "".join(f'<cpu numaid="{i}" {cpu}>{device.format(i)}</cpu>' for i in range(3))
    net = load_text(tmp_path, f"<system>{cpus}</system>")
    assert bandwidth(net, "cpu0", "cpu2") == bandwidth(net, "cpu2", "cpu1") == gbytes
    assert bandwidth(net, "gpu-0:1", "cpu1") == 12  # no rank: named by bus; no speed: 8 GT/s


def test_chip_to_chip_links_add_to_pcie(tmp_path):
    net = load_text(tmp_path, nccl([NVSWITCH + '<c2c bw="44712" count="5"/>'] * 2))
    assert bandwidth(net, "gpu0", "cpu0") == pytest.approx(48 + 223.56)


def two_hosts(arch: str) -> str:
    cpu = re.search("<cpu.*</cpu>", nccl([NVSWITCH] * 2, cpu=arch))[0]
    hosts = [cpu.replace("<cpu", f'<cpu host_hash="0x{i}"', 1) for i in range(2)]
    hosts[1] = hosts[1].replace('rank="0"', 'rank="2"').replace('rank="1"', 'rank="3"')
    return f"<system>{''.join(hosts)}</system>"


def test_hosts_of_a_rack_of_nvlink_share_the_nvswitches_and_nothing_else(tmp_path):
    net = load_text(tmp_path, two_hosts('arch="arm64"'))
    assert net.labels == ("gpu0", "gpu1", "gpu2", "gpu3", "cpu0", "host1/cpu0", "nvswitch")
    assert bandwidth(net, "cpu0", "host1/cpu0") == 0


def test_other_hosts_do_not_share_nvswitches(tmp_path):
    with pytest.raises(FileError, match="disconnected: server gpu2 cannot be reached"):
        load_text(tmp_path, two_hosts('arch="x86_64" vendor="GenuineIntel" modelid="143"'))


def test_hosts_that_nothing_else_joins_have_their_network_cards():
    """Each host has four cards of 100 Gbit/s: 1 GB leaves it at 50 GB/s in 20 ms."""
    net = gt.read(DATA / "two_hgx.xml")
    assert net.num_servers == 8 and {"nvswitch", "host1/nvswitch", "fabric"} <= set(net.labels)
    fabric = net.labels.index("fabric")
    assert net.bandwidth_bytes_per_s[net.target == fabric].tolist() == [12.5e9] * 8
    assert least_seconds(net, 1e9).seconds == pytest.approx(0.02, rel=1e-3)


def test_a_processor_without_gpus_is_no_detour():
    two, three = (gt.read(DATA / f"{name}.xml") for name in ("two_cpus", "third_cpu"))
    assert three.same_network(two) and three.labels == two.labels
    assert least_seconds(three, 1e9).seconds == pytest.approx(1 / 6, rel=1e-3)
    full = gt.read(DATA / "third_cpu.xml", "nccl_xml_with_network")
    assert full.same_network(two)  # its only card leads nowhere


@pytest.mark.parametrize("name", ["slow", "slow2"])
def test_an_idle_slow_bridge_does_not_matter(name):
    """NVLink carries a gigabyte in 2.7 ms; the rings of both are the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        slow, fast = gt.read(DATA / f"{name}.xml"), gt.read(DATA / "fast.xml")
    rings = [gw.ranks.optimize(net, "gloo", 1e9, runtime="ideal").seconds for net in (slow, fast)]
    assert rings[0] == pytest.approx(rings[1]) == pytest.approx(1 / 370.8, rel=1e-2)
    assert least_seconds(slow, 1e9).seconds == pytest.approx(1 / 371, rel=1e-3)


def test_what_nccl_passes_over_is_passed_over(tmp_path):
    nic = (
        '<nic><net name="a" dev="0" speed="-1"/><net name="b" speed="5"/>'
        '<net name="c" dev="1" net="0" speed="9"/></nic>'
    )
    gone = '<nvlink target="0000:99:00.0" count="2" tclass="0x030200"/>'
    own = '<nvlink target="0000:00:00.0" count="2" tclass="0x030200"/>'
    text = nccl([NVSWITCH + gone + own, NVSWITCH + gone]).replace("</cpu>", nic + "</cpu>")
    net = load_text(tmp_path, text, format="nccl_xml_with_network")
    assert "fabric" not in net.labels  # one card leads nowhere


def test_network_latency_is_in_microseconds_and_speeds_default(tmp_path):
    cards = "".join(
        f'<cpu numaid="{i}" arch="arm64"><pci busid="1:{i}"><gpu dev="{i}" sm="90"/></pci>'
        f'<nic><net dev="{i}" speed="-1" latency="2.5"/></nic></cpu>'
        for i in range(2)
    )
    net = load_text(tmp_path, f"<system>{cards}</system>", format="nccl_xml_with_network")
    assert bandwidth(net, "cpu0", "fabric") == 1.25  # unknown: 10 Gbit/s
    assert net.latency_s.max() == pytest.approx(3.5e-6)


def test_a_file_for_virtual_machines_has_devices_instead_of_gpus(tmp_path):
    """As Azure and AWS write them for NCCL_TOPO_FILE: two switches, with a GPU and a card each."""
    pair = (
        '<pci busid="ff:0{i}" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">'
        '<pci busid="1:0{i}" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>'
        '<pci busid="2:0{i}" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"/></pci>'
    )
    inside = "".join(pair.format(i=i) for i in range(2))
    cpu = f'<cpu numaid="0" arch="x86_64" vendor="GenuineIntel">{inside}</cpu>'
    with pytest.warns(AssumedWarning, match="2 devices of class 0x030200 taken for GPUs, without"):
        net = load_text(tmp_path, f"<system>{cpu}</system>")
    assert (net.num_servers, net.num_links) == (2, 4)
    with pytest.raises(FileError, match="no gpu element"):
        load_text(tmp_path, f"<system>{cpu.replace('0x0302', '0x0108')}</system>")


BOMB = '<!DOCTYPE s [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]><system>&b;</system>'
GOOD = nccl([NVSWITCH] * 2)


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        (BOMB, "document type"),
        ("", "not well-formed XML"),
        (b"\xff\xfe\x00", "not well-formed XML"),
        ("<algo name='x'/>", "expected a system element, as NCCL_TOPO_DUMP_FILE"),
        ("<graphs/>", "expected a system element"),
        ("<system/>", "no gpu element"),
        ("<system><cpu/></system>", "cpu: numaid is missing"),
        (GOOD.replace('numaid="0"', 'numaid="&#10;"'), "cpu: numaid must be a short word"),
        (GOOD.replace('busid="0000:01:00.0" ', ""), "pci: busid is missing"),
        (GOOD.replace("0000:01", "0000:00"), "pci 0000:00:00.0: busid is given twice"),
        (GOOD.replace('link_width="16"', 'link_width="x"'), "link_width must be a whole number"),
        (GOOD.replace("32.0 GT/s", "fast"), "pci 0000:00:00.0: link_speed must be such as"),
        (GOOD.replace("32.0 GT/s", "7 GT/s"), "link_speed must be such as"),
        (GOOD.replace('count="18"', 'count="0"'), "nvlink of gpu-0000:00:00.0: count must be"),
        (GOOD.replace('count="18"', 'count="1e9"'), "count must be a whole number"),
        (GOOD.replace('count="18"', 'count="99999999999"'), "count must be a whole number"),
        (GOOD.replace('count="18"', ""), "nvlink of gpu-0000:00:00.0: count is missing"),
        (GOOD.replace('tclass="0x068000"', 'tclass="0x02"'), "tclass must be 0x03"),
        (GOOD.replace('tclass="0x068000"', ""), "tclass is missing"),
        (GOOD.replace("target=", "to="), "target is missing"),
        (GOOD.replace('sm="90"', ""), "gpu-0000:00:00.0: sm is missing"),
        (GOOD.replace('rank="1"', 'rank="0"'), "two have the same rank"),
        (GOOD.replace("</gpu></pci>", "</gpu><gpu/></pci>", 1), "2 gpu elements"),
        (GOOD.replace("</cpu>", '</cpu><cpu numaid="0"/>'), "cpu0: numaid is given twice"),
        (GOOD.replace("0x068000", "0x030200").replace("fffffff:ff:ff.0", "0000:01:00.0"), "no opp"),
        (nccl([NVSWITCH]), "1 server"),
        (
            nccl(['<nvlink target="0000:01:00.0" count="1" tclass="0x030200"/>', ""]),
            "gpu0→gpu1: has no opposite direction",
        ),
        ("<system>" + '<cpu numaid="{}"/>' * 3 + "</system>", "given twice"),
        (
            "<system>"
            + "".join(f'<cpu numaid="{i}" host_hash="{i % 99}"/>' for i in range(5000))
            + "</system>",
            "more than 1024 cpu elements",
        ),
        (
            "<system>" + "".join(f'<cpu numaid="{i}"/>' for i in range(200)) + "</system>",
            "more than 128 cpu elements of a host",
        ),
    ],
)
def test_broken_xml_is_named_in_one_line(tmp_path, text, culprit):
    with pytest.raises(FileError) as caught:
        load_text(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "net.xml"))
    assert culprit in message
    assert message.isprintable() and len(message) < 400


def test_disconnected_without_pcie(tmp_path):
    with pytest.raises(
        FileError, match="disconnected: server gpu1 cannot be reached from server gpu0"
    ):
        load_text(tmp_path, nccl(["", ""]), format="nccl_xml_nvlink_only")
    assert load_text(tmp_path, nccl(["", ""])).num_links == 2


def test_deep_nesting_is_no_trouble(tmp_path):
    depth = 3000
    opening = "".join(f'<pci busid="{i}">' for i in range(depth))
    gpus = "".join(f'<pci busid="g{i}"><gpu dev="{i}" sm="80" rank="{i}"/></pci>' for i in (0, 1))
    text = f'<system><cpu numaid="0">{opening}{gpus}{"</pci>" * depth}</cpu></system>'
    net = load_text(tmp_path, text)
    assert (net.num_servers, net.num_links) == (2, 2)  # the chain above serves nobody


def test_xml_may_be_graphml(tmp_path):
    gt.save(gt.ring(4), tmp_path / "net.graphml")
    text = (tmp_path / "net.graphml").read_text()
    assert load_text(tmp_path, text).same_network(gt.ring(4))
    with pytest.raises(FileError, match="unknown kind of file"):
        gt.save(gt.ring(4), tmp_path / "out.xml")
    with pytest.raises(FileError, match="unknown format 'simai'; known are graphml, json, yaml"):
        gt.save(gt.ring(4), tmp_path / "out", format="simai")


def test_the_reader_can_be_called():
    content = (DATA / "dgx1v.xml").read_bytes()
    net = topology_from_nccl_xml(content, "box", pcie=False)
    assert net.name == "box" and net.same_network(gt.gpu_boxes("dgx1v"))


def test_msccl_links_are_target_by_source():
    net = gt.read(DATA / "dgx1.msccl.json")
    reference = gt.gpu_boxes("dgx1v", link=Link())
    match = nx.algorithms.isomorphism.numerical_edge_match("capacity", 0)
    assert nx.is_isomorphic(gt.to_networkx(net), gt.to_networkx(reference), edge_match=match)
    assert set(net.bandwidth_bytes_per_s / net.capacity) == {Link().bandwidth_bytes_per_s}


def msccl(links, switches=(), **more):
    return json.dumps({"msccl_type": "topology", "links": links, "switches": switches, **more})


def test_msccl_directions_may_differ(tmp_path):
    net = load_text(tmp_path, msccl([[0, 3], [1, 0]]), "net.json")
    assert net.source.tolist() == [0, 1]
    assert net.capacity.tolist() == [1, 3]  # links[0][1] is from 1 to 0


def test_msccl_hub_and_spoke_is_a_star():
    assert gt.read(DATA / "hub_and_spoke.msccl.json").same_network(gt.star(6))


def test_msccl_hubs_and_direct_links_together(tmp_path):
    """Two hubs of three nodes with ports of two, and one direct link between them."""
    links = [[0 if i == j or i // 3 != j // 3 else 2 for i in range(6)] for j in range(6)]
    links[0][3] = links[3][0] = 1
    switches = []
    for i in range(6):
        others = [j for j in range(i // 3 * 3, i // 3 * 3 + 3) if j != i]
        switches += [[[i], others, 2, "out"], [others, [i], 2, "in"]]
    net = load_text(tmp_path, msccl(links, switches), "net.json")
    assert (net.num_servers, len(net.switches), net.num_links) == (6, 2, 7)
    assert net.capacity[net.source >= 6].tolist() == [2] * 6
    assert net.capacity[net.find_links(np.array(0), np.array(3))] == 1


def test_msccl_limits_that_never_bind_are_dropped(tmp_path):
    ring = [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
    net = load_text(tmp_path, msccl(ring, [[[0], [1, 2], 2, "wide"]]), "net.json")
    assert net.same_network(gt.ring(3))


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ('{"msccl_type": "algorithm", "name": "x"}', "msccl_type: expected topology"),
        ('{"msccl_type": "topology"}', "links: expected a list"),
        (msccl(3), "links: expected a list"),
        (msccl([[0, 1], [1]]), "links[1]: expected a row of 2 numbers"),
        (msccl([[0, 1], "ab"]), "links[1]: expected a row"),
        (msccl([[0, 1], [-1, 0]]), "links[1][0]: expected a whole number from 0"),
        (msccl([[0, 1], [0.5, 0]]), "links[1][0]: expected a whole number"),
        (msccl([[0, 1], [True, 0]]), "links[1][0]: expected a whole number"),
        (msccl([[0, 1], [10**30, 0]]), "links[1][0]: expected a whole number"),
        (msccl([[0, 1], [None, 0]]), "links[1][0]: expected a whole number"),
        (msccl([[1, 1], [1, 0]]), "links[0][0]: joins a node to itself"),
        (msccl([[0, 0], [0, 0]]), "disconnected"),
        (msccl([[0, 1], [0, 0]]), "no opposite direction"),
        (msccl([]), "0 servers"),
        (msccl([[0, 2], [2, 0]], {}), "switches: expected a list"),
        (msccl([[0, 2], [2, 0]], [[[0], [1], 1]]), "switches[0]: expected [sources, targets"),
        (msccl([[0, 2], [2, 0]], [[[], [1], 1, "s"]]), "switches[0][0]: expected a list of nodes"),
        (msccl([[0, 2], [2, 0]], [[[0], [7], 1, "s"]]), "switches[0][1]: expected nodes from 0"),
        (msccl([[0, 2], [2, 0]], [[[0], [1], 0, "s"]]), "switches[0][2]: expected a whole number"),
        (
            msccl([[0, 2], [2, 0]], [[[0], [1], 1, "s"]] * 2),
            "switches[1] ('s'): node 0 is limited twice",
        ),
        (
            msccl([[0, 1, 1], [1, 0, 0], [1, 0, 0]], [[[0], [1, 2], 1, "to_points"]]),
            "links[2][1]: the switches make nodes 0, 1, 2 a hub",
        ),
        (
            msccl(
                [[0, 1, 1], [1, 0, 1], [1, 1, 0]], [[[0, 1], [2], 1, "a"], [[0, 1], [1, 2], 1, "b"]]
            ),
            "switches[1] ('b'): limits several nodes together",
        ),
    ],
)
def test_broken_msccl_is_named_in_one_line(tmp_path, text, culprit):
    with pytest.raises(FileError) as caught:
        load_text(tmp_path, text, "net.json")
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "net.json")) and culprit in message
    assert message.isprintable() and len(message) < 400


@pytest.mark.parametrize(
    ("nodes", "listed"), [(8, "0, 1, 2, 3, 4, 5, 6, 7"), (9, "0, 1, 2, 3, 4, 5, 6, 7, …")]
)
def test_a_large_hub_that_cannot_be_is_named_by_its_first_nodes(tmp_path, nodes, listed):
    spokes = [[int((a == 0) != (b == 0)) for a in range(nodes)] for b in range(nodes)]
    text = msccl(spokes, [[[0], list(range(1, nodes)), 1, "to_points"]])
    with pytest.raises(FileError, match=f"make nodes {listed} a hub"):
        load_text(tmp_path, text, "net.json")


def test_msccl_by_format(tmp_path):
    plain = '{"name": "line", "links": [[0, 1], [1, 0]]}'
    assert load_text(tmp_path, plain, "net.json", "msccl_json").num_links == 1
    with pytest.raises(FileError, match="expected nodes and links"):
        load_text(tmp_path, plain, "net.json")
    with pytest.raises(FileError, match="expected an object with links"):
        load_text(tmp_path, "[]", "net.json", "msccl_json")
    inside = json.dumps(
        {"msccl_type": "algorithm", "topology": json.loads(msccl([[0, 1], [1, 0]]))}
    )
    assert load_text(tmp_path, inside, "net.json").num_links == 1


def test_simai_two_boxes():
    net = gt.read(SIMAI)
    assert (net.num_servers, len(net.switches), net.num_links, net.labels) == (16, 12, 48, ())
    assert net.switches.tolist() == list(range(16, 28))
    assert bandwidth(net, "0", "16") == 360 and bandwidth(net, "9", "19") == 50
    assert sorted(set(net.capacity.tolist())) == [5, 36]  # units of 10 GB/s
    nvlink = net.find_links(np.array(3), np.array(16))
    assert net.latency_s[nvlink] == 25e-9 and net.latency_s.max() == 5e-7
    graph = gt.to_networkx(net).to_undirected()
    assert sorted(graph[18]) == [0, 8, 26, 27]


def test_simai_is_told_by_its_first_line(tmp_path):
    text = SIMAI.read_text()
    for name in ("net.txt", "net.edges", "net", "net.topo"):
        assert load_text(tmp_path, text, name).same_network(gt.read(SIMAI))
    assert load_text(tmp_path, "\ufeff" + text, "net.txt").num_servers == 16
    assert (
        not is_simai("")
        and not is_simai("34 18 96")
        and not is_simai("34 1 96\n40\n")
        and not is_simai("1 2 3 4 5")
    )
    assert is_simai("34 8 2 16 96 H20\n") and is_simai("34 8 2 16 96 H20 8\r\n0")
    with pytest.raises(FileError, match="unknown kind of file"):
        load_text(tmp_path, "a b\n", "net.topo")


def test_ns3_text_has_three_numbers(tmp_path):
    text = "4 1 3\n3\n0 3 100Gbps 1000ns 0.000000\n1 3 100Gbps 1us 0\n2 3 100Gbps 0.001ms\n"
    net = load_text(tmp_path, text, "net.txt", "simai")
    for name in ("told.txt", "told.edges", "told", "told.topo"):
        assert load_text(tmp_path, text, name).same_network(net)
    # Three nodes in a line, as an edge list: too many lines for ns-3's one link.
    assert load_text(tmp_path, "3 1\n1 2\n", "line.txt").num_servers == 3
    assert net.same_network(gt.star(3))


def test_simai_switches_may_be_on_two_lines_and_links_parallel(tmp_path):
    text = "5 2 1 1 6 H100 2\n3\n4\n" + "".join(
        f"{i} {s} {bw} 1us 0\n" for i in range(3) for s, bw in ((3, "400Gbps"), (4, "100Gbps"))
    )
    net = load_text(tmp_path, text, "net.txt")
    assert (net.num_servers, len(net.switches)) == (3, 2)
    doubled = text.replace(" 6 H100", " 7 H100") + "0 4 100Gbps 1us 0\n"
    net = load_text(tmp_path, doubled, "net.txt")
    assert net.num_links == 6 and net.capacity[net.find_links(np.array(0), np.array(4))] == 2


HEAD = "4 2 1 0 3 A100\n"
LINKS = "0 3 8Gbps 1us 0\n1 3 8Gbps 1us 0\n2 3 8Gbps 1us 0\n"


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("", "line 1: expected nodes, GPUs per server"),
        ("4 2 1 0 3\n", "line 1: expected nodes"),
        ("4 2 1 0 3 A100 x\n", "line 1: expected nodes"),
        ("x y z\n", "line 1: expected nodes"),
        ("9" * 4000, "line 1: expected nodes"),
        ("999999999 2 1 0 3 A100\n3\n", "line 1: 999999999 nodes; at most"),
        (HEAD, "line 2: expected the ids of 1 switch, got 0"),
        (HEAD + "7\n" + LINKS, "line 2: expected a node id from 0 to 3, got '7'"),
        (HEAD + "3 3\n" + LINKS, "line 2: expected the ids of 1 switch, got 2"),
        (HEAD + "3\n" + LINKS[:-17], "line 1: announces 3 links, but 2 lines of links follow"),
        (HEAD + "3\n" + LINKS + LINKS, "line 1: announces 3 links, but 6"),
        (HEAD + "3\n" + LINKS.replace("2 3", "2 8"), "line 5: expected a node id from 0 to 3"),
        (HEAD + "3\n" + LINKS.replace("2 3", "2 -1"), "line 5: expected a node id"),
        (HEAD + "3\n" + LINKS.replace("2 3 8Gbps", "2 8Gbps"), "line 5: expected a node id"),
        (HEAD + "3\n" + LINKS.replace("1us 0\n1", "1us 0 0\n1"), "line 3: expected source"),
        (HEAD + "3\n" + LINKS.replace("2 3 8Gbps", "2 3 fast"), "link 2→3: bandwidth 'fast'"),
        (HEAD + "3\n" + LINKS.replace("8Gbps 1us 0\n1", "8Gbps -1us 0\n1"), "latency '-1us'"),
        (HEAD + "3\n" + LINKS.replace("2 3", "1 3"), "disconnected"),
    ],
)
def test_broken_simai_is_named_in_one_line(tmp_path, text, culprit):
    with pytest.raises(FileError) as caught:
        load_text(tmp_path, text, "net", "simai")
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "net")) and culprit in message
    assert message.isprintable() and len(message) < 400


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_every_truncation_is_refused_or_a_network(tmp_path, sample):
    whole = sample.read_bytes()
    path = tmp_path / sample.name
    for end in range(0, len(whole), max(1, len(whole) // 50)):
        path.write_bytes(whole[:end])
        try:
            gt.read(path)
        except FileError as error:
            assert str(error).isprintable()


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.name)
def test_damaged_samples_are_refused_or_networks(tmp_path, sample):
    """Random bytes of each file replaced."""
    random = np.random.default_rng(0)
    path = tmp_path / sample.name
    for _ in range(60):
        damaged = bytearray(sample.read_bytes())
        for place in random.integers(len(damaged), size=3):
            damaged[place] = random.choice(list(b'0129<>/"={}[], \n\xff-x'))
        path.write_bytes(bytes(damaged))
        try:
            gt.read(path)
        except FileError as error:
            assert str(error).isprintable()


def test_large_files_are_read_quickly(tmp_path):
    n = 2000
    rows = "".join(f"{i} {n} 100Gbps 1us 0\n" for i in range(n))
    started = time.process_time()
    assert load_text(tmp_path, f"{n + 1} 8 0 1 {n} H100\n{n}\n{rows}", "net.txt").num_links == n
    assert time.process_time() - started < 5
