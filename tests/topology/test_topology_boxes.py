"""Boxes of GPUs: matrices of nvidia-smi and rocm-smi, and hosts of lstopo."""

import pytest

import gradweave.topology as gt
from gradweave.errors import AssumedWarning, FileError
from gradweave.topology.formats.box import Box
from gradweave.topology.formats.files import find

HEADER = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"
)
MANY = " ".join(f"GPU{i}" for i in range(1, 600))
SWITCHED = f"""{HEADER}
GPU0\t X \tNV12\tNV12\tNV12\tPXB\tSYS\t0-31\t0\t\tN/A
GPU1\tNV12\t X \tNV12\tNV12\tPXB\tSYS\t0-31\t0\t\tN/A
GPU2\tNV12\tNV12\t X \tNV12\tSYS\tPIX\t32-63\t1\t\tN/A
GPU3\tNV12\tNV12\tNV12\t X \tSYS\tNODE\t32-63\t1\t\tN/A
NIC0\tPXB\tPXB\tSYS\tSYS\t X \tSYS
NIC1\tSYS\tSYS\tPIX\tNODE\tSYS\t X

Legend:
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:
  NIC0: mlx5_0
  NIC1: mlx5_bond_0
"""
DIRECT = """GPU0 GPU1 GPU2 GPU3 mlx5_0 CPU Affinity
GPU0  X   NV1 NV2 SYS SYS 0-15

GPU1 NV1  X   SYS NV2 SYS 0-15

GPU2 NV2 SYS  X   NV1 PHB 16-31
GPU3 SYS NV2 NV1  X   PHB 16-31
mlx5_0 SYS SYS PHB PHB  X
"""
ROCM = """
======================= ROCm System Management Interface =======================
=========================== Weight between two GPUs ============================
       GPU0         GPU1         GPU2         GPU3
GPU0   0            15           30           15
GPU1   15           0            15           30
GPU2   30           15           0            15
GPU3   15           30           15           0

========================== Link Type between two GPUs ==========================
       GPU0         GPU1         GPU2         GPU3
GPU0   0            XGMI         XGMI         XGMI
GPU1   XGMI         0            XGMI         XGMI
GPU2   XGMI         XGMI         0            XGMI
GPU3   XGMI         XGMI         XGMI         0

================================== Numa Nodes ==================================
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[1]\t\t: (Topology) Numa Node: 0
GPU[2]\t\t: (Topology) Numa Node: 1
GPU[3]\t\t: (Topology) Numa Node: 1
"""


