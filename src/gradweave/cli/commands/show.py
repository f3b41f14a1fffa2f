"""``gradweave show``: write the page that plays a schedule, or two; a picture, a film, a trace."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import click

from gradweave.cli.answers import Answer
from gradweave.cli.console import Progress
from gradweave.cli.groups import command
from gradweave.cli.options import (
    FILE,
    FaultOptions,
    is_given,
    network_of,
    option,
    size_option,
    writable,
)
from gradweave.cli.pictures import PAGES, PictureOptions, picture_options
from gradweave.cli.planned_jobs import asked_jobs, search_jobs
from gradweave.cli.solving import (
    SearchOptions,
    ShownOptions,
    chosen_objective_option,
    search,
    search_options,
)
from gradweave.common.wording import counted
from gradweave.errors import OptionError
from gradweave.report.page import shown_bytes, write_page
from gradweave.report.picture.moments import Clock
from gradweave.report.rounds_bound import bound_lines, rounds_bound
from gradweave.schedulers.spec import PORTFOLIO, is_portfolio
from gradweave.schedules.file import load
from gradweave.schedules.kinds import is_schedule_file
from gradweave.schedules.schedule import Schedule
from gradweave.topology.topology import Topology
from gradweave.verifier.verify import check_valid


@command(
    examples=["plan.json", "torus:4x4 --scheduler ring --scheduler portfolio --output two.html"]
)
@click.argument("what", metavar="FILE|NETWORK", nargs=-1, required=True)
@option(
    "--output",
    "Write a page (.html), a picture (.svg, .png, .pdf) or a film (.gif, .mp4).  "
    "[default: FILE with .html instead of .json; NETWORK.html]",
    FILE,
)
@option("--title", "Give the page this heading.  [default: the network's name]")
@option(
    "--scheduler",
    "Search by these strategies, comma-separated, and show the best result; by default all. "
    "Give it twice to show two schedules of NETWORK in one page; portfolio stands for all.",
    multiple=True,
    metavar="SPEC",
)
@picture_options
@chosen_objective_option
@search_options
@size_option("Show, and minimise, the time for a gradient of this size.", default="100MB")
def show(
    what: Sequence[str],
    output: Path | None,
    title: str | None,
    scheduler: tuple[str, ...],
    number: int | None,
    width: int | None,
    clock: Clock | None,
    printed: bool,
    gradient_bytes: float,
    **searching: Unpack[ShownOptions],
) -> Answer:
    """Play a schedule as one HTML page, or draw it.

    The schedule is read from FILE, or searched for on NETWORK with the options of gradweave solve.
    Two schedules, of two files or of one NETWORK with two --scheduler, are played in step on one
    page, side by side, with their differences. The page needs no network access.
    """
    if len(what) > 2 or len(scheduler) > 2:
        many = len(what) if len(what) > 2 else len(scheduler)
        raise OptionError(f"expected one or two schedules, got {many}")
    first = None if not scheduler or is_portfolio(scheduler[0]) else scheduler[0]
    given: SearchOptions = {**searching, "scheduler": first}
    beside = scheduler[1] if len(scheduler) > 1 else None
    wanted = PictureOptions(output, number, width, clock, printed)
    wanted.check(what, title)
    _refuse_search_options(what, wanted.network_alone)
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
        chosen = is_given("gradient_bytes")
        size = shown_bytes(gradient_bytes if chosen or not schedules else None, *schedules)
        if wanted.any:
            wanted.write(shown[0], size, progress)
        else:
            output = output or _page_of(what if beside is None else (*what, beside))
            _write_page(output, names, schedules, title, size, given)
    wanted.draw(shown[0], size)
    found = _object(what, output, schedules, names if beside is not None else [])
    return Answer(found, [] if output is None else _lines(output, schedules))


def _beside(
    what: Sequence[str], beside: str, picture: bool, given: SearchOptions
) -> tuple[list[str], list[tuple[str, SearchOptions]]]:
    """Two searches for one network, and their names."""
    if len(what) != 1 or is_schedule_file(what[0]) or picture:
        raise OptionError("--scheduler: expected one NETWORK and a page to show two schedules")
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


def _object(
    what: Sequence[str],
    output: Path | None,
    schedules: Sequence[Schedule],
    schedulers: Sequence[str],
) -> dict[str, Any]:
    """The file, and the schedulers if one network has several."""
    rounds = [schedule.rounds for schedule in schedules]
    found = [rounds_bound(schedule) for schedule in schedules]
    bounds = [None if bound is None else bound.as_object() for bound in found]
    written = {"output": None if output is None else str(output)}
    if len(schedules) > 1:
        several = {"schedulers": list(schedulers)} if schedulers else {}
        return {"files": list(what), "rounds": rounds, "bound": bounds, **written, **several}
    one = {"rounds": rounds[0], "bound": bounds[0]} if schedules else {}
    return {"file": what[0], **written, **one}


def _lines(output: Path, schedules: Sequence[Schedule]) -> Iterator[str]:
    rounds = " and ".join(counted(schedule.rounds, "round") for schedule in schedules)
    is_page = output.suffix.lower() in PAGES
    yield f"{output}: {rounds or 'the network'}{'; open it in a browser' * is_page}"
    for schedule in schedules:
        bound = rounds_bound(schedule)
        if bound is not None and bound.doubt:
            yield from bound_lines(schedule, bound)


def _refuse_search_options(what: Sequence[str], network_alone: bool) -> None:
    """Refuses options of a search if nothing is searched for."""
    files = all(map(is_schedule_file, what))
    if not files and not network_alone:
        return
    names = set(SearchOptions.__required_keys__)
    if not files:
        names -= FaultOptions.__required_keys__
    for name in sorted(names):
        if is_given(name):
            option = "--" + name.replace("_", "-")
            if not files:
                raise OptionError(
                    f"{option} is for a schedule, the picture is of the network "
                    "alone; add --round to draw one of its rounds"
                )
            raise OptionError(f"{option} is for a NETWORK; {what[0]} is a schedule's file")


def _network_of(what: str, given: SearchOptions) -> Topology:
    """The network named by an argument: a schedule's file, a network's file or a specification."""
    return load(what).topology if is_schedule_file(what) else network_of(what, given)


def _schedule_of(
    what: str, gradient_bytes: float, progress: Progress, given: SearchOptions
) -> Schedule:
    """The verified schedule of a file, or of a network."""
    if not is_schedule_file(what):
        progress(f"scheduling {what}")
        if jobs := asked_jobs(what, (), [gradient_bytes], given):
            return search_jobs(what, jobs, None, progress, given).schedule
        return search(what, gradient_bytes, progress, given).schedule
    progress(f"reading {what}")
    schedule = load(what)
    progress(f"verifying {what}")
    check_valid(schedule)
    return schedule


def _page_of(what: Sequence[str]) -> Path:
    """The page's default name: the name of the first file in its folder, or of the network."""
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
