"""Options of a placement, and what is printed of it."""

from collections.abc import Callable

import click

from gradweave.cli.options import FaultOptions, Parameters, Result, scheduler_option, with_options
from gradweave.common.specification import field_kinds, parse_spec, read_options
from gradweave.errors import OptionError
from gradweave.placement.placement import Placement, load_workload
from gradweave.placement.placing import COSTS, Cost
from gradweave.placement.workload import Transformer, Workload

_PLACEMENT_OPTIONS = (
    click.option(
        "--model",
        required=True,
        metavar="MODEL",
        help="The model: transformer:layers=24,width=2048,…, for which stages are estimated, or a "
        "JSON file of stages.",
    ),
    click.option(
        "--pipeline",
        type=int,
        help="Cut the model into this many stages.  [default: the file's; servers over --data]",
    ),
    click.option(
        "--data",
        type=int,
        help="Run this many pipelines in parallel.  [default: servers over the stages]",
    ),
    scheduler_option(
        "Search by annealing, evolutionary, exact, rank_order or random, with options such as "
        "annealing:restarts=16. With --train the first is compared with the others, among which "
        "gloo stands for the first placement with gloo's all-reduce, pytorch for that with "
        "PyTorch's pipeline and all-reduce.  [default: annealing; in the lab also rank_order,gloo]",
    ),
    click.option(
        "--cost",
        type=click.Choice(COSTS),
        default="exchange",
        show_default=True,
        help="Minimise the cost of gradients sent directly, or by a schedule for each group "
        "on shared links.",
    ),
)


_SHOWN = 16
"""Pipelines and stages up to which a placement is printed in full."""


class PlacementOptions(FaultOptions):
    """Values of the options of `placement_options`, and of those for the network's faults."""

    model: str
    pipeline: int | None
    data: int | None
    scheduler: str | None
    cost: Cost


def placement_options(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Adds the options of a placement to a command; see `PlacementOptions`."""
    return with_options(command, _PLACEMENT_OPTIONS)


def model_of(text: str) -> Workload | Transformer:
    """A transformer's specification, or a file of stages.

    Raises:
        SpecError: an option is unknown or no number.
        OptionError: it is neither of both.
    """
    if text.endswith(".json"):
        return load_workload(text)
    name, values = parse_spec(text)
    if name != "transformer":
        raise OptionError(
            f"--model: expected transformer:layers=24,… or a JSON file of stages, got {text!r:.60}"
        )
    return Transformer(**read_options(name, values, field_kinds(Transformer)))


def placement_lines(placement: Placement) -> list[str]:
    """A line for each pipeline: its servers, from the first stage to the last."""
    topology, rows = placement.topology, placement.pipelines.tolist()
    lines = [
        f"  pipeline {number}: " + " → ".join(map(topology.id_name, row))
        for number, row in enumerate(rows[:_SHOWN])
    ]
    return lines if len(rows) <= _SHOWN else [*lines, f"  and {len(rows) - _SHOWN} more"]
