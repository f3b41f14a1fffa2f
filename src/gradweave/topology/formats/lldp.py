"""Neighbours of switches, as ``show lldp neighbors`` prints them on Arista's EOS and Cisco's NX-OS.

    leaf1#show lldp neighbors
    Port       Neighbor Device ID             Neighbor Port ID           TTL
    Et1        node1                          eth0                       120
    Et49       spine1                         Ethernet1                  120

    leaf2# show lldp neighbors
    Device ID            Local Intf      Hold-time  Capability  Port ID
    spine1.example.com   Eth1/49         120        BR          Ethernet1/2

A file may hold the tables of several switches, each after its prompt.

Sources: Arista's EOS user manual and Cisco's NX-OS command reference, "show lldp neighbors";
capability codes of IEEE 802.1AB.
"""

import re
from pathlib import PurePath

from gradweave.errors import FileError
from gradweave.topology.formats.cables import Cable, Cables

_PROMPT = re.compile(
    r"(?:\S*@)?([A-Za-z0-9][\w.-]{0,252})(?:\([^)]*\))?[#>]\s*sh\S*\s+lldp\s+nei.*"
)
_EOS = re.compile(r"Port\s+Neighbor Device ID\s+Neighbor Port ID\s+TTL")
_NXOS = re.compile(r"Device ID\s+Local Intf\s+Hold-time\s+Capability\s+Port ID")
_EOS_ROW = re.compile(r"([A-Z][A-Za-z]{0,12}[0-9/.]+)\s+(\S+)\s+(\S(?:.*\S)?)\s+([0-9]{1,6})")
_NXOS_ROW = re.compile(
    r"(?:(\S+)\s+)?((?:Eth|mgmt|Po|Vethernet|Ethernet)[0-9/.]+)\s+([0-9]{1,6})\s+"
    r"(?:([RBTCWPSO]{1,8})\s+)?(\S+)"
)
_SWITCH_PORT = re.compile(
    r"(?:Ethernet|Eth|Et|ethernet|swp|xe-|et-|ge-|Te|Fo|Gi|Hu|Fa|TenGig|FortyGig|HundredGig)[0-9/-].*"
    r"|[0-9]+/[0-9/]+"
)
"""Names of ports that switches have and hosts do not."""
_MANAGEMENT = re.compile(r"(?:Ma|Management|mgmt)[0-9/.]*", re.IGNORECASE)
_IGNORED = re.compile(r"(?:-+\s*)+|Total entries.*|Capability codes:.*|\([A-Z]\) .*|.*table .*:.*|")


def is_lldp(text: str) -> bool:
    """Whether a text holds a table of LLDP neighbours of EOS or NX-OS."""
    return any(_EOS.match(line.strip()) or _NXOS.match(line.strip()) for line in text.splitlines())


def parse_lldp(text: str, name: str) -> Cables:
    """Reads tables of neighbours, each of the switch whose prompt is above it.

    A table without a prompt is of the switch that the file is named after. A neighbour is a switch
    if it has a table itself, forwards (capabilities B or R), or is connected by a port that only
    switches have; all others are hosts. Cables of management ports are left out; one that both ends
    list counts once. Speeds are not in such tables.

    Args:
        text: the file's text.
        name: the network's name, the file's path.

    Raises:
        FileError: naming the line, or no neighbour is a host.
    """
    rows = _rows(text, PurePath(name).stem or "switch")
    tables = {_plain(row[0]) for row in rows}
    fabric = Cables()
    seen: set[frozenset[tuple[str, str]]] = set()
    forwards = {
        device
        for _, _, device, port, capabilities in rows
        if _plain(device) in tables
        or set(capabilities) & {"B", "R"}
        or _SWITCH_PORT.fullmatch(port)
    }
    for local, port, device, other_port, _ in rows:
        if _MANAGEMENT.fullmatch(port) or _MANAGEMENT.fullmatch(other_port):
            continue
        ends = _plain(local), _plain(device)
        pair = frozenset([(ends[0], _short(port)), (ends[1], _short(other_port))])
        if pair in seen:
            continue
        seen.add(pair)
        fabric.switches[ends[0]] = None
        (fabric.switches if device in forwards else fabric.hosts)[ends[1]] = None
        fabric.add(Cable(ends, (_short(port), _short(other_port))))
    for both in fabric.hosts.keys() & fabric.switches.keys():
        del fabric.hosts[both]
    if not fabric.hosts:
        raise FileError(
            "no neighbour is a host: all are connected by ports of switches, or forward; add the "
            "tables of the leaves"
        )
    return fabric


def _rows(text: str, nameless: str) -> list[tuple[str, str, str, str, str]]:
    """Switch, port, neighbour, its port and capabilities of each row."""
    rows: list[tuple[str, str, str, str, str]] = []
    switch, layout, wrapped = "", None, ""
    for number, whole in enumerate(text.splitlines(), 1):
        line = whole.strip()
        if prompt := _PROMPT.fullmatch(line):
            switch, layout = prompt[1], None
        elif _EOS.match(line):
            layout = _EOS_ROW
        elif _NXOS.match(line):
            layout = _NXOS_ROW
        elif layout is None or _IGNORED.fullmatch(line):
            continue
        elif row := layout.fullmatch(line):
            switch = switch or nameless
            if layout is _EOS_ROW:
                rows.append((switch, row[1], row[2], row[3], ""))
                continue
            device = row[1] or wrapped
            if not device:
                raise FileError(f"line {number}: no device, got {line!r:.60}")
            rows.append((switch, row[2], device, row[5], row[4] or ""))
            wrapped = ""
        elif layout is _NXOS_ROW and len(line.split()) == 1:
            wrapped = line  # a long name has a line of its own
        elif re.fullmatch(r"\S+[#>].*", line):
            switch, layout = "", None  # another command
        else:
            raise FileError(f"line {number}: expected a neighbour, got {line!r:.60}")
    if not rows:
        raise FileError("no neighbours; expected rows below the table's head")
    return rows


def _plain(name: str) -> str:
    """A device's name without its domain."""
    return name.partition(".")[0] or name


def _short(port: str) -> str:
    """A port as EOS and NX-OS abbreviate it: ``Ethernet1/2`` is ``Et1/2`` and ``Eth1/2``."""
    return re.sub(r"^(?:Ethernet|Eth|Et)(?=[0-9])", "Et", port)
