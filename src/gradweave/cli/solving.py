"""Options of the verbs that search for a schedule, and the search."""

import functools
from collections.abc import Callable
from pathlib import Path

import click

from gradweave.cli.options import (
    FaultOptions,
    Parameters,
    Result,
    SizeType,
    fault_options,
    network_of,
    schedulers_of,
    seed_option,
    time_limit_option,
)
from gradweave.schedule import load
from gradweave.schedule.schedule import COLLECTIVES, Collective
from gradweave.schedulers import OBJECTIVES, Objective, Solution, solve


class SearchOptions(FaultOptions):
    """Values of the options of `solving_options`."""

    scheduler: str | None
    collective: Collective
    objective: Objective
    seed: int
    time_limit: float | None
    start_from: Path | None


objective_option = click.option(
    "--objective",
    type=click.Choice(OBJECTIVES),
    default="rounds",
    show_default=True,
    help="What to minimise; seconds count latency and bandwidth, for the gradient's size.",
)


def solving_options(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Adds the options of a search to a verb; see `SearchOptions`."""
    options = (
        click.option(
            "--scheduler",
            metavar="SCHEDULERS",
            help="Comma-separated strategies, such as merged:rule=deepest; the best is kept.  "
            "[default: all]",
        ),
        click.option(
            "--collective", type=click.Choice(COLLECTIVES), default="all_reduce", show_default=True
        ),
        objective_option,
        seed_option,
        time_limit_option,
        fault_options,
        click.option(
            "--start-from",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Schedule of the network before a fault; the part that still works is kept.",
        ),
    )
    return functools.reduce(lambda given, option: option(given), reversed(options), command)


gradient_option = click.option(
    "--gradient-bytes",
    type=SizeType(),
    default="100MB",
    show_default=True,
    help="Size for the prediction, and for the objective, in seconds.",
)


def search(
    network: str, gradient_bytes: float, progress: Callable[[str], None], given: SearchOptions
) -> Solution:
    """Searches for a schedule with the options of `solving_options`."""
    scheduler, start_from = given["scheduler"], given["start_from"]
    return solve(
        network_of(network, given),
        collective=given["collective"],
        schedulers=schedulers_of(scheduler) if scheduler is not None else None,
        objective=given["objective"],
        gradient_bytes=gradient_bytes,
        start_from=None if start_from is None else load(start_from),
        seed=given["seed"],
        time_limit=given["time_limit"],
        progress=progress,
    )
