"""``gradweave export``: write a schedule as a file for another program."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click

from gradweave.cli.answers import Answer
from gradweave.cli.combinations import needs
from gradweave.cli.console import Progress, fields_of, rank_lines, rank_map
from gradweave.cli.groups import command
from gradweave.cli.options import FILE, SizeType, option, size_option, writable
from gradweave.common.atomic import atomic_write
from gradweave.common.wording import counted
from gradweave.errors import OptionError
from gradweave.export import FORMATS
from gradweave.export.chakra import save_chakra_et
from gradweave.export.equal_pieces import EqualPieces, in_equal_pieces_for
from gradweave.export.msccl import DIALECTS, save_msccl_xml, to_msccl_xml
from gradweave.export.mscclpp import save_mscclpp_json, to_mscclpp_json
from gradweave.export.perfetto import save_perfetto
from gradweave.export.rankfile import parse_hosts, save_rankfile
from gradweave.export.table import save_csv
from gradweave.schedules.file import load, load_implicit
from gradweave.schedules.kinds import check_schedule_file, is_implicit_file
from gradweave.schedules.schedule import Schedule
from gradweave.topology.units import format_seconds, format_size

_PLANS = ("name", "instances", "in_place", "min_bytes", "max_bytes")
_PIECES = ("equal_pieces", "pieces", "gradient_bytes")
_OPTIONS_OF = {
    "msccl-xml": (*_PLANS, "protocol", "dialect", *_PIECES),
    "mscclpp-json": (*_PLANS, *_PIECES),
    "chakra-et": ("gradient_bytes", "element_bytes"),
    "rankfile": ("hosts",),
    "perfetto": ("gradient_bytes", "measured"),
    "csv": ("rank",),
}
"""The options of each format."""
_SIZED = ("chakra-et", "perfetto")
"""Formats that need the size of the gradient."""
_PROTOCOLS = tuple(sorted({name for kind in DIALECTS.values() for name in kind.protocols}))


@command(
    examples=[
        "plan.json --format msccl-xml --output plan.xml",
        "plan.json --format perfetto --size 100MB --output plan.pftrace",
    ]
)
@click.argument("file", type=FILE)
@option(
    "--format format_", "Write the schedule in this format.", click.Choice(FORMATS), required=True
)
@option(
    "--output", "Write this file; for chakra-et, the files OUTPUT.<rank>.et.", FILE, required=True
)
@option("--name", "Give the algorithm or plan this name.")
@option("--instances", "Run this many copies in parallel.  [default: 1]", int)
@option(
    "--in-place/--out-of-place in_place",
    "Use it for calls in place or out of place.  [default: in place]",
    default=None,
)
@option("--min-bytes", "Use it for messages from this size on.", SizeType(least=0))
@option("--max-bytes", "Use it for messages up to this size.", SizeType())
@option("--protocol", "Use this protocol (msccl-xml).  [default: Simple]", click.Choice(_PROTOCOLS))
@option(
    "--dialect",
    "Write msccl-xml for MSCCL or for RCCL before 2.28.3, which removed it.  [default: msccl]",
    click.Choice(tuple(DIALECTS)),
)
@option(
    "--equal-pieces",
    "Convert pieces of unequal sizes to pieces of one size, and print the cost (msccl-xml, "
    "mscclpp-json).",
    bool,
    default=None,
)
@option(
    "--pieces",
    "Number of pieces for --equal-pieces.  [default: chosen by the predicted time]",
    click.IntRange(min=1),
)
@needs("--equal-pieces", "--pieces")
@size_option(
    "Size of the gradient. chakra-et and perfetto need it; --equal-pieces is optimised for it.  "
    "[default: the size of the search, else 100MB]"
)
@option("--element-bytes", "Size of a number in bytes (chakra-et).  [default: 4]", int)
@option(
    "--hosts",
    "Name the hosts in the order of ranks, as in node1:8,node2:8 (rankfile).  "
    "[default: the servers' names]",
    metavar="HOSTS",
)
@option(
    "--measured",
    "Add the runs that 'gradweave bench --json' printed to this file (perfetto).",
    FILE,
    metavar="FILE",
)
@option(
    "--rank", "Write only the transfers of the server of this rank (csv).", click.IntRange(min=0)
)
def export(file: Path, format_: str, output: Path, **options: Any) -> Answer:
    """Convert the schedule in FILE to another tool's format.

    The tools are MSCCL and legacy RCCL, MSCCL++, Chakra, mpirun and Perfetto; csv is a table.
    """
    given = {name: value for name, value in options.items() if value is not None}
    _check(format_, given)
    writable(None if format_ == "chakra-et" else output)
    check_schedule_file(file, "export")
    if "rank" in given:
        return _save_rank(file, output, given["rank"])
    with Progress(f"reading {file}") as progress:
        schedule = load(file)
        cut = None
        if "equal_pieces" in given:
            progress("making pieces of one size")
            cut = _save_in_equal_pieces(schedule, format_, output, given)
            schedule, files = cut.schedule, [output]
        else:
            progress(f"writing {counted(schedule.num_transfers, 'transfer')}")
            files = _save(schedule, format_, output, given)
    more = f" to {files[-1]}" if len(files) > 1 else ""
    lines = [
        f"{schedule.name} on {schedule.topology.name}, "
        f"{schedule.topology.num_servers} servers, {counted(schedule.pieces, 'piece')}",
        *([] if cut is None else [_cost_line(cut)]),
        *(rank_lines(schedule.topology) if format_ == "rankfile" else ()),
        f"written to {files[0]}{more}",
        *_use_lines(format_, schedule, output, given),
    ]
    return Answer(_summary(file, format_, schedule, files, cut), lines)


_ASTRA_SIM = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Collectives that ASTRA-sim takes from files (``CollectiveImplLookup.cc``)."""


