"""Insides of hosts joined with a fabric, and what stands out in a network."""

import contextlib
import warnings

import pytest

import gradweave as gw
import gradweave.topology as gt
from gradweave.errors import AssumedWarning, FileError, InputWarning
from gradweave.schedules.kinds import is_schedule_file
from gradweave.topology.formats.files import parts_of, read_together
from gradweave.topology.oddities import oddities

BOX = """\
\tGPU0\tGPU1\tGPU2\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tNV12\tPIX\tSYS\tSYS\t0-31\t0
GPU1\tNV12\t X \tNV12\tSYS\tPIX\tNODE\t32-63\t1
GPU2\tNV12\tNV12\t X \tSYS\tNODE\tNODE\t32-63\t1
NIC0\tPIX\tSYS\tSYS\t X \tSYS\tSYS
NIC1\tSYS\tPIX\tNODE\tSYS\t X \tNODE
NIC2\tSYS\tNODE\tNODE\tSYS\tNODE\t X

NIC Legend:
  NIC0: mlx5_0
  NIC1: mlx5_1
  NIC2: mlx5_2
"""
TREE = "r1:node1\nr1:node2\nr2:node3\n"
FABRIC = """\
Switch\t40 "S-00000000000000a1"\t# "leaf1" enhanced port 0 lid 7 lmc 0
[1]\t"H-00000000000000c1"[1](c1) \t# "node1 mlx5_2" lid 9 4xNDR
[2]\t"H-00000000000000c2"[1](c2) \t# "node1 mlx5_0" lid 9 4xHDR
[3]\t"H-00000000000000c3"[1](c3) \t# "node2.example.com mlx5_2" lid 9 4xNDR
"""


def write(tmp_path, **files: str) -> list[str]:
    """The paths of files by their stems; the suffix is .out."""
    for stem, text in files.items():
        (tmp_path / f"{stem}.out").write_text(text)
    return [str(tmp_path / f"{stem}.out") for stem in files]


def links(net) -> dict[tuple[str, str], float]:
    """GB/s by the labels of the ends, in one order."""
    ends = zip(net.source.tolist(), net.target.tolist(), strict=True)
    speeds = (net.bandwidth_bytes_per_s / 1e9).tolist()
    named = {(net.labels[a], net.labels[b]): x for (a, b), x in zip(ends, speeds, strict=True)}
    return {pair: speed for pair, speed in named.items() if pair[0] < pair[1]}


