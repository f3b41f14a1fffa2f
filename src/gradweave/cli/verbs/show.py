"""``gradweave show``: write the page that plays a schedule, or two side by side."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import click
from click.core import ParameterSource

from gradweave.cli.console import Progress, print_json, print_lines
from gradweave.cli.options import json_option, writable
from gradweave.cli.schedule_files import is_schedule_file
from gradweave.cli.solving import SearchOptions, gradient_option, search, solving_options
from gradweave.errors import OptionError
from gradweave.report.page import write_page
from gradweave.report.rounds_bound import rounds_bound
from gradweave.schedule.file import load
from gradweave.schedule.schedule import Schedule
from gradweave.verify.verify import verify
from gradweave.wording import counted


@click.command()
@click.argument("what", metavar="FILE|NETWORK", nargs=-1, required=True)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Page to write.  [default: FILE with .html in place of .json; NETWORK.html]",
)
@click.option("--title", help="Heading of the page.  [default: the network's name]")
@solving_options
@gradient_option
@json_option
@click.pass_context
def show(
    context: click.Context,
    what: Sequence[str],
    output: Path | None,
    title: str | None,
    gradient_bytes: float,
    as_json: bool,
    **given: Unpack[SearchOptions],
) -> None:
    """Write one HTML page that plays a schedule round by round; it needs no network access.

    The schedule is that of FILE, or the result of a search for NETWORK, with the options of
    `schedule`. Two schedules are played in step, side by side, with their differences.
    """
    if len(what) > 2:
        raise OptionError(f"show: expected one or two schedules, got {len(what)}")
    _refuse_search_options(context, what)
    output = output or _page_of(what)
    writable(output, ".html", ".htm")
    with Progress(f"reading {what[0]}") as progress:
        schedules = [_schedule_of(one, gradient_bytes, progress, given) for one in what]
        progress(f"drawing {schedules[0].topology.name}")
        write_page(
            *(schedules[0], output, *schedules[1:]),
            title=title,
            names=[Path(one).name if is_schedule_file(one) else one for one in what],
            gradient_bytes=gradient_bytes,
            objective=given["objective"] or "rounds",
        )
    if as_json:
        rounds = [schedule.rounds for schedule in schedules]
        found = [rounds_bound(schedule) for schedule in schedules]
        bounds = [None if bound is None else bound.as_object() for bound in found]
        several = {"files": list(what), "output": str(output), "rounds": rounds, "bound": bounds}
        one = {"file": what[0], "output": str(output), "rounds": rounds[0], "bound": bounds[0]}
        print_json(several if len(what) > 1 else one)
    else:
        rounds = " and ".join(counted(schedule.rounds, "round") for schedule in schedules)
        print_lines(f"{output}: {rounds}; open it in a browser")


def _refuse_search_options(context: click.Context, what: Sequence[str]) -> None:
    """Refuses options of a search where there is none."""
    if not all(map(is_schedule_file, what)):
        return
    for name in sorted(SearchOptions.__required_keys__):
        source = context.get_parameter_source(name)
        if source is ParameterSource.COMMANDLINE:
            option = "--" + name.replace("_", "-")
            raise OptionError(f"{option} is for a NETWORK; {what[0]} is a schedule's file")


def _schedule_of(
    what: str, gradient_bytes: float, progress: Progress, given: SearchOptions
) -> Schedule:
    """The verified schedule of a file, or of a network."""
    if not is_schedule_file(what):
        progress(f"scheduling {what}")
        return search(what, gradient_bytes, progress, given).schedule
    progress(f"reading {what}")
    schedule = load(what)
    progress(f"verifying {what}")
    switches = bool(schedule.scheduler.options.get("aggregating_switches"))
    verify(schedule, aggregating_switches=switches).raise_if_invalid()
    return schedule


def _page_of(what: Sequence[str]) -> Path:
    """The page's default name: beside the first file, or that of the network."""
    if is_schedule_file(what[0]):
        first = Path(what[0])
        stem = first.name.removesuffix(".gz").removesuffix(".json")
        folder = first.parent
    else:
        stem, folder = _named(what[0]), Path()
    if len(what) > 1:
        last = Path(what[1]).name if is_schedule_file(what[1]) else what[1]
        stem += "-and-" + _named(last.removesuffix(".gz").removesuffix(".json"))
    return folder / f"{stem}.html"


def _named(what: str) -> str:
    """A specification or path as a file name."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", Path(what).name).strip("-.") or "schedule"
