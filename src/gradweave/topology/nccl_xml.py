"""NCCL's topology XML, as ``NCCL_TOPO_DUMP_FILE`` writes it, and RCCL's.

    <system version="1">
      <cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="79">
        <pci busid="0000:05:00.0" link_speed="8 GT/s" link_width="16">             a PCIe switch
          <pci busid="0000:06:00.0" link_speed="8 GT/s" link_width="16">
            <gpu dev="0" sm="70" rank="0">
              <nvlink target="0000:07:00.0" count="1" tclass="0x030200"/>          … one a peer

Bandwidths are those that NCCL and RCCL count for each kind of link: lower than the peaks.
"""

import re
from collections.abc import Iterator
from typing import Any

from gradweave.errors import FileError
from gradweave.topology.graph import from_networkx
from gradweave.topology.serving import serving_nodes
from gradweave.topology.topology import Link, Topology

_MB = 10**6

_NVLINK = ((107, 31_200), (100, 40_100), (90, 20_600), (87, 20_000), (86, 12_000), (70, 20_000))
"""Compute capability from which on, and MB/s of one NVLink."""
_OLDEST_NVLINK = 18_000

_GIGATRANSFERS = {"2.5": 15, "5": 30, "8": 60, "16": 120, "32": 240, "64": 480}
"""Hundreds of Mbit/s that a PCIe lane carries, by its signalling rate in GT/s."""


def topology_from_nccl_xml(
    content: bytes, name: str, *, pcie: bool = True, network: bool = False
) -> Topology:
    """Reads a topology that NCCL or RCCL dumped.

    GPUs are servers, in the order of their ranks. PCIe switches and processors are switches, and so
    are all NVSwitches together, as in NCCL: the hardware spreads each transfer over them. Links are
    NVLink and Infinity Fabric (``count`` times the speed of one, for the kind of GPU), PCIe (speed
    times width), links between processors of one host, and chip-to-chip links. What serves no pair
    of GPUs is left out, as are NVLinks to GPUs that the file does not show; ``pcilink`` and the
    overhead of peer-to-peer transfers through Intel processors are not modelled. Latencies are
    `Link`'s.

    Args:
        content: the file's bytes.
        name: the network's name.
        pcie: whether to keep PCIe, processors and what hangs on them; without, NVLink, NVSwitch and
            Infinity Fabric are left.
        network: whether to keep the network cards, all joined to one outer switch, ``fabric``.

    Raises:
        FileError: naming the element and the attribute at fault.
        TopologyError: such a network cannot exist.
    """
    system = parse_xml(content)
    if system.tag != "system":
        raise FileError(
            f"expected a system element, as NCCL_TOPO_DUMP_FILE writes it, got {system.tag!r:.40}"
        )
    reader = _Reader(pcie=pcie, network=network)
    for cpu in system.iterfind("cpu"):
        reader.read_cpu(cpu)
    reader.join_cpus()
    reader.add_nvlinks()
    return reader.topology(name)


def parse_xml(content: bytes) -> Any:
    """The root element of an XML file, which may have no document type and no entities.

    Raises:
        FileError: it is not well-formed, or has them.
    """
    from defusedxml import ElementTree
    from defusedxml.common import DefusedXmlException

    try:
        return ElementTree.fromstring(content, forbid_dtd=True)
    except DefusedXmlException:
        raise FileError("has a document type or entities, which are refused; remove them") from None
    except ElementTree.ParseError as error:
        raise FileError(f"not well-formed XML: {error}") from None


