"""``gradweave place``: who computes which stage, its cost, the bound, and a step's time."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import click

from gradweave.cli.answers import Answer
from gradweave.cli.combinations import excludes
from gradweave.cli.console import Progress, fields_of
from gradweave.cli.groups import command
from gradweave.cli.options import (
    FILE,
    SizeType,
    fault_options,
    network_of,
    option,
    seed_option,
    time_limit_option,
    writable,
)
from gradweave.cli.placed_training import TrainedOptions, train_placed, training_options
from gradweave.cli.placing import bound_line, model_of, placement_lines, placement_options
from gradweave.errors import OptionError
from gradweave.placement.placement import Placement
from gradweave.placement.placing import place
from gradweave.placement.timeline.orders import ORDERS, Order
from gradweave.placement.timeline.step import StepTime, step_time
from gradweave.schedulers.spec import split_specs
from gradweave.topology.units import format_seconds, format_size

_SUFFIXES = (".html", ".htm", ".json")


@command(
    name="place",
    examples=[
        "cities:Oregon.Tokyo,each=2 --model transformer:layers=12,width=1024 --pipeline 2",
        "cities:Oregon.Tokyo,each=2 --train --model transformer:layers=4,width=64 --pipeline 2",
    ],
)
@click.argument("network")
@placement_options
@option("--memory", "Memory of each server; stages that need more do not fit.", SizeType())
@option(
    "--pipeline-schedule",
    "Order of the micro-batches in a step.",
    click.Choice(ORDERS),
    default="1f1b",
)
@option(
    "--chunks",
    "Chunks of the model on each server, for --pipeline-schedule interleaved.",
    int,
    default=1,
)
@option("--no-step", "Do not predict the time of a step.", bool)
@excludes("--train", "--chunks", "--no-step", "--pipeline-schedule interleaved")
@training_options
@seed_option
@time_limit_option
@fault_options
@option(
    "--output",
    "Write this page, .html, and the placement as .json next to it, or the .json only. With "
    "--train: the figures, .json, and a picture, .png.",
    FILE,
)
def place_model(
    network: str,
    memory: int | None,
    pipeline_schedule: Order,
    chunks: int,
    no_step: bool,
    seed: int,
    time_limit: float | None,
    output: Path | None,
    **given: Unpack[TrainedOptions],
) -> Answer | None:
    """Place the stages of a model on the servers of NETWORK.

    It prints the cost of the communication, how far it is above a lower bound, and how long a step
    takes with a schedule for each group of servers. NETWORK is a specification or a file.

    With --train it then trains a small GPT on the text of Gradweave's own sources: its stages by
    torch.distributed.pipelining, each group's gradients by a schedule for its links. If MODEL is a
    file of stages, their passes sleep instead. Each server is a process of this machine, or of the
    launcher under torchrun and mpirun. With --lab the processes are on the emulated network, and
    measured steps are printed next to the predicted one.
    """
    limits = {"seed": seed, "time_limit": time_limit}
    if given["train"]:
        return train_placed(network, given, pipeline_schedule, memory, output, **limits)
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
            progress=progress,
            **limits,
        )
        step = None
        if not no_step:
            order = pipeline_schedule
            step = step_time(placement, order, chunks=chunks, progress=progress, **limits)
        written = [] if output is None else _write(placement, step, output, progress)
    found = {"stopped": placement.stopped, "step": _step(step), "output": written}
    return Answer(placement.as_object() | found, _lines(placement, step, written))


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


def _step(step: StepTime | None) -> dict[str, Any] | None:
    if step is None:
        return None
    return {
        **fields_of(step, "order", "seconds", "passes_s", "bubble", "utilisation"),
        "group_s": [one and one.seconds for one in step.groups],
        "group_bound_s": [one and one.bound_s for one in step.groups],
    }


def _lines(placement: Placement, step: StepTime | None, written: Sequence[str]) -> Iterator[str]:
    yield from placement_lines(placement)
    yield (
        f"{format_seconds(placement.cost_s)} of communication: gradients "
        f"{format_seconds(placement.data_s)}, activations {format_seconds(placement.pipeline_s)}; "
        "each sent directly"
    )
    if bound := bound_line(placement):
        yield bound
    if placement.scheduled is not None:
        with_ours = placement.scheduled
        yield (
            f"{format_seconds(with_ours.seconds)} with schedules and shared links: gradients "
            f"{format_seconds(with_ours.data_s)}, activations "
            f"{format_seconds(with_ours.pipeline_s)}"
        )
    if step is not None:
        yield from _step_lines(placement, step)
    when = ", when time was up" * (placement.stopped == "time")
    yield f"found by {placement.strategy} in {placement.wall_s:.2f} s{when}"
    if written:
        yield f"written to {', '.join(written)}"


def _step_lines(placement: Placement, step: StepTime) -> Iterator[str]:
    yield (
        f"a step by {step.order}: {format_seconds(step.seconds)}, passes "
        f"{format_seconds(step.passes_s)} of it; "
        f"bubble {step.bubble:.0%}, devices compute {step.utilisation:.0%} of the time"
    )
    groups = [one for one in step.groups if one is not None]
    if groups:
        largest = max(stage.gradient_bytes for stage in placement.workload.stages)
        slowest = max(groups, key=lambda one: one.seconds)
        yield (
            f"all-reduces by schedules for each group's links, up to {format_size(largest)}: "
            f"{format_seconds(slowest.seconds)} at most, at least "
            f"{format_seconds(slowest.bound_s)}"
        )
