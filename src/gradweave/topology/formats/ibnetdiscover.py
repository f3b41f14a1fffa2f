r"""InfiniBand fabrics, as ``ibnetdiscover`` and ``ibnetdiscover -p`` print them.

    Switch  65 "S-2c5eab0300b87b40"     # "MF0;leaf1:MQM9701/U1" enhanced port 0 lid 73 lmc 0
    [1]     "H-e09d7303007a4bd8"[1](e09d7303007a4bd8)   # "node1 mlx5_5" lid 647 4xNDR
    [35]    "S-2c5eab0300c26280"[32]                    # "MF0;spine2:MQM9701/U1" lid 236 4xNDR

    CA  134  1 0x7cfe9003003b4bde 4x EDR - SW  1719 10 0x7cfe9003009ce5b0 ( 'o1 HCA-1' - 'leaf1' )

The second form has one line per port. Both print each cable twice, once from each end.

Source: ibnetdiscover(8) of rdma-core.
"""

import re
import warnings
from collections import Counter
from typing import NamedTuple

from gradweave.common.wording import counted
from gradweave.errors import FileError, InputWarning
from gradweave.topology.formats.cables import Cable, Cables
from gradweave.topology.topology import MAX_NODES
from gradweave.topology.units import parse_bandwidth

GBITS_PER_LANE = {
    "SDR": 2.0,
    "DDR": 4.0,
    "QDR": 8.0,
    "FDR10": 10.0,
    "FDR": 13.64,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}
"""Data rate of a lane in Gbit/s, after line coding: 8b/10b up to QDR, 64b/66b from FDR10 on.
Source: InfiniBand Trade Association, roadmap; 4x EDR is sold as 100 Gbit/s, 4x NDR as 400."""

_GUID = "[0-9a-fA-F]{1,16}"
_HEADER = re.compile(rf'(Switch|Ca|Rt)\s+[0-9]+\s+"[SHR]-({_GUID})"\s*#\s*"(.*?)"')
_CABLE = re.compile(
    rf'\[([0-9]+)\](?:\({_GUID}\))?\s+"([SHR])-({_GUID})"\[([0-9]+)\](?:\({_GUID}\))?\s*#(.*)'
)
_SPEED = re.compile(r"([0-9]{1,2})x\s*(\S+)")
_PORT = re.compile(
    rf"(CA|SW|RT)\s+[0-9]+\s+([0-9]+)\s+0x({_GUID})\s+([0-9]+x\s+\S+)"
    rf"(?:\s+-\s+(CA|SW|RT)\s+[0-9]+\s+([0-9]+)\s+0x({_GUID})\s+\( '(.*)' - '(.*)' \)|\s+'.*')"
)
_AGGREGATION = "Aggregation Node"
"""Description of the adapter within a switch that adds for SHARP: no host."""
_KINDS = {"S": "SW", "R": "RT", "H": "CA", "Switch": "SW", "Rt": "RT", "Ca": "CA"}


class _Cable(NamedTuple):
    """A cable between two ports."""

    ends: tuple[str, str]
    """GUIDs of its ends."""
    gbits: float


class _Fabric:
    """The cables read so far, and the kind and description of each device, by GUID."""

    def __init__(self) -> None:
        self.cables: dict[frozenset[tuple[str, str]], _Cable] = {}
        self.kind: dict[str, str] = {}
        self.description: dict[str, str] = {}

    def add(self, line: int, ends: list[tuple[str, str]], speed: str) -> None:
        """Adds a cable, unless it was read from its other end.

        Args:
            line: its line, for messages.
            ends: GUID and port of each end.
            speed: width and rate, such as ``4xNDR``.
        """
        match = _SPEED.fullmatch(speed.strip())
        lane = GBITS_PER_LANE.get(match[2]) if match else None
        if match is None or lane is None or not 1 <= int(match[1]) <= 12:
            raise FileError(
                f"line {line}: expected a width and rate such as 4xNDR, of "
                f"{', '.join(GBITS_PER_LANE)}; got {speed!r:.40}"
            )
        cable = _Cable((ends[0][0], ends[1][0]), int(match[1]) * lane)
        self.cables.setdefault(frozenset(ends), cable)

    def device(self, guid: str, kind: str, description: str) -> None:
        """Notes a device and its description."""
        self.kind[guid], self.description[guid] = kind, description.strip()
        if len(self.kind) > MAX_NODES:
            raise FileError(f"more than {MAX_NODES:,} devices; at most that many are supported")


