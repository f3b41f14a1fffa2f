"""``gradweave ranks``: the order of ranks that makes a stock library quick on a network."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Unpack

import click

from gradweave.cli.answers import Answer
from gradweave.cli.combinations import needs
from gradweave.cli.console import Progress, Table
from gradweave.cli.groups import command
from gradweave.cli.meshes import mesh_axes, of_axes
from gradweave.cli.options import (
    FaultOptions,
    SizesType,
    fault_options,
    faults,
    host_links,
    network_files,
    option,
    oversubscription_option,
    seed_option,
    time_limit_option,
    written_option,
)
from gradweave.cli.tables import TableRequest, table_options
from gradweave.errors import OptionError, SpecError
from gradweave.export.rank_order import ORDER_FORMATS, save_rank_order, to_rank_order
from gradweave.export.rankfile import hosts_of_servers, parse_hosts
from gradweave.ranks.libraries import LIBRARIES
from gradweave.ranks.search import Order, optimize
from gradweave.simulator.runtime import NAMES
from gradweave.topology.formats.files import read_together
from gradweave.topology.spec import from_spec
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_seconds, format_size, parse_size

_SHOWN = 16
"""Number of ranks that are printed."""


_STEP_BYTES = (25_000_000,)


class _RankSizes(SizesType):
    """Sizes as everywhere, or a size for each axis such as tp=4GB,dp=500MB."""

    def _read(self, value: Any) -> Any:
        if not isinstance(value, str) or "=" not in value:
            return super()._read(value)
        try:
            return {axis: float(parse_size(x)) for axis, x in of_axes("axes", value).items()}
        except OptionError as error:
            raise SpecError(str(error)) from None


@command(
    examples=[
        "cluster.hosts --bandwidth 10Gbit/s --output hosts.txt",
        "cluster.hosts --oversubscription 4 --table openmpi --output rules.conf",
    ]
)
@click.argument("network")
@option(
    "--for library",
    "Optimise for the all-reduce of this library.",
    click.Choice([*LIBRARIES]),
    default="gloo",
)
@option(
    "--size sizes",
    "Size of the gradient. A list (1MB,8MB) or a range (1MB..64MB, doubling; 1KB..1GB*10) "
    "makes a table, and the order is optimised for the largest. With --mesh, the bytes per step "
    "along each axis, such as tp=4GB,dp=500MB.",
    _RankSizes(),
    default="25MB",
)
@option(
    "--mesh",
    "Groups of ranks, such as dp=4,tp=8; ranks along the last axis are consecutive.",
    metavar="AXIS=N,…",
)
@option(
    "--runtime",
    f"Message costs: ideal (none), {', '.join(NAMES)}, or a TOML file.  [default: the library's]",
    metavar="NAME|FILE",
)
@option("--hosts", "Host of each server, in order of id, as in node1,node2.")
@option(
    "--addresses",
    "With --format mlx, the IP address of each server, in order of id.",
    metavar="IP,…",
)
@option("--bandwidth", "Bandwidth per host, for a list of hosts.  [default: 100Gbit/s]")
@oversubscription_option
@fault_options
@seed_option
@time_limit_option
@written_option("--output", "Write the order to this file.")
@option("--format format_", "Format of the file.  [default: hostfile]", click.Choice(ORDER_FORMATS))
@table_options
@needs("--output", "--format")
@needs("--format mlx", "--addresses")
def ranks(
    network: str,
    library: str,
    sizes: tuple[int, ...] | dict[str, float],
    mesh: str | None,
    runtime: str | None,
    hosts: str | None,
    addresses: str | None,
    bandwidth: str | None,
    oversubscription: float | None,
    seed: int,
    time_limit: float | None,
    output: Path | None,
    format_: str | None,
    table_format: str | None,
    numbered: str | None,
    measured: Path | None,
    base: Path | None,
    local_ranks: int | None,
    **lost: Unpack[FaultOptions],
) -> Answer:
    """Find the rank order in which a stock library is fastest.

    With --table, find its fastest algorithms by size instead.

    NETWORK is a specification, a network's file, or a list of hosts: Slurm's topology.conf or
    topology.yaml, topograph's JSON, or lines such as rack1:node7.
    """
    ips = None if addresses is None else [ip.strip() for ip in addresses.split(",")]
    axes = None if mesh is None else mesh_axes(mesh)
    moved, gradient_bytes = (sizes, _STEP_BYTES) if isinstance(sizes, dict) else (None, sizes)
    if moved is not None and axes is None and table_format is None:
        raise OptionError("--size: expected --mesh with sizes along axes")
    doing = "ordering" if table_format is None else "predicting algorithms on"
    with Progress(f"{doing} {network}") as progress:
        topology = faults(lost).apply_to(_network(network, bandwidth, oversubscription))
        if hosts is not None:
            topology = _named(topology, hosts_of_servers(topology, parse_hosts(hosts)))
        if table_format is not None:
            wanted = (table_format, numbered, measured, base, local_ranks, runtime, output)
            request = TableRequest(*wanted)
            return request.answer(request.build(topology, max(gradient_bytes), seed))
        format_ = format_ or "hostfile"
        if output is not None:  # refused before the search
            to_rank_order(topology, topology.servers.tolist(), format_, addresses=ips)
        found = optimize(
            topology,
            library,
            max(gradient_bytes),
            mesh=axes,
            axis_bytes=moved,
            runtime=runtime,
            seed=seed,
            time_limit=time_limit,
            progress=progress,
        )
        sized = [found]
        if axes is None and len(gradient_bytes) > 1:
            sized = [found.at(size) for size in gradient_bytes]
        if output is not None:
            save_rank_order(topology, found.ranks, output, format_, addresses=ips)
    aside = "nothing written: --output hosts.txt --format hostfile writes the order"
    answer = Answer(_object(found, sized), _text(found, sized), [aside] * (output is None))
    return answer.written_to(output)


def _network(text: str, bandwidth: str | None, oversubscription: float | None) -> Topology:
    """The network; for a list of hosts, with the given bandwidth and oversubscription."""
    given = host_links(bandwidth, oversubscription)
    files = network_files(text, given)
    return read_together(files, given) if files else from_spec(text)


def _named(topology: Topology, hosts: list[str]) -> Topology:
    """The network with hosts as its servers' names."""
    labels = list(topology.labels) or [str(node) for node in range(topology.num_nodes)]
    for server, host in zip(topology.servers.tolist(), hosts, strict=True):
        labels[server] = host
    return dataclasses.replace(topology, labels=tuple(labels))


