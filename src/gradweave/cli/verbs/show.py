"""``gradweave show``: write the page that plays a schedule, or two; a picture, a film, a trace."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import click
from click.core import ParameterSource

from gradweave.cli.console import Progress, print_json, print_lines
from gradweave.cli.options import FaultOptions, json_option, network_of, writable
from gradweave.cli.pictures import PAGES, PictureOptions, picture_options
from gradweave.cli.schedule_files import is_schedule_file
from gradweave.cli.solving import SearchOptions, gradient_option, search, solving_options
from gradweave.errors import OptionError
from gradweave.report.page import shown_bytes, write_page
from gradweave.report.picture.moments import Clock
from gradweave.report.rounds_bound import bound_lines, rounds_bound
from gradweave.schedule.file import load
from gradweave.schedule.schedule import Schedule
from gradweave.schedulers.spec import PORTFOLIO, is_portfolio
from gradweave.topology.topology import Topology
from gradweave.verify.verify import verify
from gradweave.wording import counted


@click.command()
@click.argument("what", metavar="FILE|NETWORK", nargs=-1, required=True)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Write a page (.html), a picture (.svg, .png, .pdf) or a film (.gif, .mp4).  "
    "[default: FILE with .html in place of .json; NETWORK.html]",
)
@click.option("--title", help="Give the page this heading.  [default: the network's name]")
@click.option(
    "--beside",
    metavar="SCHEDULERS",
    help="Play NETWORK's schedule by these strategies beside it; portfolio for the best of all.",
)
@picture_options
@solving_options
@gradient_option
@json_option
@click.pass_context
def show(
    context: click.Context,
    what: Sequence[str],
    output: Path | None,
    title: str | None,
    beside: str | None,
    number: int | None,
    width: int | None,
    clock: Clock | None,
    printed: bool,
    gradient_bytes: float,
    as_json: bool,
    **given: Unpack[SearchOptions],
) -> None:
    """Write one HTML page that plays a schedule, a picture, or a film.

    The schedule is that of FILE, or the result of a search for NETWORK, with the options of
    `schedule`. Two schedules, of two files or of one NETWORK with --beside, are played in step on
    one page, side by side, with their differences. No file needs network access.
    """
    if len(what) > 2:
        raise OptionError(f"show: expected one or two schedules, got {len(what)}")
    wanted = PictureOptions(output, number, width, clock, printed)
    wanted.check(what, title, as_json)
    _refuse_search_options(context, what, wanted.network_alone)
    names = [Path(one).name if is_schedule_file(one) else one for one in what]
    searches = [(one, given) for one in what]
    if beside is not None:
        names, searches = _beside(what, beside, wanted.any, given)
    with Progress(f"reading {what[0]}") as progress:
        if wanted.network_alone:
            shown = [_network_of(what[0], given)]
        else:
            shown = [_schedule_of(one, gradient_bytes, progress, how) for one, how in searches]
        progress(f"drawing {what[0]}")
        schedules = [one for one in shown if isinstance(one, Schedule)]
        chosen = context.get_parameter_source("gradient_bytes") is not ParameterSource.DEFAULT
        size = shown_bytes(gradient_bytes if chosen or not schedules else None, *schedules)
        if wanted.any:
            wanted.write(shown[0], size, progress)
        else:
            output = output or _page_of(what if beside is None else (*what, beside))
            _write_page(output, names, schedules, title, size, given)
    wanted.draw(shown[0], size)
    _say(as_json, what, output, shown, names if beside is not None else [])


def _beside(
    what: Sequence[str], beside: str, picture: bool, given: SearchOptions
) -> tuple[list[str], list[tuple[str, SearchOptions]]]:
    """Two searches for one network, and what each is called."""
    if len(what) != 1 or is_schedule_file(what[0]) or picture:
        raise OptionError("--beside: expected one NETWORK, whose two schedules a page plays")
    other: SearchOptions = {**given, "scheduler": None if is_portfolio(beside) else beside}
    searches = [(what[0], given), (what[0], other)]
    return [given["scheduler"] or PORTFOLIO, beside], searches


def _write_page(
    output: Path,
    names: Sequence[str],
    schedules: Sequence[Schedule],
    title: str | None,
    gradient_bytes: float,
    given: SearchOptions,
) -> None:
    writable(output, ".html", ".htm")
    write_page(
        *(schedules[0], output, *schedules[1:]),
        title=title,
        names=list(names),
        gradient_bytes=gradient_bytes,
        objective=given["objective"] or "rounds",
    )


def _say(
    as_json: bool,
    what: Sequence[str],
    output: Path | None,
    shown: Sequence[Schedule | Topology],
    schedulers: Sequence[str],
) -> None:
    """Says what was written; of one network with several schedulers, also by which."""
    schedules = [one for one in shown if isinstance(one, Schedule)]
    if as_json:
        rounds = [schedule.rounds for schedule in schedules]
        found = [rounds_bound(schedule) for schedule in schedules]
        bounds = [None if bound is None else bound.as_object() for bound in found]
        written = None if output is None else str(output)
        several = {"files": list(what), "output": written, "rounds": rounds, "bound": bounds}
        several |= {"schedulers": list(schedulers)} if schedulers else {}
        one = {"file": what[0], "output": written}
        if schedules:
            one |= {"rounds": rounds[0], "bound": bounds[0]}
        print_json(several if len(schedules) > 1 else one)
    elif output is not None:
        rounds = " and ".join(counted(schedule.rounds, "round") for schedule in schedules)
        is_page = output.suffix.lower() in PAGES
        lines = [f"{output}: {rounds or 'the network'}{'; open it in a browser' * is_page}"]
        for schedule in schedules:
            bound = rounds_bound(schedule)
            if bound is not None and bound.doubt:
                lines += bound_lines(schedule, bound)
        print_lines(*lines)


def _refuse_search_options(
    context: click.Context, what: Sequence[str], network_alone: bool
) -> None:
    """Refuses options of a search where there is none."""
    files = all(map(is_schedule_file, what))
    if not files and not network_alone:
        return
    names = set(SearchOptions.__required_keys__)
    if not files:
        names -= FaultOptions.__required_keys__
    for name in sorted(names):
        source = context.get_parameter_source(name)
        if source is ParameterSource.COMMANDLINE:
            option = "--" + name.replace("_", "-")
            if not files:
                raise OptionError(
                    f"{option} is for a schedule, the picture is of the network "
                    "alone; add --round to draw one of its rounds"
                )
            raise OptionError(f"{option} is for a NETWORK; {what[0]} is a schedule's file")


def _network_of(what: str, given: SearchOptions) -> Topology:
    """The network of a schedule's file, or that of a specification or file."""
    return load(what).topology if is_schedule_file(what) else network_of(what, given)


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
