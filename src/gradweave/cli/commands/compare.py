"""``gradweave compare``: schedulers by rounds (with the paper's Table 2) or by time."""

import csv
import io
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import click

from gradweave.cli.answers import Answer
from gradweave.cli.console import Progress, Table, warn
from gradweave.cli.groups import command
from gradweave.cli.options import (
    FILE,
    FaultOptions,
    fault_options,
    faults,
    option,
    scheduler_option,
    sizes_option,
    time_limit_option,
)
from gradweave.cli.planned_jobs import job_options, jobs_of
from gradweave.common.atomic import atomic_write
from gradweave.errors import FileError, MissingExtraError, OptionError
from gradweave.printable import printable
from gradweave.report.chart import comparison_chart, sweep_chart
from gradweave.report.comparison import LEARNED, TABLE_2, Case, Row
from gradweave.report.comparison import compare as compare_rounds
from gradweave.report.known_names import with_known_name
from gradweave.report.paper import NOT_REPRODUCED, PAPER_LEARNED
from gradweave.report.timed import FOR_JOBS, TimedRow, compare_jobs, compare_seconds
from gradweave.schedulers.scheduler import Scheduler
from gradweave.schedulers.solving.solve import OBJECTIVES, Objective
from gradweave.schedulers.spec import as_demand_strategies, from_spec, is_portfolio, split_specs
from gradweave.topology.named_faults import Faults
from gradweave.topology.units import format_rate, format_seconds, format_size

_FORMULAS = ("=", "+", "-", "@")
"""Characters with which a spreadsheet's formula begins."""
SCHEDULERS = (
    "parameter_server,central_parameter_server,ring:steps=paper,ring,ring:order=hamiltonian,"
    "merged:rule=random,swap_passes=0,merged:rule=deepest,swap_passes=0,merged:swap_passes=0,merged,"
    "grown:restarts=1,learned,portfolio"
)
"""Default of --scheduler."""
FOR_SECONDS = (
    "ring,binomial,halving_doubling,merged,grown:restarts=8,symmetric,timed,packed,portfolio"
)
"""The same where seconds are the objective."""
SEEDS = {"rounds": 20, "seconds": 1}
"""Default of --seeds."""


@command(
    examples=[
        "torus:4x4 star:8 --scheduler ring,grown,portfolio --seeds 3",
        "star:8 --slow 0-8=0.5 --objective seconds --size 256MB",
    ]
)
@click.argument("networks", nargs=-1)
@scheduler_option(
    "Compare these strategies (by default all), such as ring,merged:rule=deepest. learned stands "
    "for three results: the mean of drawn episodes, the greedy episode, and the best of 17."
)
@option(
    "--seeds",
    "Run each strategy with this many seeds.  [default: 20; for seconds 1]",
    click.IntRange(1, 100_000),
)
@option(
    "--objective",
    "What to minimise: rounds, or the predicted time, which depends on latency, bandwidth and "
    "size.  [default: rounds; seconds for several sizes]",
    click.Choice(OBJECTIVES),
)
@sizes_option("100MB", "Minimise the time for a gradient of this size.")
@fault_options
@time_limit_option
@job_options("--objective", "--size")
@option(
    "--output",
    "Write comparison.csv, comparison.json and, with the extra plot, comparison.png to this "
    "directory.",
    FILE,
)
def compare(
    networks: tuple[str, ...],
    scheduler: str | None,
    seeds: int | None,
    objective: Objective | None,
    gradient_bytes: tuple[int, ...],
    time_limit: float | None,
    jobs: tuple[str, ...],
    mesh: str | None,
    output: Path | None,
    **given: Unpack[FaultOptions],
) -> Answer:
    """Compare schedulers on NETWORKS.

    The default are the nine networks of the paper's Table 2.

    Each strategy runs once per seed; on the Jellyfish of Table 2, each seed is another of the 20
    reference graphs. The time limit applies to each run. With --objective seconds each strategy may
    choose pieces and overlap, both stages count, and portfolio stands for all strategies.
    Several sizes make a table for each network, and a chart of the bus bandwidth of nccl-tests.
    With --job, strategies such as bruck or ring are compared by the time until all jobs ended.
    """
    if not jobs and objective == "rounds" and len(gradient_bytes) > 1:
        raise OptionError("--size: rounds do not depend on size; several need --objective seconds")
    timed = bool(jobs) or objective == "seconds" or (not objective and len(gradient_bytes) > 1)
    objective = "seconds" if timed else "rounds"
    usual = FOR_JOBS if jobs else FOR_SECONDS if timed else SCHEDULERS
    text = usual if scheduler is None else scheduler
    specs = split_specs(text)
    if jobs:
        as_demand_strategies([spec for spec in specs if not is_portfolio(spec)])
    strategies = [] if jobs else strategies_of(text)
    lost = faults(given)
    if not specs:
        raise OptionError("--scheduler: expected at least one, got none")
    if lost and not networks:
        raise OptionError("expected a network for --without-link, --without-server and --slow")
    cases = _cases(networks, lost)
    if jobs and not cases:
        raise OptionError("expected a network to compare jobs on")
    for case in cases:
        if jobs:
            jobs_of(case.network(0), jobs, mesh)
    if output is not None:
        _prepare(output)
    with Progress("comparing") as progress:
        options: dict[str, Any] = {
            "seeds": seeds or SEEDS[objective], "time_limit": time_limit, "progress": progress
        }  # fmt: skip
        rows: list[Row] | list[TimedRow]
        if jobs:
            rows = compare_jobs(
                cases, lambda network: jobs_of(network, jobs, mesh), specs, **options
            )
            if scheduler is None:
                useful = {row.scheduler for row in rows if row.seconds_mean is not None}
                rows = [row for row in rows if row.scheduler in useful]
            tables = [_timed_table(rows)]
        elif timed:
            cases = [replace(case, stages="all_reduce") for case in cases or TABLE_2]
            rows = compare_seconds(cases, strategies, gradient_bytes, **options)
            tables = _timed_tables(rows)
        else:
            rows = compare_rounds(cases or list(TABLE_2), strategies, **options)
            tables = [_table(rows)]
        objects = [row.as_object() for row in rows]
        written = [] if output is None else _write(objects, output, objective)
    lines = [f"written to {output}: {', '.join(written)}"] if written else []
    return Answer({"rows": objects}, [*tables, *lines])


