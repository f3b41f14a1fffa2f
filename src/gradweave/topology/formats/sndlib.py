"""Networks of SNDlib, in its native format and in XML.

    ?SNDlib native format; type: network; version: 1.0
    META ( unit = MBITPERSEC )
    NODES ( ATLAng ( -84.38 33.75 ) … )
    LINKS ( a_b ( ATLAng WASHng ) 9920.00 0.00 0.00 0.00 ( 40000.00 133.00 ) … )

Source: sndlib.zib.de, "Native format" and "XML format".
"""

import math
import re
from typing import Any

from gradweave.errors import FileError
from gradweave.topology.formats.cables import Cable, Cables

_UNITS = {"MBITPERSEC": 1e6 / 8, "GBITPERSEC": 1e9 / 8, "KBITPERSEC": 1e3 / 8}
_LINK = re.compile(r"(\S+) \( (\S+) (\S+) \)([^()]*)(?:\(([^()]*)\))?")
_Link = tuple[str, str, str, float, list[float]]
"""Name, ends, installed capacity, and capacities of its modules."""


def is_sndlib(text: str) -> bool:
    """Whether a text begins as SNDlib's native format does."""
    return text.lstrip("\ufeff").lstrip().startswith("?SNDlib native format; type: network")


def parse_sndlib(text: str, name: str) -> Cables:
    """Reads a network in the native format: nodes are hosts.

    A link's speed is its installed capacity or, if nothing is installed, its smallest module, in
    the unit of the file; without a unit the file has no speeds.

    Args:
        text: the file's text.
        name: the network's name; not used.

    Raises:
        FileError: naming the section or link.
    """
    unit, section = "", ""
    nodes: list[str] = []
    links: list[_Link] = []
    ended = {"NODES": False, "LINKS": False}
    for number, whole in enumerate(text.splitlines()[1:], 2):
        line = whole.partition("#")[0].strip()
        if not section and (begun := re.fullmatch(r"([A-Z_]+) ?\(", line)):
            section = begun[1]
        elif section and line == ")":
            ended[section], section = True, ""
        elif section == "META" and (said := re.fullmatch(r"unit\s*=\s*(\S+)", line)):
            unit = said[1]
        elif section == "NODES" and line:
            nodes.append(line.split()[0])
        elif section == "LINKS" and line:
            match = _LINK.fullmatch(line)
            if not match:
                raise FileError(
                    f"line {number}: expected a link, name ( source target ) capacity …, got "
                    f"{line!r:.60}"
                )
            name, source, target, values, modules = match.groups()
            installed = _number(name, (values.split() or ["0"])[0])
            sizes = [_number(name, word) for word in (modules or "").split()[::2]]
            links.append((name, source, target, installed, sizes))
    for section, end in ended.items():
        if not end:
            raise FileError(f"the section {section} is missing or does not end; is the file whole?")
    return _cables(nodes, links, unit)


def sndlib_from_xml(root: Any) -> Cables:
    """Reads a network in XML, with the same meaning.

    Args:
        root: the network element.

    Raises:
        FileError: naming the link.
    """
    for element in root.iter():
        element.tag = str(element.tag).rpartition("}")[2]
    nodes = [node.get("id", "") for node in root.iterfind("networkStructure/nodes/node")]
    links: list[_Link] = []
    for link in root.iterfind("networkStructure/links/link"):
        name = link.get("id", "")
        installed = _number(name, link.findtext("preInstalledModule/capacity", "0"))
        modules = [
            _number(name, each.text or "") for each in link.iterfind("additionalModules/*/capacity")
        ]
        ends = (link.findtext("source", "").strip(), link.findtext("target", "").strip())
        links.append((name, *ends, installed, modules))
    return _cables(nodes, links, root.findtext("meta/unit", "").strip())


def _cables(nodes: list[str], links: list[_Link], unit: str) -> Cables:
    fabric, factor = Cables(), _UNITS.get(unit.upper())
    for node in nodes:
        if node in fabric.hosts:
            raise FileError(f"NODES: {node!r:.60} is listed twice")
        fabric.hosts[node] = None
    for name, source, target, installed, modules in links:
        for end in (source, target):
            if end not in fabric.hosts:
                raise FileError(f"LINKS: {name!r:.60}: no node is called {end!r:.60}")
        capacity = installed or min(modules, default=0.0)
        speed = capacity * factor if factor and capacity else None
        fabric.add(Cable((source, target), bytes_per_s=speed))
    if factor is None and links:
        fabric.assumed.append("its capacities have no unit")
    return fabric


def _number(where: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise FileError(f"LINKS: {where!r:.60}: expected a number, got {text!r:.40}") from None
    if not 0 <= value < 1e15 or not math.isfinite(value):
        raise FileError(f"LINKS: {where!r:.60}: expected a number from 0, got {text!r:.40}")
    return value
