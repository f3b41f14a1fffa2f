"""Slurm's topologies of hosts: ``topology.conf``, ``topology.yaml``; trees, blocks, rings, tori.

    SwitchName=s0 Nodes=tux[0-3]          BlockName=b1 Nodes=tux[0-3]
    SwitchName=s1 Nodes=tux[4-7]          BlockName=b2 Nodes=tux[4-7]
    SwitchName=root Switches=s[0-1]       BlockSizes=4,8

Source: topology.conf(5) and topology.yaml(5) of Slurm 26.11.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gradweave.errors import FileError
from gradweave.topology.formats.attributes import closest
from gradweave.topology.formats.cables import Cable, Cables
from gradweave.topology.formats.host_tree import ROOT, HostTree, HostTreeBuilder, unused
from gradweave.topology.formats.hostlist import hosts_of

_KEYS = ("switchname", "switches", "nodes", "linkspeed", "blockname", "blocksizes")
_EXPECTED = (
    "expected SwitchName=… with Nodes=… or Switches=…, or BlockName=… with Nodes=…, or BlockSizes=…"
)
_KINDS = ("tree", "block", "ring", "torus3d")
_MOST_CELLS = 1 << 16
"""Most cells of a torus."""
_ENTRY = re.compile(r"([A-Za-z]+)=(\S+)")


@dataclasses.dataclass
class _Entries:
    """The entries of either file, with their places in it."""

    switches: list[tuple[str, str, str, str]] = dataclasses.field(default_factory=list)
    """Place, name, hosts, switches below; the last two are expressions, empty if there are none."""
    blocks: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)
    """Place, name, hosts."""
    block_sizes: Sequence[int] = ()


def parse_slurm_conf(text: str) -> HostTree:
    """Reads a ``topology.conf``.

    Args:
        text: the file's text.

    Raises:
        FileError: naming the line.
    """
    entries = _Entries()
    for where, line in _lines(text):
        values = _values(where, line)
        if "switchname" in values and not values.keys() & {"blockname", "blocksizes"}:
            hosts, below = values.get("nodes", ""), values.get("switches", "")
            if not hosts and not below:
                raise FileError(f"{where}: {_EXPECTED}")
            entries.switches.append((where, values["switchname"], hosts, below))
        elif values.keys() == {"blockname", "nodes"}:
            entries.blocks.append((where, values["blockname"], values["nodes"]))
        elif values.keys() == {"blocksizes"}:
            entries.block_sizes = [_size(where, size) for size in values["blocksizes"].split(",")]
        else:
            raise FileError(f"{where}: {_EXPECTED}, got {line!r:.60}")
    return _tree(entries)


def is_slurm_yaml(data: Any) -> bool:
    """Whether the content of a YAML file is a ``topology.yaml``.

    Args:
        data: the decoded file.
    """
    return (
        isinstance(data, list) and bool(data) and all(isinstance(one, dict) for one in data)
    ) and any("topology" in one for one in data)


def slurm_hosts(data: Any) -> HostTree | Cables:
    """Reads a ``topology.yaml``: the cluster's default, or its first topology that is not flat.

    Hosts of rings and tori are linked directly. If there are several, or a torus has holes that
    part it, one more switch that all hosts are linked to is assumed.

    Args:
        data: the decoded file, not trusted.

    Raises:
        FileError: naming the entry.
    """
    known = [one for one in data if any(isinstance(one.get(kind), dict) for kind in _KINDS)]
    if not known:
        raise FileError(
            f"expected a topology with {', '.join(_KINDS)}; flat ones say nothing of links"
        )
    default = [one for one in known if one.get("cluster_default") is True]
    chosen = (default or known)[0]
    entries, where = _Entries(), f"topology {chosen.get('topology')!s:.40}"
    if isinstance(chosen.get("ring"), dict):
        return _of_grids([_ring(*one) for one in _each(where, chosen["ring"], "rings")])
    if isinstance(chosen.get("torus3d"), dict):
        return _of_grids([_torus(*one) for one in _each(where, chosen["torus3d"], "toruses")])
    if isinstance(chosen.get("tree"), dict):
        for at, one in _each(where, chosen["tree"], "switches"):
            name, hosts, below = (_text(at, one, key) for key in ("switch", "nodes", "children"))
            if not name or not (hosts or below):
                raise FileError(f"{at}: expected switch and nodes or children")
            entries.switches.append((at, name, hosts, below))
    else:
        for at, one in _each(where, chosen["block"], "blocks"):
            name, hosts = _text(at, one, "block"), _text(at, one, "nodes")
            if not name or not hosts:
                raise FileError(f"{at}: expected block and nodes")
            entries.blocks.append((at, name, hosts))
        sizes = chosen["block"].get("block_sizes") or []
        if not isinstance(sizes, list):
            raise FileError(f"{where}: block_sizes: expected a list such as [4, 16]")
        entries.block_sizes = [_size(f"{where}: block_sizes", str(size)) for size in sizes]
    return _tree(entries)


_Grid = tuple[tuple[int, ...], dict[tuple[int, ...], str]]
"""The size in each dimension, and the host of each cell; every dimension wraps around."""


def _ring(where: str, ring: Mapping[str, Any]) -> _Grid:
    hosts = _expanded(where, _text(where, ring, "nodes"))
    return (len(hosts),), {(place,): host for place, host in enumerate(hosts)}


def _torus(where: str, torus: Mapping[str, Any]) -> _Grid:
    sizes = _point(where, torus, "dims", least=1)
    if math.prod(sizes) > _MOST_CELLS:
        raise FileError(f"{where}: dims: more than {_MOST_CELLS:,} cells")
    regions = [(where, torus)]
    if "nodes" not in torus:
        regions = _each(where, torus, "regions")
    cells: dict[tuple[int, ...], str] = {}
    for at, region in regions:
        extent = _point(at, region, "dims", least=1)
        anchor = _point(at, region, "anchor", least=0) if region is not torus else (0, 0, 0)
        if any(first + n > size for first, n, size in zip(anchor, extent, sizes, strict=True)):
            raise FileError(f"{at}: expected a region within the torus")
        hosts = _expanded(at, _text(at, region, "nodes"))
        places = itertools.product(*(range(n) for n in reversed(extent)))  # x varies fastest
        if len(hosts) > math.prod(extent):
            raise FileError(f"{at}: {len(hosts)} nodes for {math.prod(extent)} cells")
        for place, host in zip(places, hosts, strict=False):
            cell = tuple(first + x for first, x in zip(anchor, reversed(place), strict=True))
            if cell in cells:
                raise FileError(f"{at}: cell {cell} is given twice")
            cells[cell] = host
    return sizes, cells


def _point(where: str, inside: Mapping[str, Any], key: str, least: int) -> tuple[int, ...]:
    value = inside.get(key)
    axes = [value.get(axis) for axis in "xyz"] if isinstance(value, dict) else []
    point = tuple(x for x in axes if type(x) is int and least <= x <= _MOST_CELLS)
    if len(point) != 3:
        raise FileError(f"{where}: {key}: expected whole numbers x, y and z, from {least}")
    return point


def _of_grids(grids: Sequence[_Grid]) -> Cables:
    """Hosts in adjacent cells are linked, and others by one more switch if there must be one."""
    import networkx as nx

    fabric = Cables()
    for sizes, cells in grids:
        for host in cells.values():
            if host in fabric.hosts:
                raise FileError(f"host {host!r:.60} is listed twice")
            fabric.hosts[host] = None
        for cell, host in cells.items():
            for axis, size in enumerate(sizes):
                following = (*cell[:axis], (cell[axis] + 1) % size, *cell[axis + 1 :])
                once = size > 2 or cell[axis] == 0
                if size > 1 and once and following in cells:
                    fabric.add(Cable((host, cells[following])))
    linked: Any = nx.Graph([cable.ends for cable in fabric.cables])
    linked.add_nodes_from(fabric.hosts)
    parts = nx.number_connected_components(linked) if fabric.hosts else 1
    if parts > 1:
        core = unused(ROOT, fabric.hosts)
        fabric.switches[core] = None
        for host in fabric.hosts:
            fabric.add(Cable((host, core)))
        fabric.assumed.append(f"nothing joins its {parts} parts: a switch for all hosts is assumed")
    return fabric


def _lines(text: str) -> list[tuple[str, str]]:
    """Non-empty lines, joined if they end in a backslash, and their line numbers."""
    lines: list[tuple[str, str]] = []
    begun, joined = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        begun = begun if joined else number
        if content.endswith("\\"):
            joined += content[:-1] + " "
            continue
        if joined + content:
            lines.append((f"line {begun}", joined + content))
        joined = ""
    if joined.strip():
        lines.append((f"line {begun}", joined))
    return lines


def _values(where: str, line: str) -> dict[str, str]:
    """The values of a line by their keys, in lower case."""
    values: dict[str, str] = {}
    for word in line.split():
        match = _ENTRY.fullmatch(word)
        if not match:
            raise FileError(f"{where}: expected Key=value, got {word!r:.60}")
        key = match[1].lower()
        if key not in _KEYS:
            near = closest(key, _KEYS)
            guess = f"; did you mean {near}?" if near else ""
            raise FileError(f"{where}: unknown key {match[1]!r:.40}{guess}; {_EXPECTED}")
        if key in values:
            raise FileError(f"{where}: {match[1]} is given twice")
        values[key] = match[2]
    return values


def _tree(entries: _Entries) -> HostTree:
    if entries.switches and entries.blocks:
        raise FileError(
            f"{entries.blocks[0][0]}: a block beside switches; expected a tree or blocks, not both"
        )
    if not entries.switches and not entries.blocks:
        raise FileError(f"no switches and no blocks; {_EXPECTED}")
    builder = HostTreeBuilder()
    (_add_blocks if entries.blocks else _add_switches)(builder, entries)
    if not builder.hosts:
        raise FileError("no hosts; expected switches with Nodes=… such as Nodes=tux[0-3]")
    return builder.tree(top_has_no_name=bool(entries.blocks))


def _add_switches(builder: HostTreeBuilder, entries: _Entries) -> None:
    names = _once([(where, name) for where, name, *_ in entries.switches], "switch")
    for where, name, hosts, below in entries.switches:
        for host in _expanded(where, hosts):
            builder.add_host(where, host, name)
        for switch in _expanded(where, below):
            if switch not in names:
                raise FileError(
                    f"{where}: switch {switch!r:.60} has no entry of its own; expected one, with "
                    "its nodes or the switches below"
                )
            builder.add_switch(where, switch, name)


def _add_blocks(builder: HostTreeBuilder, entries: _Entries) -> None:
    """Blocks, and blocks of those that follow each other, as large as the sizes say."""
    _once([(where, name) for where, name, _ in entries.blocks], "block")
    level = []
    for where, name, hosts in entries.blocks:
        level.append(name)
        for host in _expanded(where, hosts):
            builder.add_host(where, host, name)
    sizes = entries.block_sizes
    for smaller, larger in itertools.pairwise(sizes):
        if larger <= smaller or larger % smaller:
            raise FileError(
                f"block sizes: expected each a multiple of the one before, got {smaller} and "
                f"{larger}"
            )
        each = larger // smaller
        groups = [level[first : first + each] for first in range(0, len(level), each)]
        if len(groups) < 2:
            break
        level = []
        for group in groups:
            upper = f"{group[0]}..{group[-1]}" if len(group) > 1 else f"{group[0]}.."
            level.append(upper)
            for name in group:
                builder.add_switch("block sizes", name, upper)


def _once(named: Sequence[tuple[str, str]], kind: str) -> set[str]:
    names: set[str] = set()
    for where, name in named:
        if name in names:
            raise FileError(f"{where}: {kind} {name!r:.60} has an entry already; expected one each")
        names.add(name)
    return names


def _expanded(where: str, expression: str) -> list[str]:
    try:
        return hosts_of(expression) if expression else []
    except FileError as error:
        raise FileError(f"{where}: {error}") from None


def _size(where: str, text: str) -> int:
    if not re.fullmatch("0*[1-9][0-9]{0,6}", text):
        raise FileError(f"{where}: expected sizes of blocks such as 4,16, got {text!r:.40}")
    return int(text)


def _each(where: str, inside: Mapping[str, Any], key: str) -> list[tuple[str, dict[str, Any]]]:
    values = inside.get(key)
    if not isinstance(values, list) or not values:
        raise FileError(f"{where}: {key}: expected a list of {key}")
    for number, value in enumerate(values):
        if not isinstance(value, dict):
            raise FileError(f"{where}: {key}[{number}]: expected keys and values")
    return [(f"{where}: {key}[{number}]", value) for number, value in enumerate(values)]


def _text(where: str, entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key, "")
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise FileError(f"{where}: {key}: expected text, got {type(value).__name__}")
    return value