def _cases(networks: tuple[str, ...], lost: Faults) -> list[Case]:
    """The named networks, all built before any work so that errors show at once."""
    cases = [_case(spec, lost) for text in networks for spec in split_specs(text)]
    if networks and not cases:
        raise OptionError("networks: expected at least one, got none")
    for case in cases:
        case.network(0)
    return cases


def _case(spec: str, lost: Faults) -> Case:
    """A named network; its label lists its faults, as in `solve`."""
    case = Case(spec, spec, faults=lost)
    return replace(case, label=case.topology)


def strategies_of(text: str) -> list[Scheduler | None]:
    """The strategies to compare; ``learned`` stands for its three figures, None for all of them."""
    each = (LEARNED if spec == "learned" else (spec,) for spec in split_specs(text))
    specs = itertools.chain.from_iterable(each)
    return [None if is_portfolio(spec) else from_spec(spec) for spec in specs]


def _prepare(output: Path) -> None:
    """Makes the output directory, before the work rather than after it."""
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{output}: cannot be made a directory: {error.strerror}") from error


def _write(objects: Sequence[dict[str, Any]], output: Path, objective: Objective) -> list[str]:
    """Writes the files, the chart only if there is a figure in it; returns their names."""
    columns = list(dict.fromkeys(key for row in objects for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _as_text(value) for key, value in row.items()} for row in objects)
    atomic_write(output / "comparison.csv", text.getvalue().encode())
    atomic_write(output / "comparison.json", json.dumps({"rows": objects}, indent=1).encode())
    charted = [row for row in objects if row[f"{objective}_mean"] is not None]
    try:
        if charted:
            if len({row.get("gradient_bytes") for row in charted}) > 1:
                sweep_chart(charted, output / "comparison.png")
            else:
                comparison_chart(charted, output / "comparison.png", objective)
            return ["comparison.csv", "comparison.json", "comparison.png"]
    except MissingExtraError as error:
        warn(f"no comparison.png: {error}")
    (output / "comparison.png").unlink(missing_ok=True)  # an earlier one's, of other figures
    return ["comparison.csv", "comparison.json"]


def _as_text(value: Any) -> Any:
    """A name as text in a table: no formula of a spreadsheet, and nothing that a terminal obeys."""
    if not isinstance(value, str):
        return value
    return f"'{printable(value)}" if value.startswith(_FORMULAS) else printable(value)


def _table(rows: Sequence[Row]) -> Table:
    labels = list(dict.fromkeys(row.label for row in rows))
    names = list(dict.fromkeys(row.scheduler for row in rows))
    at = {(row.scheduler, row.label): row for row in rows}
    shown = Table(["mean rounds", *labels], notes=_notes(rows))
    stages = [at[names[0], label].stages for label in labels]
    one = ["both" if stage == "all_reduce" else "one" for stage in stages]
    shown.add_row("stages counted", *one, style="dim")
    for name in names:
        shown.add_row(with_known_name(name), *(_cell(at[name, label]) for label in labels))
        if any(at[name, label].paper is not None for label in labels):
            paper = (_cell_of_paper(at[name, label]) for label in labels)
            shown.add_row("  the paper's", *paper, style="dim")
    learned = [
        PAPER_LEARNED.get(label) if at[names[0], label].topology in _TABLE_2 else None
        for label in labels
    ]
    if any(learned):
        cells = (f"{figure:.1f}" if figure else "" for figure in learned)
        shown.add_row("RL, the paper's", *cells, style="dim")
    bounds = (_bound_of([at[name, label] for name in names]) for label in labels)
    shown.add_row(_BOUND, *bounds, style="bold")
    return shown


