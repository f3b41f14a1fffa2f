"""Slurm's topologies of hosts: ``topology.conf`` and ``topology.yaml``, trees and blocks.

    SwitchName=s0 Nodes=tux[0-3]          BlockName=b1 Nodes=tux[0-3]
    SwitchName=s1 Nodes=tux[4-7]          BlockName=b2 Nodes=tux[4-7]
    SwitchName=root Switches=s[0-1]       BlockSizes=4,8

Source: slurm.schedmd.com, topology.conf and topology.yaml (Slurm 25.05).
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gradweave.errors import FileError
from gradweave.topology.formats.attributes import closest
from gradweave.topology.formats.host_tree import HostTree, HostTreeBuilder
from gradweave.topology.formats.hostlist import hosts_of

_KEYS = ("switchname", "switches", "nodes", "linkspeed", "blockname", "blocksizes")
_EXPECTED = (
    "expected SwitchName=… with Nodes=… or Switches=…, or BlockName=… with Nodes=…, or BlockSizes=…"
)
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


def slurm_tree(data: Any) -> HostTree:
    """Reads a ``topology.yaml``: the cluster's default, or its first tree or block topology.

    Args:
        data: the decoded file, not trusted.

    Raises:
        FileError: naming the entry.
    """
    known = [one for one in data if isinstance(one.get("tree") or one.get("block"), dict)]
    if not known:
        raise FileError("expected a topology with tree or block; flat ones say nothing of links")
    default = [one for one in known if one.get("cluster_default") is True]
    chosen = (default or known)[0]
    entries, where = _Entries(), f"topology {chosen.get('topology')!s:.40}"
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
