"""Options of the verbs that place a model."""

from collections.abc import Callable

import click

from gradweave.cli.options import FaultOptions, Parameters, Result, with_options
from gradweave.placement.placing import COSTS, Cost

_PLACEMENT_OPTIONS = (
    click.option(
        "--model",
        required=True,
        metavar="MODEL",
        help="Place this model: transformer:layers=24,width=2048,…, whose stages are estimated, or "
        "a JSON file of stages.",
    ),
    click.option(
        "--pipeline",
        type=int,
        help="Cut the model into this many stages.  [default: the file's; servers over --data]",
    ),
    click.option(
        "--data",
        type=int,
        help="Run this many pipelines side by side.  [default: servers over the stages]",
    ),
    click.option(
        "--strategy",
        default="annealing",
        show_default=True,
        help="Search by annealing, evolutionary, exact, rank_order or random, with options such as "
        "annealing:restarts=16.",
    ),
    click.option(
        "--cost",
        type=click.Choice(COSTS),
        default="exchange",
        show_default=True,
        help="Minimise the cost of gradients sent directly, or by a schedule for each group, with "
        "links that are shared.",
    ),
)


class PlacementOptions(FaultOptions):
    """Values of the options of `placement_options`, and of those for the network's faults."""

    model: str
    pipeline: int | None
    data: int | None
    strategy: str
    cost: Cost


def placement_options(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Adds the options that say what is placed, and how, to a verb; see `PlacementOptions`."""
    return with_options(command, _PLACEMENT_OPTIONS)