def _bound_of(rows: Sequence[Row]) -> str:
    """The smallest bound of a network's rows; strategies that overlap stages have lower bounds."""
    bounds = [row.bound for row in rows if row.bound is not None]
    return f"{min(bounds):g}" if bounds else ""


def _timed_tables(rows: Sequence[TimedRow]) -> list[Table]:
    """One table, or with several sizes one per network."""
    if len({row.gradient_bytes for row in rows}) == 1:
        return [_timed_table(rows)]
    labels = dict.fromkeys(row.label for row in rows)
    return [_sweep_table([row for row in rows if row.label == label]) for label in labels]


def _sweep_table(rows: Sequence[TimedRow]) -> Table:
    """A network's times by size, the best of each, and its bandwidths."""
    names = list(dict.fromkeys(row.scheduler for row in rows))
    columns = map(with_known_name, names)
    heads = [rows[0].label, *columns, _BOUND, "best", "above it", "algbw", "busbw"]
    shown = Table(heads, notes=_timed_notes(rows))
    for size in dict.fromkeys(row.gradient_bytes for row in rows):
        here = {row.scheduler: row for row in rows if row.gradient_bytes == size}
        times = {name: here[name].seconds_mean for name in names}
        cells = ["none" if time is None else format_seconds(time) for time in times.values()]
        known = {name: time for name, time in times.items() if time is not None}
        bound = min((row.seconds_bound for row in here.values() if row.seconds_bound), default=None)
        if known and bound:
            best = min(known, key=lambda name: known[name])
            bandwidths = map(format_rate, here[best].bandwidths())
            above = f"{known[best] / bound - 1:.1%}"
            cells += [format_seconds(bound), best, above, *bandwidths]
        shown.add_row(format_size(size), *cells)
    return shown


def _timed_table(rows: Sequence[TimedRow]) -> Table:
    """Times, and how far each is above the bound that holds for all strategies."""
    labels = list(dict.fromkeys(row.label for row in rows))
    at = {(row.scheduler, row.label): row for row in rows}
    bounds: dict[str, float] = {}
    for row in rows:
        if row.seconds_bound:
            bounds[row.label] = min(row.seconds_bound, bounds.get(row.label, row.seconds_bound))
    heads = [f"mean time for {format_size(rows[0].gradient_bytes)}", *labels]
    shown = Table(heads, notes=_timed_notes(rows))
    for name in dict.fromkeys(row.scheduler for row in rows):
        cells = (_timed_cell(at[name, label], bounds.get(label)) for label in labels)
        shown.add_row(with_known_name(name), *cells)
    least = (format_seconds(bounds[label]) if label in bounds else "" for label in labels)
    shown.add_row(_BOUND, *least, style="bold")
    return shown


def _timed_cell(row: TimedRow, bound: float | None) -> str:
    if row.seconds_mean is None or not bound:
        return "none"
    return f"{format_seconds(row.seconds_mean)} (+{row.seconds_mean / bound - 1:.1%})"


_BOUND = "lower bound"
_OF_THESE = (
    f"{_BOUND}: for schedules that do no more than these strategies may; gradweave bound gives one "
    "for every schedule"
)
_OWN_PIECES = " †"
"""Marks rounds that do not compare."""
_TABLE_2 = {case.spec for case in TABLE_2}


def _cell(row: Row) -> str:
    if row.rounds_mean is None:
        return "none"
    return f"{row.rounds_mean:.1f}" + _OWN_PIECES * (row.bound is None)


def _cell_of_paper(row: Row) -> str:
    return "" if row.paper is None else f"{row.paper:.1f}" + "*" * _differs(row)


def _differs(row: Row) -> bool:
    return row.scheduler == "ring:steps=paper" and row.label in NOT_REPRODUCED


def _notes(rows: Sequence[Row]) -> list[str]:
    notes = []
    if any(row.paper is not None for row in rows):
        notes.append(
            "the paper's: Wei, Liu, Wu, Table 2; its Jellyfish graphs are unknown, each seed is "
            "another graph"
        )
    if any(row.paper is not None and _differs(row) for row in rows):
        notes.append(
            "*  does not reproduce: the paper's order of servers on the ring, and its graphs, are "
            "unknown"
        )
    if any(row.bound is not None for row in rows):
        notes.append(_OF_THESE)
    if any(row.bound is None and row.rounds_mean is not None for row in rows):
        notes.append(
            f"{_OWN_PIECES.strip()}  one piece, or pieces chosen by the strategy: rounds do not "
            "compare; --objective seconds does"
        )
    return [*notes, *_reasons(rows)]


def _timed_notes(rows: Sequence[TimedRow]) -> list[str]:
    bounded = any(row.seconds_bound for row in rows)
    return [_OF_THESE] * bounded + _reasons(rows)


def _reasons(rows: Sequence[Row] | Sequence[TimedRow]) -> list[str]:
    """The reason of a missing figure."""
    return [f"none: {row.label}, {row.scheduler}: {row.reason}" for row in rows if row.reason]