class _Reader:
    """A graph that grows while the file is read: nodes by their label, links in MB/s."""

    def __init__(self, *, pcie: bool, network: bool) -> None:
        import networkx as nx

        self.graph: Any = nx.MultiDiGraph()
        self.pcie, self.network = pcie, network
        self.gpus: dict[tuple[str, str], Any] = {}
        """The gpu elements by host and bus id."""
        self.cpus: dict[tuple[str, str], Any] = {}
        self.hosts: list[str] = []

    def read_cpu(self, cpu: Any) -> None:
        """Adds a processor and all that hangs on it."""
        host = cpu.get("host_hash", "")
        if host not in self.hosts:
            self.hosts.append(host)
        node = self._label(host, f"cpu{_attribute(cpu, 'cpu', 'numaid')}")
        if node in self.graph:
            raise FileError(f"{node}: numaid is given twice")
        self.graph.add_node(node, kind="switch")
        self.cpus[host, node] = cpu
        # A list in place of recursion, so that no file is nested too deeply.
        pending = [(child, node) for child in reversed(cpu)]
        while pending:
            element, parent = pending.pop()
            if element.tag == "pci":
                below = self._read_pci(element, host, node, parent)
                pending += [(child, below) for child in reversed(element)]
            elif element.tag == "nic" and parent == node:
                self._add_nic(element, parent)

    def _read_pci(self, pci: Any, host: str, cpu: str, parent: str) -> str:
        """Adds a PCIe device with its link to its parent; returns its node."""
        bus = _attribute(pci, "pci", "busid").lower()
        where = f"pci {bus}"
        gpus, nic = pci.findall("gpu"), pci.find("nic")
        node = self._label(host, f"{'gpu' if gpus else 'nic' if nic is not None else 'pci'}-{bus}")
        if node in self.graph:
            raise FileError(f"{where}: busid is given twice")
        if len(gpus) > 1:
            raise FileError(f"{where}: {len(gpus)} gpu elements; one GPU a device is understood")
        speed = _pcie_speed(pci, where)
        self.graph.add_node(node, kind="server" if gpus else "switch")
        if self.pcie:
            self._join(parent, node, speed)
        if gpus:
            self.gpus[host, bus] = gpus[0]
            self._add_c2c(gpus[0], node, cpu)
        elif nic is not None:
            self._add_nic(nic, node)
        return node

    def _add_c2c(self, gpu: Any, node: str, cpu: str) -> None:
        for c2c in gpu.iterfind("c2c"):
            speed = _integer(c2c, f"c2c of {node}", "bw") * _count(c2c, f"c2c of {node}")
            if self.pcie:
                self._join(cpu, node, speed)

    def _add_nic(self, nic: Any, node: str) -> None:
        """Joins a network card to the outer switch, by the speeds of its ports together."""
        for net in nic.iterfind("net") if self.network else ():
            if net.get("dev") is None or net.get("net") == "0":
                continue  # as in NCCL: a port that is off, or part of a joined one
            where = f"net {net.get('name', net.get('dev'))!r:.40} of {node}"
            mbits = _integer(net, where, "speed", least=-(10**9), default=0)
            self.graph.add_node("fabric", kind="switch")
            latency = _microseconds(net, where)
            self._join(node, "fabric", (mbits if mbits > 0 else 10_000) / 8, latency)

    def join_cpus(self) -> None:
        """Links every two processors of one host, each way at the speed of the first."""
        for host, node in self.cpus if self.pcie else ():
            speed = _cpu_speed(self.cpus[host, node], node)
            for other_host, other in self.cpus:
                if other_host == host and other != node:
                    self.graph.add_edge(node, other, bandwidth_bytes_per_s=speed * _MB)

    def add_nvlinks(self) -> None:
        """Adds what the gpu elements say of their own links."""
        for (host, bus), gpu in self.gpus.items():
            node = self._label(host, f"gpu-{bus}")
            for link in gpu:
                if link.tag not in ("nvlink", "xgmi"):
                    continue
                where = f"{link.tag} of {node}"
                speed = _count(link, where) * _link_speed(gpu, link.tag, node)
                kind = _attribute(link, where, "tclass").lower()
                target = _attribute(link, where, "target").lower()
                if kind.startswith("0x03"):
                    if (host, target) in self.gpus:
                        peer = self._label(host, f"gpu-{target}")
                        self.graph.add_edge(node, peer, bandwidth_bytes_per_s=speed * _MB)
                elif kind == "0x068000":
                    self.graph.add_node("nvswitch", kind="switch")
                    self._join(node, "nvswitch", speed)
                elif kind != "0x068001":  # a processor's own NVLink: not modelled
                    raise FileError(
                        f"{where}: tclass must be 0x03… (a GPU) or 0x068000 (an NVSwitch), "
                        f"got {kind!r:.40}"
                    )

    def topology(self, name: str) -> Topology:
        """The network of all that serves, GPUs in the order of their ranks."""
        import networkx as nx

        if not self.gpus:
            raise FileError("no gpu element; dump the file with NCCL_TOPO_DUMP_FILE from a run")
        order = list(self._in_order())
        number = {node: place for place, (node, _) in enumerate(order)}
        graph: Any = nx.relabel_nodes(self.graph, number)
        serving = serving_nodes(graph.to_undirected(), range(len(self.gpus)))
        network: Any = nx.MultiDiGraph()
        for place, (node, label) in enumerate(order):
            if place in serving:
                network.add_node(place, label=label, **self.graph.nodes[node])
        network.add_edges_from(
            edge for edge in graph.edges(data=True) if serving.issuperset(edge[:2])
        )
        return from_networkx(network, name)

    def _in_order(self) -> Iterator[tuple[str, str]]:
        """The nodes with their labels: GPUs first, by rank where every one has one."""
        gpus = [(self._label(host, f"gpu-{bus}"), gpu) for (host, bus), gpu in self.gpus.items()]
        if all(gpu.get("rank") is not None for _, gpu in gpus):
            rank = {node: _integer(gpu, node, "rank") for node, gpu in gpus}
            if len(set(rank.values())) < len(rank):
                raise FileError("gpu: two have the same rank")
            yield from ((node, f"gpu{rank[node]}") for node in sorted(rank, key=rank.__getitem__))
        else:
            yield from ((node, node) for node, _ in gpus)
        servers = {node for node, _ in gpus}
        yield from ((node, node) for node in self.graph if node not in servers)

    def _label(self, host: str, label: str) -> str:
        place = self.hosts.index(host)
        return f"host{place}/{label}" if place else label

    def _join(self, a: str, b: str, speed: float, latency_s: float | None = None) -> None:
        """Adds a link, in MB/s, both ways."""
        latency = {} if latency_s is None else {"latency_s": latency_s}
        for ends in ((a, b), (b, a)):
            self.graph.add_edge(*ends, bandwidth_bytes_per_s=speed * _MB, **latency)


