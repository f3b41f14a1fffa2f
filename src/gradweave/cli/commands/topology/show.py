"""``gradweave topology show``: what is known about a network."""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import click

from gradweave.bounds.classes import holds_for
from gradweave.bounds.seconds_bound import seconds_bound
from gradweave.cli.answers import Answer
from gradweave.cli.console import network_line, rank_lines
from gradweave.cli.groups import command
from gradweave.cli.options import (
    FaultOptions,
    fault_options,
    faults,
    host_links,
    network_files,
    option,
    oversubscription_option,
    size_option,
    written_option,
)
from gradweave.common.wording import counted
from gradweave.errors import AssumedWarning, InputWarning
from gradweave.topology.formats.files import find_all, save, together
from gradweave.topology.formats.host_tree import HostLinks, HostTree
from gradweave.topology.formats.readers import TITLES, Content
from gradweave.topology.groups import nested_groups
from gradweave.topology.oddities import oddities
from gradweave.topology.routes import hop_distances
from gradweave.topology.spec import from_spec
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_bandwidth, format_seconds, format_size

_MOST_KINDS = 12
"""Kinds of links that are printed; JSON has all."""
_MOST_ODD = 12


@command(examples=["cluster.yaml", "node.txt fabric.out --size 1GB --output cluster.json"])
@click.argument("network", metavar="NETWORK|FILE…", nargs=-1, required=True)
@option("--bandwidth", "Bandwidth that files do not state.  [default: 100Gbit/s]")
@oversubscription_option
@fault_options
@size_option("Bound the time of an all-reduce of this size.", default="100MB")
@written_option(
    "--output",
    "Write the network to this file, .json, .yaml or .graphml.",
    (".json", ".yaml", ".yml", ".graphml"),
)
def show(
    network: tuple[str, ...],
    bandwidth: str | None,
    oversubscription: float | None,
    gradient_bytes: float,
    output: Path | None,
    **given: Unpack[FaultOptions],
) -> Answer:
    """Show what is known about NETWORK, or recognised in FILEs.

    It prints what each FILE is and what had to be assumed, servers, switches and kinds of links, a
    lower bound on the time of an all-reduce, and what stands out, such as a slow cable. A host's
    inside (nvidia-smi topo -m, lstopo, …) and a fabric (ibnetdiscover, topology.conf, …) become one
    network; other commands take it as FILE+FILE. 'gradweave show' draws it with a schedule.
    """
    links = host_links(bandwidth, oversubscription)
    files = network_files(network[0], links) if len(network) == 1 else list(network)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", InputWarning)
        found = find_all(files)
        read = together(found, links) if files else from_spec(network[0])
        topology = faults(given).apply_to(read)
    assumed = [str(one.message) for one in caught if issubclass(one.category, AssumedWarning)]
    if links is None and any(isinstance(each.content, HostTree) for each in found.values()):
        assumed.append(_assumed_links())
    doubts = [str(one.message) for one in caught if not issubclass(one.category, AssumedWarning)]
    contents = {file: each.content for file, each in found.items()}
    about = _about(topology, {file: each.format for file, each in found.items()}, contents)
    about |= {
        "assumed": list(dict.fromkeys(assumed)),
        "bound": _bound(topology, gradient_bytes),
        "warnings": list(dict.fromkeys(doubts)),
    }
    if output is not None:
        save(topology, output)
    return Answer(about, _lines(topology, about)).written_to(output)


def _assumed_links() -> str:
    """The links of hosts that a list of hosts does not state."""
    links = HostLinks()
    return (
        f"{format_bandwidth(links.link.bandwidth_bytes_per_s)} for the link of each host, and for "
        "each uplink the sum of the links below it (--bandwidth, --oversubscription)"
    )


def _bound(topology: Topology, gradient_bytes: float) -> dict[str, Any]:
    """A lower bound of an all-reduce, with the schedules for which it holds."""
    bound = seconds_bound(topology, "all_reduce", gradient_bytes)
    return {
        "gradient_bytes": gradient_bytes,
        "seconds": bound.seconds,
        "holds_for": holds_for(bound.holds_unless),
        "reason": bound.reason(topology.id_name),
    }


def _about(
    topology: Topology, formats: Mapping[str, str], contents: Mapping[str, Content]
) -> dict[str, Any]:
    trees = any(isinstance(each, HostTree) for each in contents.values())
    return {
        "topology": topology.name,
        "format": "+".join(formats.values()) or "specification",
        "files": [{"file": file, "format": format} for file, format in formats.items()],
        "servers": topology.num_servers,
        "switches": len(topology.switches),
        "links": topology.num_links,
        "diameter": int(hop_distances(topology).max()),
        "link_kinds": _kinds(topology),
        "groups": [level.count for level in nested_groups(topology, equal=False)],
        "stands_out": oddities(topology, speeds=not trees),
    }


def _kinds(topology: Topology) -> list[dict[str, Any]]:
    """Links that are alike, the most numerous first; each direction counts as half a link."""
    columns = ("bandwidth_bytes_per_s", "latency_s", "overhead_s", "capacity")
    rows = zip(*(getattr(topology, column).tolist() for column in columns), strict=True)
    counts = sorted(Counter(rows).items(), key=lambda one: (-one[1], one[0]))
    return [{"links": count / 2} | dict(zip(columns, row, strict=True)) for row, count in counts]


def _lines(topology: Topology, about: dict[str, Any]) -> Iterator[str]:
    yield network_line(topology)
    yield from _source_lines(about["files"])
    yield from (f"assumed: {each}" for each in about["assumed"])
    diameter = counted(about["diameter"], "transfer")
    yield f"diameter: {diameter} between the two most distant servers"
    kinds = about["link_kinds"]
    yield from (f"links: {_kind_line(kind)}" for kind in kinds[:_MOST_KINDS])
    if len(kinds) > _MOST_KINDS:
        yield f"links: {len(kinds) - _MOST_KINDS} more kinds; --json lists all"
    if about["groups"]:
        sizes = " in ".join(f"{count} groups" for count in about["groups"])
        yield f"servers are in {sizes}, by the links between them"
    yield from rank_lines(topology)
    bound = about["bound"]
    yield (
        f"all-reduce of {format_size(bound['gradient_bytes'])}: at least "
        f"{format_seconds(bound['seconds'])} for {bound['holds_for']}: {bound['reason']}"
    )
    odd = about["stands_out"]
    yield from (f"stands out: {each}" for each in odd[:_MOST_ODD])
    if len(odd) > _MOST_ODD:
        yield f"stands out: {len(odd) - _MOST_ODD} more; --json lists all"
    yield from (f"warning: {doubt}" for doubt in about["warnings"])


def _source_lines(files: Sequence[Mapping[str, str]]) -> list[str]:
    if not files:
        return ["source: specification"]
    titles = [TITLES.get(each["format"], each["format"]) for each in files]
    if len(files) == 1:
        return [f"source: a file, read as {titles[0]}"]
    return [
        f"source: {each['file']}, read as {title}"
        for each, title in zip(files, titles, strict=True)
    ]


def _kind_line(kind: dict[str, Any]) -> str:
    parts = [f"{kind['links']:g} of {format_bandwidth(kind['bandwidth_bytes_per_s'])}"]
    parts.append(f"latency {format_seconds(kind['latency_s'])}")
    if kind["overhead_s"]:
        parts.append(f"overhead {format_seconds(kind['overhead_s'])} per message")
    if kind["capacity"] != 1:
        parts.append(f"capacity {kind['capacity']} transfers per round")
    return ", ".join(parts)
