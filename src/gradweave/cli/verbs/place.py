"""``gradweave place``: who computes which stage, its cost, the bound, and a step's time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import click

from gradweave.cli.console import Progress, print_json, print_lines
from gradweave.cli.options import (
    SizeType,
    fault_options,
    json_option,
    network_of,
    seed_option,
    time_limit_option,
    writable,
)
from gradweave.cli.placing import PlacementOptions, placement_options
from gradweave.errors import OptionError
from gradweave.placement.placement import Placement, load_workload
from gradweave.placement.placing import place
from gradweave.placement.timeline.orders import ORDERS, Order
from gradweave.placement.timeline.step import StepTime, step_time
from gradweave.placement.workload import Transformer, Workload
from gradweave.specification import field_kinds, parse_spec, read_options
from gradweave.topology.units import format_seconds, format_size
from gradweave.wording import counted

_SUFFIXES = (".html", ".htm", ".json")
_SHOWN = 16
"""Pipelines and stages up to which the placement is printed in full."""


@click.command(name="place")
@click.argument("network")
@placement_options
@click.option(
    "--memory",
    type=SizeType(),
    help="Give each server this much memory; stages that need more do not fit.",
)
@click.option(
    "--order",
    type=click.Choice(ORDERS),
    default="1f1b",
    show_default=True,
    help="Run the micro-batches in this order, for a step's time.",
)
@click.option(
    "--chunks",
    type=int,
    default=1,
    help="Give each server this many chunks of the model, if interleaved.",
)
@click.option("--no-step", is_flag=True, help="Leave out the step's time and the schedules for it.")
@seed_option
@time_limit_option
@fault_options
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Write this page, .html, with the placement beside it as .json; or .json alone.",
)
@json_option
def place_verb(
    network: str,
    memory: int | None,
    order: Order,
    chunks: int,
    no_step: bool,
    seed: int,
    time_limit: float | None,
    output: Path | None,
    as_json: bool,
    **given: Unpack[PlacementOptions],
) -> None:
    """Decide which server of NETWORK computes which stage of a model, and who averages with whom.

    It says what the communication costs, how far from the least that is, and how long a step takes
    with schedules made for each group of servers. NETWORK is a specification or a file.
    """
    writable(output, *_SUFFIXES)
    model = given["model"]
    workload = model_of(model)
    with Progress(f"placing {model} on {network}") as progress:
        placement = place(
            network_of(network, given),
            workload,
            pipeline=given["pipeline"],
            data=given["data"],
            strategy=given["strategy"],
            cost=given["cost"],
            memory_bytes=memory,
            seed=seed,
            time_limit=time_limit,
            progress=progress,
        )
        step = None
        if not no_step:
            step = step_time(
                placement, order, chunks=chunks, seed=seed, time_limit=time_limit, progress=progress
            )
        written = [] if output is None else _write(placement, step, output, progress)
    if as_json:
        why = {"stopped": placement.stopped}
        print_json(placement.as_object() | why | _step_fields(step) | {"output": written})
    else:
        print_lines(*_lines(placement, step, written))


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
            f"model: expected transformer:layers=24,… or a JSON file of stages, got {text!r:.60}"
        )
    return Transformer(**read_options(name, values, field_kinds(Transformer)))


def _write(
    placement: Placement, step: StepTime | None, output: Path, progress: Progress
) -> list[str]:
    """Writes the placement, and the page and the pages of the groups' schedules it links to."""
    from gradweave.report.placement import write_placement_pages

    progress(f"writing {output}")
    file = output.with_suffix(".json")
    placement.save(file)
    pages = [] if output == file else write_placement_pages(placement, step, output)
    return [*map(str, pages), str(file)]


def _step_fields(step: StepTime | None) -> dict[str, Any]:
    if step is None:
        return {"step": None}
    return {
        "step": {
            "order": step.order,
            "seconds": step.seconds,
            "passes_s": step.passes_s,
            "bubble": step.bubble,
            "utilisation": step.utilisation,
            "group_s": [None if one is None else one.seconds for one in step.groups],
            "group_bound_s": [None if one is None else one.bound_s for one in step.groups],
        }
    }


def _lines(placement: Placement, step: StepTime | None, written: Sequence[str]) -> list[str]:
    stages, data = placement.servers.shape
    topology, workload = placement.topology, placement.workload
    idle = f", {len(placement.idle)} idle" if len(placement.idle) else ""
    lines = [
        f"{topology.name}: {topology.num_servers} servers; {workload.name}: "
        f"{counted(stages, 'stage')}, {counted(data, 'pipeline')}{idle}",
        *placement_lines(placement),
        f"{format_seconds(placement.cost_s)} of communication: gradients "
        f"{format_seconds(placement.data_s)}, activations {format_seconds(placement.pipeline_s)}; "
        "each sent directly",
    ]
    if placement.bound is not None:
        gap = placement.gap or 0.0
        verdict = "the least possible" if placement.optimal else f"{gap:.1%} above the bound"
        lines.append(f"{verdict}: {placement.bound}")
    if placement.scheduled is not None:
        with_ours = placement.scheduled
        lines.append(
            f"{format_seconds(with_ours.seconds)} with schedules and shared links: gradients "
            f"{format_seconds(with_ours.data_s)}, activations "
            f"{format_seconds(with_ours.pipeline_s)}"
        )
    if step is not None:
        lines += _step_lines(placement, step)
    when = ", when time was up" * (placement.stopped == "time")
    lines.append(f"found by {placement.strategy} in {placement.wall_s:.2f} s{when}")
    return [*lines, f"written to {', '.join(written)}"] if written else lines


def _step_lines(placement: Placement, step: StepTime) -> list[str]:
    largest = max(stage.gradient_bytes for stage in placement.workload.stages)
    groups = [one for one in step.groups if one is not None]
    lines = [
        f"a step by {step.order}: {format_seconds(step.seconds)}, passes "
        f"{format_seconds(step.passes_s)} of it; "
        f"bubble {step.bubble:.0%}, devices compute {step.utilisation:.0%} of the time"
    ]
    if groups:
        slowest = max(groups, key=lambda one: one.seconds)
        lines.append(
            f"all-reduces by schedules for each group's links, up to {format_size(largest)}: "
            f"{format_seconds(slowest.seconds)} at most, at least "
            f"{format_seconds(slowest.bound_s)}"
        )
    return lines


def placement_lines(placement: Placement) -> list[str]:
    """A line for each pipeline: its servers, from the first stage to the last."""
    topology, rows = placement.topology, placement.pipelines.tolist()
    lines = [
        f"  pipeline {number}: " + " → ".join(map(topology.id_name, row))
        for number, row in enumerate(rows[:_SHOWN])
    ]
    return lines if len(rows) <= _SHOWN else [*lines, f"  and {len(rows) - _SHOWN} more"]
