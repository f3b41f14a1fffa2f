"""``gradweave topology explain``: times measured by nccl-tests, compared with a network."""

from collections.abc import Iterator
from pathlib import Path

import click

from gradweave.cli.answers import Answer
from gradweave.cli.combinations import needs
from gradweave.cli.console import Progress, Table
from gradweave.cli.groups import command
from gradweave.cli.options import FILE, option, written_option
from gradweave.probe.calibration import calibrated_by_nccl_tests
from gradweave.probe.calibration import write as write_profile
from gradweave.probe.nccl_tests import COLLECTIVES, read_measurements
from gradweave.report.busbw import Explained, explain
from gradweave.topology.spec import from_spec
from gradweave.topology.units import format_rate, format_seconds, format_size


@command("explain", examples=["all_reduce.log --network node.xml+fabric.out"])
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=FILE)
@option(
    "--network",
    "Compare with this network, whose servers are the ranks in order, or their hosts.",
    metavar="NETWORK",
)
@option(
    "--collective", "The collective of a FILE that does not name it.", click.Choice(COLLECTIVES)
)
@option("--ranks", "The number of ranks of a FILE that does not show it.", click.IntRange(min=2))
@written_option(
    "--write-runtime",
    "With --network, write the message costs by these times as a profile for --runtime.",
    (".toml",),
    metavar="FILE.toml",
)
@needs("--network", "--write-runtime")
def explain_(
    files: tuple[Path, ...],
    network: str | None,
    collective: str | None,
    ranks: int | None,
    write_runtime: Path | None,
) -> Answer:
    """Explain times that nccl-tests or rccl-tests measured.

    FILE is their text, with a launcher's or NCCL's lines in between, or the JSON of -J. It says
    what algbw and busbw mean there, what the links of --network permit, and how far the times are
    from its lower bounds.
    """
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
    written = None if write_runtime is None else str(write_runtime)
    each = [one.as_object() for one in found]
    answer = {"network": network, "measurements": each, "runtime": written}
    return Answer(answer, _text(found, written))


def _text(found: list[Explained], written: str | None) -> Iterator[str | Table]:
    for number, one in enumerate(found):
        if number:
            yield ""
        yield from one.lines()
        yield _table(one)
    if written is not None:
        yield f"message costs written to {written}"


def _table(one: Explained) -> Table:
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
    return Table(heads, rows)


def _rate(bytes_per_s: float) -> str:
    """A printed bandwidth; nccl-tests prints 0.00 below 5 MB/s."""
    return format_rate(bytes_per_s) if bytes_per_s else "< 5 MB/s"
