"""``gradweave topology explain``: times measured by nccl-tests, compared with a network."""

from pathlib import Path
from typing import Any

import click

from gradweave.cli.console import Progress, print_json, print_lines, print_table, table
from gradweave.cli.groups import command
from gradweave.cli.options import json_option, writable
from gradweave.errors import OptionError
from gradweave.probe.calibration import calibrated_by_nccl_tests
from gradweave.probe.calibration import write as write_profile
from gradweave.probe.nccl_tests import COLLECTIVES, read_measurements
from gradweave.report.busbw import Explained, explain
from gradweave.topology.spec import from_spec
from gradweave.topology.units import format_rate, format_seconds, format_size


@command("explain", examples=["all_reduce.log --network node.xml+fabric.out"])
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--network",
    metavar="NETWORK",
    help="Compare with this network, whose servers are the ranks in order, or their hosts.",
)
@click.option(
    "--collective",
    type=click.Choice(COLLECTIVES),
    help="The collective of a FILE that does not name it.",
)
@click.option(
    "--ranks",
    type=click.IntRange(min=2),
    help="The number of ranks of a FILE that does not show it.",
)
@click.option(
    "--write-runtime",
    type=click.Path(path_type=Path),
    metavar="FILE.toml",
    help="With --network, write the message costs by these times as a profile for --runtime.",
)
@json_option
def explain_(
    files: tuple[Path, ...],
    network: str | None,
    collective: str | None,
    ranks: int | None,
    write_runtime: Path | None,
    as_json: bool,
) -> None:
    """Explain times that nccl-tests or rccl-tests measured.

    FILE is their text, with a launcher's or NCCL's lines in between, or the JSON of -J. It says
    what algbw and busbw mean there, what the links of --network permit, and how far the times are
    from its lower bounds.
    """
    writable(write_runtime, ".toml")
    if write_runtime is not None and network is None:
        raise OptionError("--write-runtime: expected --network with it; give both")
    with Progress("explaining times") as progress:
        measured = [
            one
            for file in files
            for one in read_measurements(file, collective=collective, ranks=ranks)
        ]
        topology = None if network is None else from_spec(network)
        progress("bounding them")
        found = [explain(one, topology) for one in measured]
        if write_runtime is not None and topology is not None:
            progress("fitting message costs")
            write_profile(calibrated_by_nccl_tests(topology, measured), write_runtime)
    if as_json:
        written = None if write_runtime is None else str(write_runtime)
        each = [one.as_object() for one in found]
        print_json({"network": network, "measurements": each, "runtime": written})
        return
    for number, one in enumerate(found):
        print_lines(*[""] * (number > 0), *one.lines())
        print_table(_table(one))
    if write_runtime is not None:
        print_lines(f"message costs written to {write_runtime}")


def _table(one: Explained) -> Any:
    bounded = any(bound is not None for bound in one.bounds)
    heads = ["size", "time", "algbw", "busbw", *["at least", "busbw at most"] * bounded]
    rows = []
    for number, (point, bound) in enumerate(zip(one.measured.points, one.bounds, strict=True)):
        row = [
            format_size(point.bytes),
            format_seconds(point.seconds),
            _rate(point.algorithm_bytes_per_s),
            _rate(point.bus_bytes_per_s),
        ]
        if bounded:
            bus = one.bound_bus_bytes_per_s(number)
            row.append("–" if bound is None else format_seconds(bound.seconds))
            row.append("–" if bus is None else format_rate(bus))
        rows.append(row)
    return table(heads, rows)


def _rate(bytes_per_s: float) -> str:
    """A printed bandwidth; nccl-tests prints 0.00 below 5 MB/s."""
    return format_rate(bytes_per_s) if bytes_per_s else "< 5 MB/s"
