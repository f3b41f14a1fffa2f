"""``gradweave topology show``: what is known about a network."""

import warnings
from collections import Counter
from pathlib import Path
from typing import Any, Unpack

import click

from gradweave.cli.console import print_json, print_lines, rank_lines
from gradweave.cli.groups import command
from gradweave.cli.options import FaultOptions, fault_options, json_option, network_of
from gradweave.errors import InputWarning
from gradweave.topology.formats.files import format_of
from gradweave.topology.groups import nested_groups
from gradweave.topology.routes import hop_distances
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_bandwidth, format_seconds
from gradweave.wording import counted

_MOST_KINDS = 12
"""Kinds of links that are printed; JSON has all."""


@command(examples=["cluster.yaml"])
@click.argument("network")
@fault_options
@json_option
def show(network: str, as_json: bool, **given: Unpack[FaultOptions]) -> None:
    """Show what is known about NETWORK.

    It prints the numbers of servers, switches and links, the kinds of links by bandwidth and
    latency, the diameter, groups of servers, and the format of the file. NETWORK is a
    specification or a file; 'gradweave show' draws it with a schedule.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", InputWarning)
        topology = network_of(network, given)
    doubts = list(dict.fromkeys(str(one.message) for one in caught))
    about = _about(network, topology) | {"warnings": doubts}
    if as_json:
        print_json(about)
    else:
        print_lines(*_lines(topology, about))


def _about(network: str, topology: Topology) -> dict[str, Any]:
    file = Path(network)
    return {
        "topology": topology.name,
        "format": format_of(file) if file.is_file() else "specification",
        "servers": topology.num_servers,
        "switches": len(topology.switches),
        "links": topology.num_links,
        "diameter": int(hop_distances(topology).max()),
        "link_kinds": _kinds(topology),
        "groups": [level.count for level in nested_groups(topology, equal=False)],
    }


def _kinds(topology: Topology) -> list[dict[str, Any]]:
    """Links that are alike, the most numerous first; each direction counts as half a link."""
    columns = ("bandwidth_bytes_per_s", "latency_s", "overhead_s", "capacity")
    rows = zip(*(getattr(topology, column).tolist() for column in columns), strict=True)
    counts = sorted(Counter(rows).items(), key=lambda one: (-one[1], one[0]))
    return [{"links": count / 2} | dict(zip(columns, row, strict=True)) for row, count in counts]


def _lines(topology: Topology, about: dict[str, Any]) -> list[str]:
    kinds = about["link_kinds"]
    source = about["format"]
    diameter = counted(about["diameter"], "transfer")
    lines = [
        f"{topology.name}: {counted(about['servers'], 'server')}, "
        f"{counted(about['switches'], 'switch', 'switches')}, {counted(about['links'], 'link')}",
        f"source: {source if source == 'specification' else f'a file, read as {source}'}",
        f"diameter: {diameter} between the two most distant servers",
        *(f"links: {_kind_line(kind)}" for kind in kinds[:_MOST_KINDS]),
    ]
    if len(kinds) > _MOST_KINDS:
        lines.append(f"links: {len(kinds) - _MOST_KINDS} more kinds; --json lists all")
    if about["groups"]:
        sizes = " in ".join(f"{count} groups" for count in about["groups"])
        lines.append(f"servers are in {sizes}, by the links between them")
    lines += rank_lines(topology)
    return [*lines, *(f"warning: {doubt}" for doubt in about["warnings"])]


def _kind_line(kind: dict[str, Any]) -> str:
    parts = [f"{kind['links']:g} of {format_bandwidth(kind['bandwidth_bytes_per_s'])}"]
    parts.append(f"latency {format_seconds(kind['latency_s'])}")
    if kind["overhead_s"]:
        parts.append(f"overhead {format_seconds(kind['overhead_s'])} per message")
    if kind["capacity"] != 1:
        parts.append(f"capacity {kind['capacity']} transfers per round")
    return ", ".join(parts)
