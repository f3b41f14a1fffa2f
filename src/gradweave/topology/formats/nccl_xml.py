"""NCCL's topology XML, as ``NCCL_TOPO_DUMP_FILE`` writes it, and RCCL's.

    <system version="1">
      <cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="79">
        <pci busid="0000:05:00.0" link_speed="8 GT/s" link_width="16">             a PCIe switch
          <pci busid="0000:06:00.0" link_speed="8 GT/s" link_width="16">
            <gpu dev="0" sm="70" rank="0">
              <nvlink target="0000:07:00.0" count="1" tclass="0x030200"/>          … one per peer

Bandwidths are those that NCCL and RCCL assume for each kind of link: lower than the peaks.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from gradweave.common.wording import counted, listed
from gradweave.errors import FileError
from gradweave.topology.formats.box import Box
from gradweave.topology.formats.nccl_attributes import (
    attribute,
    cpu_link_mb_per_s,
    gpu_link_mb_per_s,
    integer_attribute,
    link_count,
    net_latency_s,
    pcie_mb_per_s,
)
from gradweave.topology.topology import Topology

_LSTOPO = re.compile(
    rb'^[^<]{0,9}(?:<\?xml[^>]{0,200}\?>\s*)?<!DOCTYPE topology SYSTEM "hwloc2?\.dtd">'
)
_ONLY_GPUS = ("0x0302", "0x1200")
"""PCI classes of GPUs without a display: 3D controllers, and processing accelerators (AMD)."""
MAX_CPUS = 1024
"""Most processors accepted in a file."""
MAX_CPUS_PER_HOST = 128
"""Most processors of one host, every two of which are joined."""


def topology_from_nccl_xml(
    content: bytes, name: str, *, pcie: bool = True, network: bool | None = None
) -> Topology:
    """Reads a topology that NCCL or RCCL dumped.

    GPUs are servers, in the order of their ranks. PCIe switches and processors are switches; all
    NVSwitches of a host together are one, as in NCCL: the hardware spreads each transfer over them.
    Hosts with Arm processors (Grace) share theirs, as in a rack of NVLink. Links are NVLink and
    Infinity Fabric (``count`` times the speed of one, by GPU type), PCIe (speed times width), links
    between processors of one host, and chip-to-chip links. Nodes that lie on no path between two
    GPUs are left out, as are NVLinks to GPUs missing from the file, and processors without GPUs or
    network cards, over which no hardware makes a detour; ``pcilink`` and the overhead of
    peer-to-peer transfers through Intel processors are not modelled. Latencies are `Link`'s.

    Args:
        content: the file's bytes.
        name: the network's name.
        pcie: whether to keep PCIe, processors and the devices behind them; otherwise only NVLink,
            NVSwitch and Infinity Fabric.
        network: whether to keep the network cards, all joined to one outer switch, ``fabric``; if
            not given, they are kept if the file has several hosts that nothing else joins.

    Raises:
        FileError: naming the invalid element and attribute.
        TopologyError: such a network cannot exist.
    """
    cpus = _system(content).findall("cpu")
    racked = all(cpu.get("arch") == "arm64" for cpu in cpus)
    if network is None:
        network = pcie and not racked and len({cpu.get("host_hash", "") for cpu in cpus}) > 1
    reader = _TopologyReader(pcie=pcie, network=network, one_nvswitch=racked)
    return reader.read(cpus).topology(name)


def read_nccl_xml(content: bytes, name: str) -> Topology | Box:
    """Reads a file of one host as its inside, whose network cards a fabric's file may join.

    Args:
        content: the file's bytes.
        name: the network's name.

    Returns:
        The inside; the network of `topology_from_nccl_xml` if there are several hosts.

    Raises:
        FileError: as `topology_from_nccl_xml`.
    """
    cpus = _system(content).findall("cpu")
    if len({cpu.get("host_hash", "") for cpu in cpus}) > 1:
        return topology_from_nccl_xml(content, name)
    racked = all(cpu.get("arch") == "arm64" for cpu in cpus)
    return _TopologyReader(pcie=True, network=True, one_nvswitch=racked, cards=True).read(cpus)


def _system(content: bytes) -> Any:
    system = parse_xml(content)
    if system.tag != "system":
        raise FileError(
            f"expected a system element, as NCCL_TOPO_DUMP_FILE writes it, got {system.tag!r:.40}"
        )
    return system


def parse_xml(content: bytes) -> Any:
    """The root element of an XML file, which must not have a document type or entities.

    A document type without declarations, as lstopo writes it, is passed over: it could only refer
    to a file that nothing reads.

    Raises:
        FileError: it is not well-formed, or has either.
    """
    from defusedxml import ElementTree
    from defusedxml.common import DefusedXmlException

    try:
        return ElementTree.fromstring(_LSTOPO.sub(b"", content, count=1), forbid_dtd=True)
    except DefusedXmlException:
        raise FileError("has a document type or entities, which are refused; remove them") from None
    except ElementTree.ParseError as error:
        raise FileError(f"not well-formed XML: {error}") from None


class _TopologyReader:
    """The graph built while the file is read."""

    def __init__(
        self, *, pcie: bool, network: bool, one_nvswitch: bool, cards: bool = False
    ) -> None:
        self.box = Box()
        self.pcie, self.network, self.one_nvswitch = pcie, network, one_nvswitch
        self.cards = cards
        """Whether network cards stay open, for another file's fabric to join."""
        self.gpus: dict[tuple[str, str], Any] = {}
        """The gpu elements, by host and bus id."""
        self.cpus: dict[tuple[str, str], Any] = {}
        self.with_gpus: set[str] = set()
        """The processors that have GPUs."""
        self.with_cards: set[str] = set()
        """The processors whose network cards are kept."""
        self.cpus_of: Counter[str] = Counter()
        self.buses: set[tuple[str, str]] = set()
        self.hosts: dict[str, int] = {}

    def read(self, cpus: Iterable[Any]) -> Box:
        """The box of these cpu elements, with its GPUs in the order of their ranks, if given."""
        cpus = list(cpus)
        if not any(cpu.find(".//gpu") is not None for cpu in cpus):
            self._take_for_gpus(cpus)
        for cpu in cpus:
            self._read_cpu(cpu)
        self._add_nvlinks()
        return self._finished()

    def _take_for_gpus(self, cpus: Iterable[Any]) -> None:
        """Adds gpu elements to devices that can only be GPUs, in a file made for virtual machines.

        Clouds write such files for NCCL_TOPO_FILE: with the ways over PCIe, which a virtual machine
        hides, and without what NCCL finds by itself.
        """
        found = [
            pci
            for cpu in cpus
            for pci in cpu.iter("pci")
            if pci.get("class", "").lower().startswith(_ONLY_GPUS)
        ]
        for pci in found:
            pci.append(pci.makeelement("gpu", {}))
        if found:
            self.box.assumed.append(
                f"it has no gpu element: {counted(len(found), 'device')} of class "
                f"{listed(sorted({pci.get('class') for pci in found}))} taken for GPUs, without "
                "NVLinks, which only a dump of a run has (NCCL_TOPO_DUMP_FILE)"
            )

    def _read_cpu(self, cpu: Any) -> None:
        """Adds a processor and all devices behind it."""
        host = cpu.get("host_hash", "")
        self.hosts.setdefault(host, len(self.hosts))
        node = self._label(host, f"cpu{attribute(cpu, 'cpu', 'numaid')}")
        if node in self.box.graph:
            raise FileError(f"{node}: numaid is given twice")
        self.box.add_switch(node)
        if len(self.cpus) == MAX_CPUS:
            raise FileError(f"more than {MAX_CPUS} cpu elements, the most accepted")
        self.cpus[host, node] = cpu
        self.cpus_of[host] += 1
        if self.cpus_of[host] > MAX_CPUS_PER_HOST:
            raise FileError(f"more than {MAX_CPUS_PER_HOST} cpu elements of a host")
        # A list instead of recursion, so that no nesting is too deep.
        pending = [(child, node) for child in reversed(cpu)]
        while pending:
            element, parent = pending.pop()
            if element.tag == "pci":
                below = self._read_pci(element, host, node, parent)
                pending += [(child, below) for child in reversed(element)]
            elif element.tag == "nic" and parent == node:
                self._add_nic(element, parent, node)

    def _read_pci(self, pci: Any, host: str, cpu: str, parent: str) -> str:
        """Adds a PCIe device with its link to its parent; returns its node."""
        bus = attribute(pci, "pci", "busid").lower()
        where = f"pci {bus}"
        gpus, nic = pci.findall("gpu"), pci.find("nic")
        node = self._label(host, f"{'gpu' if gpus else 'nic' if nic is not None else 'pci'}-{bus}")
        if (host, bus) in self.buses:
            raise FileError(f"{where}: busid is given twice")
        self.buses.add((host, bus))
        if len(gpus) > 1:
            raise FileError(f"{where}: {len(gpus)} gpu elements; expected one GPU per device")
        speed = pcie_mb_per_s(pci, where)
        (self.box.add_gpu if gpus else self.box.add_switch)(node)
        if self.pcie:
            self.box.join(parent, node, speed)
        if gpus:
            self.gpus[host, bus] = gpus[0]
            self.with_gpus.add(cpu)
            self._add_c2c(gpus[0], node, cpu)
        elif nic is not None:
            self._add_nic(nic, node, cpu)
        return node

    def _add_c2c(self, gpu: Any, node: str, cpu: str) -> None:
        for c2c in gpu.iterfind("c2c"):
            speed = integer_attribute(c2c, f"c2c of {node}", "bw") * link_count(
                c2c, f"c2c of {node}"
            )
            if self.pcie:
                self.box.join(cpu, node, speed)

    def _add_nic(self, nic: Any, node: str, cpu: str) -> None:
        """Joins a network card to the outer switch, with the speeds of its ports added up."""
        for net in nic.iterfind("net") if self.network else ():
            if net.get("dev") is None or net.get("net") == "0":
                continue  # as in NCCL: a port that is off, or part of a joined one
            where = f"net {net.get('name', net.get('dev'))!r:.40} of {node}"
            mbits = integer_attribute(net, where, "speed", least=-(10**9), default=0)
            self.with_cards.add(cpu)
            speed, latency_s = (mbits if mbits > 0 else 10_000) / 8, net_latency_s(net, where)
            if not self.cards:
                self.box.add_switch("fabric")
                self.box.join(node, "fabric", speed, latency_s)
                continue
            card = node
            if node == cpu:
                card = f"nic-{net.get('name', net.get('dev'))!s:.40}"
                self.box.add_switch(card)
                self.box.join(card, cpu, speed, latency_s)
            self.box.cards[card] = (*self.box.cards.get(card, ()), net.get("name", ""))

    def _add_nvlinks(self) -> None:
        """Adds the links listed in the gpu elements."""
        for (host, bus), gpu in self.gpus.items():
            node = self._label(host, f"gpu-{bus}")
            for link in gpu:
                if link.tag not in ("nvlink", "xgmi"):
                    continue
                where = f"{link.tag} of {node}"
                speed = link_count(link, where) * gpu_link_mb_per_s(gpu, link.tag, node)
                kind = attribute(link, where, "tclass").lower()
                target = attribute(link, where, "target").lower()
                if kind.startswith(("0x03", "0x12")):  # displays, and accelerators such as MI300
                    if (host, target) in self.gpus and target != bus:  # Azure's NCv4 has such loops
                        self.box.add(node, self._label(host, f"gpu-{target}"), speed)
                elif kind == "0x068000":
                    switch = "nvswitch" if self.one_nvswitch else self._label(host, "nvswitch")
                    self.box.add_switch(switch)
                    self.box.join(node, switch, speed)
                elif kind != "0x068001":  # a processor's own NVLink: not modelled
                    raise FileError(
                        f"{where}: tclass must be 0x03…, 0x12… (a GPU) or 0x068000 (an NVSwitch), "
                        f"got {kind!r:.40}"
                    )

    def _finished(self) -> Box:
        if not self.gpus:
            raise FileError("no gpu element; dump the file with NCCL_TOPO_DUMP_FILE from a run")
        # Processors with the only cards of the file would be mere detours.
        needed = self.with_gpus | (self.with_cards if len(self.with_cards) > 1 else set())
        for (host, node), cpu in self.cpus.items() if self.pcie else ():
            if node in needed:
                self.box.cpus[node] = host, cpu_link_mb_per_s(cpu, node)
        gpus = [(self._label(host, f"gpu-{bus}"), gpu) for (host, bus), gpu in self.gpus.items()]
        if all(gpu.get("rank") is not None for _, gpu in gpus):
            rank = {node: integer_attribute(gpu, node, "rank") for node, gpu in gpus}
            if len(set(rank.values())) < len(rank):
                raise FileError("gpu: two have the same rank")
            order = sorted(rank, key=rank.__getitem__)
            self.box.gpus = {node: f"gpu{rank[node]}" for node in order}
        return self.box

    def _label(self, host: str, label: str) -> str:
        place = self.hosts[host]
        return f"host{place}/{label}" if place else label