@contextlib.contextmanager
def assumed(*said: str):
    """Checks the assumptions; other warnings do not matter."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    texts = [str(one.message) for one in caught if issubclass(one.category, AssumedWarning)]
    for each in said:
        assert any(each in text for text in texts), texts


def test_cards_take_the_cables_of_adapters_of_their_names(tmp_path):
    """mlx5_1 has no cable, and mlx5_0 none in node2: they lead nowhere and are left out."""
    paths = write(tmp_path, node=BOX, fabric=FABRIC)
    with assumed("node.out is assumed for all 2 hosts; it states no speeds"):
        net = gt.from_spec("+".join(paths))
    gpus = tuple(f"{host}/gpu{i}" for host in ("node1", "node2.example.com") for i in range(3))
    assert net.labels[:6] == gpus and net.num_servers == 6 and net.name == "+".join(paths)
    held = links(net)
    assert held["leaf1", "node1/nic2"] == 50 and held["leaf1", "node1/nic0"] == 25
    assert held["leaf1", "node2.example.com/nic2"] == 50
    assert not any("nic1" in label for label in net.labels)
    assert "node2.example.com/nic0" not in net.labels
    inside = {(a, b): x for (a, b), x in held.items() if a.startswith("node1") and "nvs" in b}
    assert inside == {(f"node1/gpu{i}", "node1/nvswitch"): 240.0 for i in range(3)}


def test_cables_without_names_lead_to_cards_in_order(tmp_path):
    """One cable of a tree is shared by the two cards next to GPUs."""
    (tmp_path / "tree.hosts").write_text(TREE)
    [node] = write(tmp_path, node=BOX)
    given = gt.HostLinks(gt.Link(bandwidth_bytes_per_s=8e9))
    with assumed("the fabric does not name these cards"):
        net = read_together([node, tmp_path / "tree.hosts"], given)
    held = links(net)
    assert net.num_servers == 9
    assert {b for a, b in held if a.startswith("node3/nic")} == {"r2", "node3/pix0", "node3/pix1"}
    assert held["node3/nic0", "r2"] == held["node3/nic1", "r2"] == 4
    assert held["core", "r1"] == 16 and held["core", "r2"] == 8


def test_without_cards_cables_lead_to_processors(tmp_path):
    head = "GPU0 GPU1 GPU2 CPU Affinity NUMA Affinity\n"
    rows = "".join(
        f"GPU{i} {' '.join('X' if i == j else 'SYS' for j in range(3))} 0-1 {i}\n" for i in range(3)
    )
    paths = write(tmp_path, node=head + rows, fabric=FABRIC)
    with assumed("no network card is listed: cables lead to the processors"):
        held = links(read_together(paths))
    assert held["leaf1", "node1/cpu0"] == 50 and held["leaf1", "node1/cpu1"] == 12.5
    # A single cable to node2 is shared by its three processors.
    assert held["leaf1", "node2.example.com/cpu2"] == pytest.approx(50 / 3)


def test_several_insides_go_by_the_names_of_their_files(tmp_path):
    other = BOX.replace("NV12", "NV18")
    paths = write(tmp_path, node1=BOX, node2=other, fabric=FABRIC)
    with assumed("20 GB/s per NVLink", "20.6 GB/s per NVLink"):
        held = links(read_together(paths))
    assert held["node1/gpu0", "node1/nvswitch"] == 240
    assert held["node2.example.com/gpu0", "node2.example.com/nvswitch"] == pytest.approx(18 * 20.6)


def test_several_fabrics_add_up(tmp_path):
    """Tables of two switches list the cable between them twice; a cable counts once."""
    head = "Port  Neighbor Device ID  Neighbor Port ID  TTL\n"
    one = f"leaf1#show lldp neighbors\n{head}Et1 node1 eth0 120\nEt9 leaf2 Ethernet9 120\n"
    two = f"leaf2#show lldp neighbors\n{head}Et1 node2 eth0 120\nEt9 leaf1 Ethernet9 120\n"
    paths = write(tmp_path, a=one, b=two)
    with assumed("it states no speed of 3 of 3 cables"):
        held = links(read_together(paths))
    assert held == {("leaf1", "node1"): 12.5, ("leaf2", "node2"): 12.5, ("leaf1", "leaf2"): 12.5}
    with (
        pytest.raises(FileError, match="its 2 parts: node1 with 1 other nodes and node2 with 1"),
        assumed(),
    ):
        read_together(write(tmp_path, c=one.partition("Et9")[0], d=two.partition("Et9")[0]))


def test_an_nccl_dump_joins_as_well(tmp_path):
    from tests.topology.test_topology_importers import DATA

    [fabric] = write(tmp_path, fabric=FABRIC)
    with assumed("dgx_a100.xml is assumed for all 2 hosts"):
        net = read_together([DATA / "dgx_a100.xml", fabric])
    assert net.num_servers == 16 and net.labels[8] == "node2.example.com/gpu0"


def test_a_joined_network_is_solved_by_its_name(tmp_path):
    paths = write(tmp_path, node=BOX, fabric=FABRIC)
    name = "+".join(paths)
    assert parts_of(name) == paths and not is_schedule_file(name)
    assert parts_of(paths[0]) == [] and parts_of("nowhere+else") == []
    (tmp_path / "a+b.edges").write_text("a b\n")
    assert parts_of(str(tmp_path / "a+b.edges")) == []
    with assumed():
        assert gw.bound(name, gradient_bytes="1MB").seconds
    with pytest.raises(FileError, match=r"no\.out: No such file"), assumed():
        gt.from_spec(f"{paths[0]}+{tmp_path / 'no.out'}")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"node": BOX, "other": BOX}, "2 files of a host's inside and none of a fabric"),
        ({"node1": BOX, "node3": BOX, "fabric": FABRIC}, "its host 'node3' is not in the fabric"),
        ({"node1": BOX, "NODE1": BOX, "fabric": FABRIC}, "its host 'NODE1' has two files"),
        ({"node": BOX[:60], "fabric": FABRIC}, "node.out: GPU0|node.out: "),
        ({"node": BOX, "fabric": FABRIC.replace("4x", "0x")}, "fabric.out: line 2: expected a"),
    ],
)
def test_what_cannot_be_joined_is_one_line(tmp_path, files: dict[str, str], message: str):
    paths = write(tmp_path, **files)
    with pytest.raises(FileError, match=message) as error, assumed():
        read_together(paths)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600


def test_an_inside_is_missing(tmp_path):
    more = FABRIC + '[4]\t"H-00000000000000c4"[1](c4) \t# "node3 mlx5_2" lid 9 4xNDR\n'
    paths = write(tmp_path, node1=BOX, node2=BOX, fabric=more)
    with pytest.raises(FileError, match="no file has the inside of node3"), assumed():
        read_together(paths)
    with pytest.raises(FileError, match="is given twice"), assumed():
        read_together([paths[0], paths[0]])
    (tmp_path / "many.hosts").write_text("".join(f"r1:n{i}\n" for i in range(15_000)))
    with pytest.raises(FileError, match="nodes; at most 131,072 can be joined"), assumed():
        read_together([paths[0], tmp_path / "many.hosts"])
    uneven = "# directed\na b 1GB/s\nb a 2GB/s\n"
    (tmp_path / "uneven.edges").write_text(uneven)
    with pytest.raises(FileError, match="a→b differs by direction"), assumed():
        read_together([paths[0], tmp_path / "uneven.edges"])


def test_slow_links_stand_out_once():
    slow = gt.slowed(gt.leaf_spine(4, 2, 4), {(0, 16): 0.25, (16, 20): 0.5}).topology
    assert oddities(slow) == [
        "link 0→16 has 25 Gbit/s, its 3 siblings at 16 have 100 Gbit/s",
        "link 16→20 has 100 Gbit/s, its 3 siblings at 20 have 200 Gbit/s",
    ]
    assert oddities(slow, speeds=False) == []


@pytest.mark.parametrize("spec", ["ring:8", "fat_tree:k=4", "h100:boxes=4", "torus:4x4", "dgx1v"])
def test_nothing_stands_out_in_regular_networks(spec: str):
    assert oddities(gt.from_spec(spec)) == []


def test_hosts_with_fewer_links_stand_out(tmp_path):
    rails = [(host, rail) for host in range(5) for rail in range(4) if (host, rail) != (3, 2)]
    rails.remove((3, 1))
    text = "# switches: s0 s1 s2 s3\n" + "".join(f"h{host} s{rail}\n" for host, rail in rails)
    (tmp_path / "net.edges").write_text(text)
    assert oddities(gt.read(tmp_path / "net.edges")) == ["h3 has 2 links, 4 other hosts have 4"]
    boxed = "# switches: s0 s1\n" + "".join(
        f"h{host}/g{gpu} h{host}/g{1 - gpu}\nh{host}/g{gpu} s{gpu}\n"
        for host in range(4) for gpu in range(2) if (host, gpu) != (1, 1)
    )  # fmt: skip
    (tmp_path / "boxed.edges").write_text(boxed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        found = oddities(gt.read(tmp_path / "boxed.edges"), speeds=False)
    assert found == ["h1 has 1 link, 3 other hosts have 2"]
