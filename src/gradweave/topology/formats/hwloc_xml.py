"""One host as ``lstopo host.xml`` of hwloc writes it, with NVLinks where hwloc was built with NVML.

    <topology version="2.0">
      <object type="Machine"> <object type="Package">
        <object type="NUMANode" …/>
        <object type="Bridge" bridge_type="1-1" pci_busid="0000:2b:00.0" pci_link_speed="15.753846">
          <object type="PCIDev" pci_busid="0000:34:00.0" pci_type="0302 [10de:1db8] …">
            <object type="OSDev" gp_index="802" name="nvml0"/>
      <distances2hetero nbobjs="28" name="NVLinkBandwidth"> <indexes>OSDev:802 …</indexes> …

Link speeds of PCIe are in GB/s, bandwidths of NVLink and Infinity Fabric in MB/s.

Source: hwloc's documentation, "Importing and exporting topologies from/to XML files" and
"Distances".
"""

import re
from typing import Any

from gradweave.common.wording import counted
from gradweave.errors import FileError
from gradweave.topology.formats.box import Box
from gradweave.topology.formats.nccl_attributes import cpu_link_mb_per_s

_UNKNOWN_PCIE = 12_000
"""MB/s of a PCIe link whose speed hwloc could not read: 16 lanes of 8 GT/s, as NCCL assumes."""
_GPU_CLASSES = ("0302", "0380", "1200")
"""PCI classes of GPUs without a screen: 3D and other display controllers, accelerators."""
_GPU_NAMES = re.compile(r"(cuda|nvml|rsmi|amdsmi|ze|opencl)[0-9]")
_BANDWIDTHS = ("NVLinkBandwidth", "XGMIBandwidth")
_MOST_DEVICES = 4096
"""Most devices of a distance matrix."""


def box_from_hwloc(root: Any) -> Box:
    """Reads a host.

    GPUs are PCI devices that CUDA, NVML, ROCm or OpenCL knows, or of a class of GPUs without a
    screen; cards are PCI devices of network classes with a name. Bridges that lead to one device
    only are part of its link, which has their smallest speed. All NVSwitches are one. Every bridge
    hangs on the processor whose memory is nearest. Speeds between processors, which hwloc does not
    know, are those that NCCL assumes.

    Args:
        root: the topology element.

    Raises:
        FileError: naming the object, or the host has no GPU.
    """
    reader = _HostReader(root)
    reader.read_objects()
    reader.hang_devices()
    for name in ("distances2", "distances2hetero"):
        for element in root.iterfind(name):
            if element.get("name") in _BANDWIDTHS:
                reader.add_bandwidths(element)
    return reader.box


