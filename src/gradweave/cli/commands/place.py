"""``gradweave place``: who computes which stage, its cost, the bound, and a step's time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import click

from gradweave.cli.console import Progress, print_json, print_lines
from gradweave.cli.groups import command
from gradweave.cli.options import (
    SizeType,
    fault_options,
    json_option,
    network_of,
    refuse,
    seed_option,
    time_limit_option,
    writable,
)
from gradweave.cli.placed_training import (
    TrainingOptions,
    check_options,
    train_placed,
    training_options,
)
from gradweave.cli.placing import PlacementOptions, model_of, placement_lines, placement_options
from gradweave.common.wording import counted
from gradweave.errors import OptionError
from gradweave.placement.placement import Placement
from gradweave.placement.placing import place
from gradweave.placement.timeline.orders import ORDERS, Order
from gradweave.placement.timeline.step import StepTime, step_time
from gradweave.schedulers.spec import split_specs
from gradweave.topology.units import format_seconds, format_size

_SUFFIXES = (".html", ".htm", ".json")


class _Options(PlacementOptions, TrainingOptions):
    """Options of the placement and of its training."""


@command(
    name="place",
    examples=[
        "cities:Oregon.Tokyo,each=2 --model transformer:layers=12,width=1024 --pipeline 2",
        "cities:Oregon.Tokyo,each=2 --train --model transformer:layers=4,width=64 --pipeline 2",
    ],
)
@click.argument("network")
@placement_options
@click.option(
    "--memory",
    type=SizeType(),
    help="Memory of each server; stages that need more do not fit.",
)
@click.option(
    "--pipeline-schedule",
    type=click.Choice(ORDERS),
    default="1f1b",
    show_default=True,
    help="Order of the micro-batches in a step.",
)
@click.option(
    "--chunks",
    type=int,
    default=1,
    help="Chunks of the model on each server, for --pipeline-schedule interleaved.",
)
@click.option("--no-step", is_flag=True, help="Do not predict the time of a step.")
@training_options
@seed_option
@time_limit_option
@fault_options
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Write this page, .html, and the placement as .json next to it, or the .json only. With "
    "--train: the figures, .json, and a picture, .png.",
)
@json_option
def place_model(
    network: str,
    memory: int | None,
    pipeline_schedule: Order,
    chunks: int,
    no_step: bool,
    seed: int,
    time_limit: float | None,
    output: Path | None,
    as_json: bool,
    **given: Unpack[_Options],
) -> None:
    """Place the stages of a model on the servers of NETWORK.

    It prints the cost of the communication, how far it is above a lower bound, and how long a step
    takes with a schedule for each group of servers. NETWORK is a specification or a file.

    With --train it then trains a small GPT on the text of Gradweave's own sources: its stages by
    torch.distributed.pipelining, each group's gradients by a schedule for its links. If MODEL is a
    file of stages, their passes sleep instead. Each server is a process of this machine, or of the
    launcher under torchrun and mpirun. With --lab the processes are on the emulated network, and
    measured steps are printed next to the predicted one.
    """
    check_options(given)
    if given["train"]:
        refuse(("chunks", "no_step"), "no --train with it")
        if pipeline_schedule == "interleaved":
            raise OptionError("--pipeline-schedule: expected gpipe or 1f1b with --train")
        train_placed(
            network,
            given,
            given,
            pipeline_schedule,
            memory=memory,
            seed=seed,
            time_limit=time_limit,
            output=output,
            as_json=as_json,
        )
        return
    writable(output, *_SUFFIXES)
    strategies = split_specs(given["scheduler"] or "annealing")
    if len(strategies) != 1:
        raise OptionError(f"--scheduler: expected one without --train, got {len(strategies)}")
    model = given["model"]
    workload = model_of(model)
    with Progress(f"placing {model} on {network}") as progress:
        placement = place(
            network_of(network, given),
            workload,
            pipeline=given["pipeline"],
            data=given["data"],
            strategy=strategies[0],
            cost=given["cost"],
            memory_bytes=memory,
            seed=seed,
            time_limit=time_limit,
            progress=progress,
        )
        step = None
        if not no_step:
            step = step_time(
                placement,
                pipeline_schedule,
                chunks=chunks,
                seed=seed,
                time_limit=time_limit,
                progress=progress,
            )
        written = [] if output is None else _write(placement, step, output, progress)
    if as_json:
        why = {"stopped": placement.stopped}
        print_json(placement.as_object() | why | _step_fields(step) | {"output": written})
    else:
        print_lines(*_lines(placement, step, written))


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