def _object(found: Order, sized: list[Order]) -> dict[str, Any]:
    keys = ("gradient_bytes", "seconds", "by_id_s", "by_name_s", "bound_s", "algorithm")
    each = [{key: one.as_object()[key] for key in keys} for one in sized]
    why = found.bound.reason(found.topology.id_name)
    return found.as_object() | {"bound_reason": why, "sizes": each}


def _text(found: Order, sized: list[Order]) -> Iterator[str | Table]:
    name = found.topology.id_name
    yield f"{found.topology.name}: {found.topology.num_servers} servers, for {found.library}"
    more = " …" * (len(found.ranks) > _SHOWN)
    yield f"ranks: {' '.join(map(name, found.ranks[:_SHOWN]))}{more}"
    by_name = ["by name"] * (found.by_name_s is not None)
    heads = ["moved", "its", "this order", *by_name, "by id", "at least", "above"]
    yield Table(heads, map(_cells, sized))
    yield f"no order is predicted below the bound, since {found.bound.reason(name)}"
    if found.mesh is not None:
        yield ", ".join(f"{axis} {format_seconds(s)}" for axis, s in found.axis_s.items())
    elif found.bound.kind == "processors" and found.gap < 1e-3:
        yield (
            "processors, not links, limit the time at this size: other orders are predicted to be "
            "as fast unless they load a link more; --runtime ideal ignores processors"
        )
    how = "every ring was compared" if found.compared_all else "found by annealing"
    when = ", when time was up" * (found.stopped == "time")
    yield f"{how} in {found.wall_s:.2f} s{when}"


def _cells(one: Order) -> list[str]:
    others = [one.by_id_s] if one.by_name_s is None else [one.by_name_s, one.by_id_s]
    return [
        format_size(one.gradient_bytes),
        one.algorithm.replace("_", " "),
        format_seconds(one.seconds),
        *(f"{format_seconds(other)} ({other / one.seconds:.2f}×)" for other in others),
        format_seconds(one.bound.seconds),
        f"{one.gap:.1%}",
    ]
