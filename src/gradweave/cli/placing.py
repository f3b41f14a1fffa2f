"""Options of a placement, and what is printed of it."""

from collections.abc import Iterator

import click

from gradweave.cli.options import FaultOptions, grouped, option, scheduler_option
from gradweave.common.specification import field_kinds, parse_spec, read_options
from gradweave.common.wording import counted
from gradweave.errors import OptionError
from gradweave.placement.placement import Placement, load_workload
from gradweave.placement.placing import COSTS, Cost
from gradweave.placement.workload import Transformer, Workload

placement_options = grouped(
    option(
        "--model",
        "The model: transformer:layers=24,width=2048,…, for which stages are estimated, or a "
        "JSON file of stages.",
        required=True,
        metavar="MODEL",
    ),
    option(
        "--pipeline",
        "Cut the model into this many stages.  [default: the file's; servers over --data]",
        int,
    ),
    option(
        "--data", "Run this many pipelines in parallel.  [default: servers over the stages]", int
    ),
    scheduler_option(
        "Search by annealing, evolutionary, exact, rank_order or random, with options such as "
        "annealing:restarts=16. With --train the first is compared with the others, among which "
        "gloo stands for the first placement with gloo's all-reduce, pytorch for that with "
        "PyTorch's pipeline and all-reduce.  [default: annealing; in the lab also rank_order,gloo]"
    ),
    option(
        "--cost",
        "Minimise the cost of gradients sent directly, or by a schedule for each group "
        "on shared links.",
        click.Choice(COSTS),
        default="exchange",
    ),
)
"""The options of a placement; see `PlacementOptions`."""
_SHOWN = 16
"""Pipelines and stages up to which a placement is printed in full."""


class PlacementOptions(FaultOptions):
    """Values of the options of `placement_options`, and of those for the network's faults."""

    model: str
    pipeline: int | None
    data: int | None
    scheduler: str | None
    cost: Cost


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


def placement_lines(placement: Placement) -> Iterator[str]:
    """The sizes of a placement, and for each pipeline its servers from the first stage on."""
    topology, rows = placement.topology, placement.pipelines.tolist()
    stages, data = placement.servers.shape
    idle = f", {len(placement.idle)} idle" * bool(len(placement.idle))
    yield (
        f"{topology.name}: {topology.num_servers} servers; {placement.workload.name}: "
        f"{counted(stages, 'stage')}, {counted(data, 'pipeline')}{idle}"
    )
    for number, row in enumerate(rows[:_SHOWN]):
        yield f"  pipeline {number}: {' → '.join(map(topology.id_name, row))}"
    if len(rows) > _SHOWN:
        yield f"  and {len(rows) - _SHOWN} more"


def bound_line(placement: Placement) -> str:
    """How far a placement is above its lower bound; empty if none is known."""
    if placement.bound is None:
        return ""
    gap = placement.gap or 0.0
    verdict = "the least possible" if placement.optimal else f"{gap:.1%} above the bound"
    return f"{verdict}: {placement.bound}"