def is_ibnetdiscover(text: str) -> bool:
    r"""Whether a text begins as one of the two forms does.

    >>> is_ibnetdiscover('# Topology file\nSwitch 65 "S-2c5eab0300b87b40" # "leaf" lid 7')
    True
    >>> is_ibnetdiscover("a b 100Gbit/s"), is_ibnetdiscover("SW 2 37 0x7cfe900300 4x SDR 'leaf'")
    (False, True)
    """
    lines = (line.strip() for line in text.lstrip("\ufeff").splitlines())
    return any(_HEADER.match(line) or _PORT.match(line) for line in lines)


def parse_ibnetdiscover(text: str, name: str) -> Cables:
    """Reads a fabric: hosts are servers, and cables between the same two nodes add up.

    A host is the first word of its adapters' descriptions (``node1 mlx5_5``), so that all its
    adapters are links of one server. Adapters without a host's name are left out with a warning;
    so are the adapters within switches that add for SHARP, without one.

    Args:
        text: the file's text.
        name: the network's name.

    Raises:
        FileError: a line is not understood, or no adapter has a host's name.
    """
    fabric = _read(text)
    switches = [guid for guid, kind in fabric.kind.items() if kind != "CA"]
    labels = _labels({guid: fabric.description[guid] for guid in switches})
    hosts = {guid: _host(fabric.description[guid]) for guid in fabric.kind if guid not in labels}
    nameless = [
        guid
        for guid, host in hosts.items()
        if host is None and _AGGREGATION not in fabric.description[guid]
    ]
    if nameless and not any(hosts.values()):
        raise FileError(
            f"none of {counted(len(nameless), 'adapter')} has a host's name, as in 'node1 mlx5_0'; "
            "set the node descriptions (rdma-ndd) and run ibnetdiscover again"
        )
    if nameless:
        warnings.warn(
            f"{name}: {counted(len(nameless), 'adapter')} without a host's name, such as "
            f"{fabric.description[nameless[0]]!r:.60}, left out",
            InputWarning,
            stacklevel=2,
        )
    taken = {host for host in hosts.values() if host}
    for guid, label in labels.items():
        if label in taken:
            labels[guid] = guid
    read = Cables()
    node = labels | {guid: host for guid, host in hosts.items() if host}
    read.hosts = dict.fromkeys(host for host in hosts.values() if host)
    read.switches = dict.fromkeys(labels.values())
    adapters = {guid: fabric.description[guid].partition(" ")[2].strip() for guid in hosts}
    for cable in fabric.cables.values():
        one, other = cable.ends
        if one in node and other in node:
            rate = parse_bandwidth(f"{cable.gbits:g}Gbit/s")
            ports = adapters.get(one, ""), adapters.get(other, "")
            read.add(Cable((node[one], node[other]), ports, rate))
    return read


def _read(text: str) -> _Fabric:
    """The devices and cables of either form."""
    fabric, device = _Fabric(), ""
    for number, whole in enumerate(text.splitlines(), 1):
        line = whole.strip()
        if not line or line.startswith("#") or re.match(r"[a-z]+=", line):
            continue
        if header := _HEADER.match(line):
            device = header[2]
            fabric.device(device, _KINDS[header[1]], header[3])
        elif (cable := _CABLE.fullmatch(line)) and device:
            port, kind, other, other_port, said = cable.groups()
            fabric.add(number, [(device, port), (other, other_port)], said.split()[-1])
            names = re.findall(r'"(.*?)"', said)
            if other not in fabric.kind and names:
                fabric.device(other, _KINDS[kind], names[-1])
        elif each := _PORT.fullmatch(line):
            kind, port, guid, speed, other_kind, other_port, other, own, others = each.groups()
            if other is None:
                continue  # nothing is connected, whatever the speed
            fabric.add(number, [(guid, port), (other, other_port)], speed)
            fabric.device(guid, kind, own)
            fabric.device(other, other_kind, others)
        else:
            raise FileError(
                f"line {number}: expected a device or a port as ibnetdiscover prints it, got "
                f"{line!r:.60}"
            )
    return fabric


def _host(description: str) -> str | None:
    """The host of an adapter, by its description; None if it names none.

    >>> _host("node1 mlx5_5"), _host("MT4129 ConnectX7   Mellanox Technologies")
    ('node1', None)
    """
    words = description.split()
    return words[0] if len(words) in (1, 2) else None


def _labels(descriptions: dict[str, str]) -> dict[str, str]:
    """Names of switches: as short as tells them apart.

    ``MF0;leaf1:MQM9701/U1`` is ``leaf1``, if no other switch is; then its whole description; then
    its GUID.
    """
    short = {
        guid: re.sub(r"^[^;:]*;|:.*$", "", description)
        for guid, description in descriptions.items()
    }
    labels = {}
    for guid, description in descriptions.items():
        choices = (
            (short[guid], Counter(short.values())),
            (description, Counter(descriptions.values())),
        )
        labels[guid] = next((label for label, seen in choices if label and seen[label] == 1), guid)
    return labels