def read(tmp_path, text: str, name: str = "node.txt", said: str = "it states no speeds"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.warns(AssumedWarning, match=said):
        return gt.read(path)


def box_of(path) -> Box:
    content = find(path).content
    assert isinstance(content, Box)
    return content


def links(net) -> dict[tuple[str, str], float]:
    """GB/s by the labels of the ends, in one order."""
    ends = zip(net.source.tolist(), net.target.tolist(), strict=True)
    speeds = (net.bandwidth_bytes_per_s / 1e9).tolist()
    named = {
        (net.labels[a], net.labels[b]): speed for (a, b), speed in zip(ends, speeds, strict=True)
    }
    assert all(named[b, a] == speed for (a, b), speed in named.items())
    return {pair: speed for pair, speed in named.items() if pair[0] < pair[1]}


@pytest.mark.parametrize("name", ["node.txt", "node", "node.out", "topology.conf"])
def test_a_matrix_of_nvlinks_by_switches(tmp_path, name: str):
    """More NVLinks in a row than a GPU has lead to NVSwitches; each is counted once per GPU."""
    net = read(tmp_path, SWITCHED, name, "20 GB/s per NVLink, 24 .* for A100 .guessed: 12 NVLinks")
    assert net.labels[:4] == ("gpu0", "gpu1", "gpu2", "gpu3") and net.num_servers == 4
    nvlinks = {(f"gpu{i}", "nvswitch"): 240.0 for i in range(4)}
    # NIC1 hangs on a switch with GPU2 alone; without the card it is a link from GPU to processor.
    pcie = {("gpu0", "pxb0"): 24.0, ("gpu1", "pxb0"): 24.0, ("cpu0", "pxb0"): 24.0}
    pcie |= {("gpu2", "pix0"): 24.0, ("cpu1", "pix0"): 24.0, ("cpu1", "gpu3"): 24.0}
    assert links(net) == nvlinks | pcie | {("cpu0", "cpu1"): 16.0}
    assert find(tmp_path / name).format == "nvidia_topo"
    assert box_of(tmp_path / name).cards == {"nic0": ("mlx5_0",), "nic1": ("mlx5_bond_0",)}


def test_a_matrix_of_direct_nvlinks(tmp_path):
    net = read(tmp_path, DIRECT, said="for V100 .guessed: 3 NVLinks")
    nvlinks = {("gpu0", "gpu1"): 20.0, ("gpu2", "gpu3"): 20.0}
    nvlinks |= {("gpu0", "gpu2"): 40.0, ("gpu1", "gpu3"): 40.0}
    pcie = {(cpu, f"gpu{i}"): 12.0 for i, cpu in enumerate(["cpu0", "cpu0", "cpu1", "cpu1"])}
    assert links(net) == nvlinks | pcie | {("cpu0", "cpu1"): 6.0}


def test_the_name_of_the_gpu_decides_its_speeds(tmp_path):
    named = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n" + SWITCHED
    net = read(tmp_path, named, said="20.6 GB/s per NVLink, 48 GB/s for PCIe .* H100 .named in")
    assert links(net)["gpu0", "nvswitch"] == pytest.approx(12 * 20.6)


def test_without_affinities_processors_follow_from_what_is_far(tmp_path):
    bare = "\n".join(line.partition(" 0-")[0].partition(" 16-")[0] for line in DIRECT.splitlines())
    assert links(read(tmp_path, bare)) == links(read(tmp_path, DIRECT, "other.txt"))
    only = "GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4 X\n"
    assert links(read(tmp_path, only)) == {("gpu0", "gpu1"): 80.0}


def test_link_types_and_weights_of_rocm_smi(tmp_path):
    """XGMI of twice the weight is two hops: a square of direct links."""
    net = read(tmp_path, ROCM, said="36 GB/s per Infinity Fabric, .* as RCCL does for MI250")
    square = {("gpu0", "gpu1"), ("gpu1", "gpu2"), ("gpu2", "gpu3"), ("gpu0", "gpu3")}
    pcie = {("cpu0", "gpu0"), ("cpu0", "gpu1"), ("cpu1", "gpu2"), ("cpu1", "gpu3")}
    held = links(net)
    assert held.keys() == square | pcie | {("cpu0", "cpu1")}
    assert {held[pair] for pair in square} == {36.0}
    assert find(tmp_path / "node.txt").format == "rocm_topo"
    begin = ROCM.index("=========================== Weight")
    types = ROCM[:begin] + ROCM[ROCM.index("========================== Link") :]
    assert ("gpu0", "gpu2") in links(read(tmp_path, types, said="48 GB/s .* MI300"))


AMD_SMI = """
ACCESS TABLE:
             0000:0c:00.0 0000:22:00.0 0000:38:00.0 0000:5c:00.0
0000:0c:00.0 ENABLED      ENABLED      ENABLED      ENABLED
WEIGHT TABLE:
             0000:0c:00.0 0000:22:00.0 0000:38:00.0 0000:5c:00.0
0000:0c:00.0 0            15           30           15
0000:22:00.0 15           0            15           30
0000:38:00.0 30           15           0            15
0000:5c:00.0 15           30           15           0
HOPS TABLE:
             0000:0c:00.0 0000:22:00.0 0000:38:00.0 0000:5c:00.0
0000:0c:00.0 0            1            2            1
LINK TYPE TABLE:
             0000:0c:00.0 0000:22:00.0 0000:38:00.0 0000:5c:00.0
0000:0c:00.0 SELF         XGMI         XGMI         XGMI
0000:22:00.0 XGMI         SELF         XGMI         XGMI
0000:38:00.0 XGMI         XGMI         SELF         XGMI
0000:5c:00.0 XGMI         XGMI         XGMI         SELF
NUMA BW TABLE:
             0000:0c:00.0 0000:22:00.0 0000:38:00.0 0000:5c:00.0
0000:0c:00.0 N/A          50000-50000  50000-50000  50000-50000

Legend:
  SELF = Current GPU
"""


def test_tables_of_amd_smi(tmp_path):
    """The same square, with PCI addresses and without NUMA nodes."""
    net = read(tmp_path, AMD_SMI, said="36 GB/s per Infinity Fabric, .* as RCCL does for MI250")
    square = {("gpu0", "gpu1"), ("gpu1", "gpu2"), ("gpu2", "gpu3"), ("gpu0", "gpu3")}
    assert links(net).keys() == square | {("cpu0", f"gpu{n}") for n in range(4)}
    assert find(tmp_path / "node.txt").format == "rocm_topo"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (AMD_SMI.replace("30 ", "up "), "expected NV and a number"),
        (AMD_SMI[: AMD_SMI.index("0000:5c:00.0 XGMI")], "GPU3 has a column and no row"),
        (AMD_SMI.replace("SELF         XGMI", "XGMI         SELF"), "GPU0 to GPU0: got 'XGMI'"),
        ("LINK TYPE TABLE:\n", "names of the columns"),
        ("LINK TYPE TABLE:\n" + "a " * 10_000 + "\n", "more than 512 devices|names of the"),
        (SWITCHED[:200], "GPU0: expected 6 entries, got|has a column and no row"),
        (SWITCHED.replace("GPU3\tNV12", "GPU7\tNV12"), "GPU7 has no column"),
        (SWITCHED.replace("GPU3\t", "GPU2\t"), "once each, got 'GPU2'|no column, or two rows"),
        (SWITCHED.replace("NV12\tNV12\tPXB", "NV8\tNV12\tPXB"), "GPU0 to GPU2 is NV8, and"),
        (SWITCHED.replace("PIX", "NV" + "9" * 5000), "GPU2 to NIC1: expected NV and a number"),
        (SWITCHED.replace("PIX", "OK\x1b[31m"), "GPU2 to NIC1: expected NV and .* got 'OK'"),
        (SWITCHED.replace("NV12\t X ", "NV12\tNV1"), "GPU1 to GPU1: got 'NV1'"),
        (SWITCHED.replace("\tGPU1", "\tGPU0", 1), "devices once each, got 'GPU0'"),
        (SWITCHED.replace("GPU2\tGPU3\tNIC0", "GPU2\tPOD\tNIC0", 1), "once each, got 'POD'"),
        ("GPU0 X NV1\n" * 3, "names of the columns"),
        (f"GPU0 {MANY}\nGPU0 X\n", "more than 512 devices"),
        ("GPU0\nGPU0 X\n", "1 server"),
        (ROCM.replace("30", "near"), "expected NV and a number"),
        (ROCM.replace("Link Type", "Link Kind"), "expected the table 'Link Type between two GPUs'"),
        (ROCM[: ROCM.index("GPU3   XGMI")], "GPU3 has a column and no row"),
        (SWITCHED.encode("utf-16"), "not UTF-8 text"),
        (b"GPU0\x00GPU1\xff\n" + SWITCHED.encode(), "not UTF-8 text"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::gradweave.errors.AssumedWarning")
def test_broken_matrices_are_one_line(tmp_path, text: str | bytes, message: str):
    path = tmp_path / "node.txt"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(FileError, match=message) as error:
        gt.read(path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_bandwidths_are_not_for_boxes(tmp_path):
    path = tmp_path / "node.txt"
    path.write_text(SWITCHED)
    with pytest.raises(FileError, match="for lists of hosts"):
        gt.read(path, host_links=gt.HostLinks())


def bridge(bus: str, inside: str, speed: float = 15.75, kind: str = "1-1") -> str:
    return (
        f'<object type="Bridge" gp_index="9{bus[5:7]}" bridge_type="{kind}" '
        f'pci_busid="{bus}" pci_link_speed="{speed}">{inside}</object>'
    )


def device(bus: str, gp: int, name: str, kind: str = "0302", speed: float = 15.75) -> str:
    return (
        f'<object type="PCIDev" gp_index="{gp}" pci_busid="{bus}" pci_type="{kind} [10de:2330]" '
        f'pci_link_speed="{speed}">'
        f'<object type="OSDev" gp_index="{gp + 100}" name="{name}" osdev_type="12"/></object>'
    )


def package(number: int, inside: str) -> str:
    return (
        f'<object type="Package" gp_index="{number + 1}"><info name="CPUVendor" '
        'value="GenuineIntel"/><info name="CPUModelNumber" value="143"/>'
        f'<object type="NUMANode" gp_index="{number + 5}"/>'
        f'<object type="Bridge" bridge_type="0-1">{inside}</object></object>'
    )


NVLINKS = """<distances2hetero nbobjs="4" kind="25" name="NVLinkBandwidth">
<indexes length="9">OSDev:110 OSDev:111 OSDev:112</indexes><indexes length="9">PCIDev:14</indexes>
<u64values length="9">1000000 50000 0 75000 50000 1000000 0 75000</u64values>
<u64values length="9">0 0 1000000 75000 75000 75000 75000 0</u64values></distances2hetero>"""
SWITCH = '<object type="PCIDev" gp_index="14" subtype="NVSwitch" pci_busid="0000:44:00.0"/>'
LSTOPO = f"""<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0"><object type="Machine" os_index="0"><info name="HostName" value="node7"/>
{
    package(
        0,
        bridge(
            "0000:10:00.0",
            bridge("0000:11:00.0", device("0000:12:00.0", 10, "cuda0"), 7.5)
            + bridge("0000:11:01.0", device("0000:13:00.0", 11, "nvml1"))
            + bridge("0000:11:02.0", device("0000:14:00.0", 13, "mlx5_0", "0207")),
        ),
    )
}
{
    package(
        1,
        bridge("0000:20:00.0", device("0000:22:00.0", 12, "cuda2", speed=0), 0)
        + device("0000:23:00.0", 15, "card0", "0300")
        + SWITCH,
    )
}
</object>{NVLINKS}</topology>"""


def test_a_host_of_lstopo(tmp_path):
    """A bridge to one device is part of its link; matrices of bandwidths add direct links."""
    net = read(tmp_path, LSTOPO, "node.xml", "assumed 22 GB/s, as NCCL does for GenuineIntel 143")
    assert net.labels[:3] == ("gpu0", "gpu1", "gpu2")
    nvlinks = {("gpu0", "gpu1"): 50.0} | {(f"gpu{i}", "nvswitch"): 75.0 for i in range(3)}
    pcie = {("gpu0", "pci-0000:10:00.0"): 7.5, ("gpu1", "pci-0000:10:00.0"): 15.75}
    pcie |= {("cpu0", "pci-0000:10:00.0"): 15.75, ("cpu1", "gpu2"): 12.0}
    assert links(net) == nvlinks | pcie | {("cpu0", "cpu1"): 22.0}
    box = box_of(tmp_path / "node.xml")
    assert (box.host, box.cards) == ("node7", {"nic-0000:14:00.0": ("mlx5_0",)})
    assert any("1 PCIe link without a speed: assumed 12 GB/s" in each for each in box.assumed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LSTOPO[:900], "not well-formed XML"),
        (LSTOPO.replace("0000:22:00.0", "0000:12:00.0"), "0000:12:00.0 is given twice"),
        (LSTOPO.replace("0000:22:00.0", "../../etc"), "a PCIDev: expected a pci_busid"),
        (LSTOPO.replace('"7.5"', '"1e999"'), "pci_link_speed: expected GB/s, got '1e999'"),
        (LSTOPO.replace("75000 50000", "75000 5e4"), "expected MB/s, got '5e4'"),
        (LSTOPO.replace(" 75000</u64", "</u64", 1), "got 15 for 4 objects"),
        (LSTOPO.replace("OSDev:110", "OSDev:110 " * 5000), "expected a row of values per object"),
        (LSTOPO.replace("0302", "0100").replace("cuda", "sda").replace("nvml", "sdb"), "no GPU"),
        (LSTOPO.replace('"hwloc2.dtd"', '"hwloc2.dtd" [<!ENTITY a "aa">]'), "type or entities"),
        (LSTOPO.replace('"hwloc2.dtd"', '"/etc/passwd"'), "document type or entities"),
        (LSTOPO.replace("<topology", "<!DOCTYPE a><topology"), "document type|not well-formed"),
        ("<topology/>", "no GPU"),
        ("<topology>" + "<object>" * 20_000 + "</object>" * 20_000 + "</topology>", "no GPU"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::gradweave.errors.AssumedWarning")
def test_broken_files_of_lstopo_are_one_line(tmp_path, text: str, message: str):
    path = tmp_path / "node.xml"
    path.write_text(text)
    with pytest.raises(FileError, match=message) as error:
        gt.read(path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400