def _link_speed(gpu: Any, kind: str, node: str) -> int:
    """MB/s of one NVLink or Infinity Fabric link of this GPU."""
    if kind == "xgmi":
        arch = gpu.get("gcn", "")
        if "90a" in arch or arch == "910":
            return 36_000
        return 48_000 if re.match(r"(gfx)?9[45]", arch) else 24_000
    capability = _integer(gpu, node, "sm")
    return next((speed for least, speed in _NVLINK if capability >= least), _OLDEST_NVLINK)


def _pcie_speed(pci: Any, where: str) -> float:
    """MB/s of a device's link; as NCCL assumes, 8 GT/s and 16 lanes where these are not known."""
    text = pci.get("link_speed", "").strip()
    number = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9])?) GT/s(?: PCIe)?", text)
    rate = _GIGATRANSFERS.get(number[1].removesuffix(".0")) if number else None
    if rate is None and text and not text.startswith("Unknown"):
        raise FileError(
            f"{where}: link_speed must be such as 16.0 GT/s PCIe, "
            f"with {', '.join(_GIGATRANSFERS)} GT/s known; got {text!r:.40}"
        )
    width = _integer(pci, where, "link_width", default=0, most=255)
    return (rate or 60) * 100 * (width or 16) / 8


def _cpu_speed(cpu: Any, where: str) -> int:
    """MB/s between processors."""
    arch, vendor = cpu.get("arch", ""), cpu.get("vendor", "")
    if arch == "ppc64":
        return 32_000
    if vendor == "AuthenticAMD":
        family = _integer(cpu, where, "familyid", default=23)
        return 32_000 if family in (26, 0xBF) else 24_000 if family in (25, 0xAF) else 16_000
    if vendor == "GenuineIntel":
        model = _integer(cpu, where, "modelid", default=0)
        if model >= 0xCF or model in (0xAD, 0xAE, 0xAF):
            return 40_000
        return 22_000 if model >= 0x8F else 10_000 if model >= 0x55 else 6_000
    return 6_000  # ARM and the rest


def _microseconds(net: Any, where: str) -> float | None:
    """The latency that a port states, in seconds; None where it is 0, which means not known."""
    text = net.get("latency", "0")
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,9})?", text):
        raise FileError(f"{where}: latency must be microseconds, got {text!r:.40}")
    return Link().latency_s + float(text) * 1e-6 if float(text) else None


def _attribute(element: Any, where: str, name: str) -> str:
    value = element.get(name)
    if not value:
        raise FileError(f"{where}: {name} is missing")
    if len(value) > 64 or not value.isprintable():
        raise FileError(f"{where}: {name} must be a short word, got {value!r:.40}")
    return value


def _count(element: Any, where: str) -> int:
    return _integer(element, where, "count", least=1, most=10_000)


def _integer(
    element: Any, where: str, name: str, *, least: int = 0, most: int = 10**9, default: int = -1
) -> int:
    text = element.get(name)
    if text is None:
        if default < 0:
            raise FileError(f"{where}: {name} is missing")
        return default
    if not re.fullmatch(r"-?[0-9]{1,10}", text) or not least <= int(text) <= most:
        raise FileError(f"{where}: {name} must be a whole number from {least}, got {text!r:.40}")
    return int(text)