class _HostReader:
    """The objects while the file is read."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.box = Box(_info(root, "HostName") or _info(root.find("object"), "HostName"))
        self.above: dict[str, str] = {}
        """The parent of each device and bridge, each after its parent."""
        self.mb_per_s: dict[str, float] = {}
        """The speed of each to its parent, 0 if unknown."""
        self.ports: set[str] = set()
        self.place: dict[str, str] = {}
        """The node of each object, by its gp_index: a GPU, a processor or the NVSwitch."""

    def read_objects(self) -> None:
        """Finds GPUs, cards, bridges and processors."""
        package = next(
            (each for each in self.root.iter("object") if each.get("type") == "Package"), None
        )
        processor = {
            "arch": "ppc64" if "ppc64" in _info(self.root, "Architecture") else "",
            "vendor": _info(package, "CPUVendor"),
            **{
                key: value
                for key, name in (("familyid", "CPUFamilyNumber"), ("modelid", "CPUModelNumber"))
                if (value := _info(package, name))
            },
        }
        speed = cpu_link_mb_per_s(processor, "Package")
        # A list instead of recursion, so that no nesting is too deep.
        pending = [(each, "", "") for each in self.root.findall("object")]
        while pending:
            element, cpu, parent = pending.pop()
            kind = element.get("type", "")
            children = element.findall("object")
            has_memory = any(child.get("type") == "NUMANode" for child in children)
            if has_memory or not cpu or (kind == "NUMANode" and children):
                number = len(self.box.cpus.keys() - {"machine"})
                cpu = f"cpu{number}" if has_memory or cpu else "machine"
                self.box.add_switch(cpu)
                self.box.cpus[cpu] = "", speed
            if kind == "Bridge" and element.get("pci_busid"):
                parent = self._add(element, "pci", parent or cpu)
                self.ports.add(parent)
            elif kind == "PCIDev":
                self._device(element, children, parent or cpu)
            if kind in ("Package", "NUMANode"):
                self.place[element.get("gp_index", "")] = cpu
            pending += [(child, cpu, parent) for child in reversed(children)]
        if not self.box.gpus:
            raise FileError("no GPU; run lstopo on a host with GPUs, with its PCI devices")
        if len(self.box.cpus.keys() - {"machine"}) > 1:
            known = " ".join(str(value) for value in processor.values() if value)
            self.box.assumed.append(
                f"it has no speeds between processors: assumed {speed / 1000:g} GB/s, as NCCL does "
                f"for {known or 'an unknown processor'}"
            )

    def _device(self, element: Any, children: list[Any], parent: str) -> None:
        """Notes a GPU, a card or an NVSwitch; other devices do not matter."""
        devices = [child for child in children if child.get("type") == "OSDev"]
        names = tuple(name for child in devices if (name := child.get("name")))
        kind = element.get("pci_type", "")[:4]
        if element.get("subtype") == "NVSwitch":
            self.box.add_switch("nvswitch")
            node = "nvswitch"
        elif any(map(_GPU_NAMES.match, names)) or kind in _GPU_CLASSES:
            node = self._add(element, "gpu", parent)
            self.box.add_gpu(node, f"gpu{len(self.box.gpus)}")
        elif kind.startswith("02") and names:
            node = self._add(element, "nic", parent)
            self.box.cards[node] = names
        else:
            return
        for each in (element, *devices):
            self.place[each.get("gp_index", "")] = node

    def _add(self, element: Any, prefix: str, parent: str) -> str:
        bus = element.get("pci_busid", "")
        if not re.fullmatch(r"[0-9a-fA-F:.]{1,24}", bus):
            raise FileError(f"a {element.get('type')}: expected a pci_busid, got {bus!r:.40}")
        node = f"{prefix}-{bus}"
        if node in self.above:
            raise FileError(f"pci_busid {bus} is given twice")
        text = element.get("pci_link_speed") or "0"
        if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,9})?", text):
            raise FileError(f"{node}: pci_link_speed: expected GB/s, got {text!r:.40}")
        self.above[node] = parent
        self.mb_per_s[node] = float(text) * 1000
        return node

    def hang_devices(self) -> None:
        """Joins GPUs and cards with their parents, through the bridges where ways part."""
        below: dict[str, list[str]] = {}
        unknown = 0
        for node in reversed(self.above):
            if node in self.ports and len(behind := below.get(node, [])) < 2:
                for only in behind:  # the same link goes on
                    speeds = [x for each in (node, only) if (x := self.mb_per_s[each])]
                    self.mb_per_s[only] = min(speeds, default=0.0)
                    self.above[only] = self.above[node]
                    below.setdefault(self.above[node], []).append(only)
                continue
            below.setdefault(self.above[node], []).append(node)
        for parent, nodes in below.items():
            if parent in self.ports and len(nodes) < 2:
                continue
            for node in nodes:
                if node not in self.box.gpus:
                    self.box.add_switch(node)
                unknown += not self.mb_per_s[node]
                self.box.join(node, parent, self.mb_per_s[node] or _UNKNOWN_PCIE)
        for port in self.ports & set(self.box.graph):
            self.box.graph.nodes[port]["kind"] = "switch"
        if unknown:
            self.box.assumed.append(
                f"{counted(unknown, 'PCIe link')} without a speed: assumed "
                f"{_UNKNOWN_PCIE / 1000:g} GB/s, as NCCL does"
            )

    def add_bandwidths(self, element: Any) -> None:
        """Adds direct links of a matrix of bandwidths."""
        indexes = " ".join(each.text or "" for each in element.iterfind("indexes")).split()
        values = " ".join(each.text or "" for each in element.iterfind("u64values")).split()
        where = f"{element.tag} {element.get('name')}"
        if len(indexes) > _MOST_DEVICES or len(values) != len(indexes) ** 2:
            raise FileError(
                f"{where}: expected a row of values per object, got {len(values)} for "
                f"{counted(len(indexes), 'object')}"
            )
        nodes = [self.place.get(index.rpartition(":")[2]) for index in indexes]
        side = len(nodes)
        for place, value in enumerate(values):
            if not re.fullmatch("[0-9]{1,9}", value):
                raise FileError(f"{where}: expected MB/s, got {value!r:.40}")
            source, target = nodes[place // side], nodes[place % side]
            back = values[place % side * side + place // side]
            if source and target and source != target and int(value) and value == back:
                if source in self.box.gpus or target in self.box.gpus:
                    self.box.add(source, target, int(value))


def _info(element: Any, name: str) -> str:
    """The value of an object's info, or empty text."""
    for info in () if element is None else element.iterfind("info"):
        if info.get("name") == name:
            return info.get("value", "")[:100]
    return ""
