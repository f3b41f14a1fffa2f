"""``gradweave topology measure``: a live network, measured into a topology file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from gradweave.cli.answers import Answer
from gradweave.cli.console import Progress, Table, complain, link_fields, note
from gradweave.cli.groups import command
from gradweave.cli.options import FILE, SECONDS, option, writable
from gradweave.common.wording import counted
from gradweave.errors import OptionError
from gradweave.execute.running.joined import ended_at_once
from gradweave.probe.launch import (
    BACKENDS,
    on_this_machine,
    take_part,
    told_in_one_line,
    under_launcher,
)
from gradweave.probe.session import SLOT_S, TIMEOUT_S, Terms
from gradweave.processes.ending import end_at_once
from gradweave.processes.launchers import rank_given
from gradweave.topology.formats.files import read
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_bandwidth, format_seconds

_MOST_SHOWN = 24


@command(examples=["net.json --servers 4"])
@click.argument("output", type=FILE)
@option(
    "--backend",
    "Measure the messages of this backend.",
    click.Choice(sorted(BACKENDS)),
    default="torch",
)
@option(
    "--servers",
    "Start this many processes on this machine, without a launcher.",
    click.IntRange(2, 256),
    metavar="N",
)
@option(
    "--slot",
    "Measure a transfer for this long, after its window has grown.",
    SECONDS,
    default=SLOT_S,
)
@option(
    "--timeout",
    "End the measurement when a server has been silent for this long.",
    SECONDS,
    default=TIMEOUT_S,
)
def measure(
    output: Path, backend: str, servers: int | None, slot: float, timeout: float
) -> Iterator[Answer]:
    """Measure the network between processes into a file, OUTPUT.

    Start it with mpirun or torchrun, one process per server. It measures round trips and bandwidths
    of all pairs, both ways, and then of many pairs at once: those that are slower together share a
    link. All commands that take a NETWORK take the file.
    """
    with ended_at_once(complain):
        writable(output, ".json", ".yaml", ".yml")
        terms = Terms(slot, timeout)
        joined = under_launcher(backend)
        first = rank_given(backend) in (None, 0)
        if joined and servers is not None:
            raise OptionError("--servers: under a launcher its processes are the servers")
        if not joined and servers is None:
            raise OptionError(
                "expected mpirun or torchrun around this, one process per server, or --servers N "
                "for processes on this machine"
            )
        with Progress("measuring") as progress, told_in_one_line():
            if not first:
                progress.hide()
            if servers is None:
                take_part(output, backend, terms, progress, note)
            else:
                on_this_machine(servers, output, terms, progress, note)
    if first:
        topology, how = read(output), _how(output)
        yield Answer(_as_object(topology, output, how), _text(topology, output, how))
    if joined and backend == "torch":
        # The engine would take seconds to clear away what goes with the process anyway.
        end_at_once(0, lambda: None)


def _text(topology: Topology, output: Path, how: dict[str, Any]) -> Iterator[str | Table]:
    yield (
        f"{topology.num_servers} servers, "
        f"{counted(len(topology.switches), 'switch', 'switches')} (what is shared), "
        f"{counted(topology.num_links, 'link')}, "
        f"measured in {how['seconds']:.1f} s by {how['library']}"
    )
    yield _table(topology)
    if topology.num_links > _MOST_SHOWN:
        yield f"and {topology.num_links - _MOST_SHOWN} more links"
    yield f"written to {output}"


def _how(output: Path) -> dict[str, Any]:
    """When and by what a file was measured."""
    if output.suffix == ".json":
        return json.loads(output.read_text())["graph"]["measured"]
    import yaml

    return yaml.safe_load(output.read_text())["graph"]["measured"]


def _as_object(topology: Topology, output: Path, how: dict[str, Any]) -> dict[str, Any]:
    return {
        "file": str(output),
        "servers": topology.num_servers,
        "switches": len(topology.switches),
        "labels": list(topology.labels),
        "links": link_fields(topology),
        "measured": how,
    }


def _table(topology: Topology) -> Table:
    shown = Table(["link", "there", "back", "latency"])
    there, latency = topology.bandwidth_bytes_per_s.tolist(), topology.latency_s.tolist()
    for link, back in enumerate(topology.opposite.tolist()):
        if link < back and len(shown.rows) < _MOST_SHOWN:
            shown.add_row(
                topology.link_name(link),
                *(format_bandwidth(there[one]) for one in (link, back)),
                format_seconds(latency[link]),
            )
    return shown