def _use_lines(
    format_: str, schedule: Schedule, output: Path, given: dict[str, Any]
) -> Iterator[str]:
    """Lines that say which programs read the file, for formats with restrictions."""
    if format_ == "msccl-xml":
        yield (
            "read by MSCCL and by RCCL before 2.28.3; RCCL from 2.28.3 (ROCm 7.13) on ignores it "
            "without a message"
        )
    if format_ == "chakra-et" and schedule.name in _ASTRA_SIM:
        key = f"{schedule.name.replace('_', '-')}-implementation-custom"
        yield (
            f'use: {{"{key}": ["{output}"]}} in the system file of ASTRA-sim, for a workload with '
            f"this collective of {format_size(given['gradient_bytes'])}"
        )


def _save_rank(file: Path, output: Path, rank: int) -> Answer:
    """Writes one server's transfers; an implicit schedule is not expanded."""
    with Progress(f"reading {file}"):
        plan = load_implicit(file) if is_implicit_file(file) else load(file)
        save_csv(plan, output, rank=rank)
    return Answer(
        {"file": str(file), "format": "csv", "rank": rank, "output": [output]},
        [f"rank {rank} on {plan.topology.name}", f"written to {output}"],
    )


def _summary(
    file: Path, format_: str, schedule: Schedule, files: list[Path], cut: EqualPieces | None
) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "file": str(file),
        "format": format_,
        "topology": schedule.topology.name,
        "collective": schedule.name,
        "servers": schedule.topology.num_servers,
        "pieces": schedule.pieces,
        "transfers": schedule.num_transfers,
        "output": files,
    }
    if cut is not None:
        names = ("gradient_bytes", "seconds", "seconds_before", "pieces_before")
        summary["equal_pieces"] = fields_of(cut, *names)
    return summary | ({"ranks": rank_map(schedule.topology)} if format_ == "rankfile" else {})


def _cost_line(cut: EqualPieces) -> str:
    now, before = format_seconds(cut.seconds), format_seconds(cut.seconds_before)
    return (
        f"{format_size(cut.gradient_bytes)}: {now} in pieces of one size, {before} in the "
        f"{counted(cut.pieces_before, 'piece')} of the schedule, as predicted"
    )


def _save_in_equal_pieces(
    schedule: Schedule, format_: str, output: Path, given: dict[str, Any]
) -> EqualPieces:
    """Writes as many pieces of one size as are worth it and the format takes."""
    options = {name: value for name, value in given.items() if name not in _PIECES}
    write = partial(to_msccl_xml if format_ == "msccl-xml" else to_mscclpp_json, **options)
    made, content = in_equal_pieces_for(
        schedule, write, given.get("pieces"), given.get("gradient_bytes")
    )
    atomic_write(output, content)
    return made


def _save(schedule: Schedule, format_: str, output: Path, given: dict[str, Any]) -> list[Path]:
    if format_ == "chakra-et":
        return save_chakra_et(schedule, output, **given)
    if format_ == "rankfile" and "hosts" in given:
        given = {"hosts": parse_hosts(given["hosts"])}
    _SAVE[format_](schedule, output, **given)
    return [output]


_SAVE: dict[str, Callable[..., None]] = {
    "perfetto": save_perfetto,
    "csv": save_csv,
    "rankfile": save_rankfile,
    "msccl-xml": save_msccl_xml,
    "mscclpp-json": save_mscclpp_json,
}


def _check(format_: str, given: dict[str, Any]) -> None:
    """Refuses options of other formats, and the lack of a required one."""
    for name in given:
        if name not in _OPTIONS_OF[format_]:
            others = ", ".join(other for other in FORMATS if name in _OPTIONS_OF[other])
            raise OptionError(f"{_option(name)} is for {others}, not for {format_}; leave it out")
    if "gradient_bytes" in given and "equal_pieces" not in given and format_ not in _SIZED:
        sized = ", ".join(_SIZED)
        raise OptionError(f"--size is for {sized} and --equal-pieces; leave it out")
    if format_ in _SIZED and "gradient_bytes" not in given:
        raise OptionError(f"--size: {format_} needs the size of the gradient, such as 100MB")


def _option(name: str) -> str:
    if name == "in_place":
        return "--in-place or --out-of-place"
    return "--size" if name == "gradient_bytes" else f"--{name.replace('_', '-')}"
