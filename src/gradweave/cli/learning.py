"""``python -m gradweave.learning``: train the policies of the learned scheduler."""

import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradweave.cli.console import Progress, note, print_json, print_lines
from gradweave.cli.groups import command
from gradweave.cli.options import json_option, writable_folder
from gradweave.common import lazy
from gradweave.common.wording import counted
from gradweave.processes.jax_start import start_jax
from gradweave.training.pace import duration

if TYPE_CHECKING:
    from gradweave.learning.config import Config
    from gradweave.learning.training import Report

_NEEDED = ("jax", "equinox", "jaxtyping", "optax", "safetensors", "tensorboardX")
_AGENTS = {
    "tree": "flow-tree selection",
    "workload": "workload scheduling",
    "imitation": "workload scheduling imitates repaired episodes",
}


@command(examples=["--devices 4 --aggregation scheduled:ring:4 --output learned"])
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read the training's configuration from this TOML file.  [default: that of the shipped "
    "weights]",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    default=Path("learned"),
    show_default=True,
    help="Write weights, checkpoint and logs to this folder; a training that is there is resumed.",
)
@click.option(
    "--devices",
    type=click.IntRange(1, 4096),
    metavar="N",
    help="Divide the episodes among this many devices.  [default: all accelerators, or else all "
    "cores]",
)
@click.option(
    "--aggregation",
    metavar="SPEC",
    default="mean",
    show_default=True,
    help="Average gradients by mean, ring, parameter_server, or scheduled: and a schedule's file "
    "or a network.",
)
@json_option
def learn(
    file: Path | None, output: Path, devices: int | None, aggregation: str, as_json: bool
) -> None:
    """Train the policies of the scheduler "learned".

    A checkpoint is written every few minutes and on Ctrl-C; the same command then resumes from it
    and, on as many devices, ends in the same weights as it would have without the interruption.
    """
    lazy.require("python -m gradweave.learning", *_NEEDED, extra="learn")
    writable_folder(output, "--output")
    begun = time.monotonic()
    from gradweave.learning.config import parse_aggregation, read_config

    config = read_config(file)
    parse_aggregation(aggregation, devices)
    _check_groups(config, devices)
    with Progress("starting JAX") as progress:
        result = _train(config, output, devices, aggregation, progress)
    result["wall_s"] = round(time.monotonic() - begun, 2)
    if as_json:
        print_json(result)
    else:
        number = result["devices"]
        print_lines(
            f"{counted(config.updates, 'update')}, "
            f"{config.updates - result['resumed_from']} of them now, "
            f"in {duration(result['wall_s'])} on {number} device{'s' * (number > 1)}",
            f"weights: {result['weights']}",
            f"use them: gradweave solve NET --scheduler {shlex.quote(result['scheduler'])}",
        )


def _train(
    config: "Config", output: Path, devices: int | None, aggregation: str, progress: Progress
) -> dict[str, Any]:
    """Trains, and returns the result as JSON."""
    from gradweave.learning.training import WEIGHTS, train, updates_done
    from gradweave.training.resuming import resuming

    before = updates_done(config, output)
    number = _devices(config, devices)
    reports: list[Report] = []

    def report(at: "Report") -> None:
        reports[:] = [at]
        progress(_doing(at))

    def done() -> int:
        return updates_done(config, output)

    progress("reading the networks")
    with resuming(output, before, config.updates, done, "learn", note):
        train(
            config,
            output,
            report=report,
            devices=number,
            aggregation=aggregation,
            progress=progress,
        )
    weights = output / WEIGHTS
    return {
        "output": str(output),
        "weights": str(weights),
        "scheduler": f"learned:weights={weights}",
        "updates": config.updates,
        "resumed_from": before,
        "devices": number,
        "aggregation": aggregation,
        "over_bound": reports[0].over_bound if reports else None,
    }


def _check_groups(config: "Config", devices: int | None) -> None:
    """Refuses at once what training would refuse once JAX has started."""
    from gradweave.topology.spec import from_spec

    for group in config.groups:
        group.check_devices(devices or 1)
        for exercise in group.exercises:
            from_spec(exercise.topology)


def _devices(config: "Config", asked: int | None) -> int:
    """How many devices to use: those asked for, or the most that the episodes divide among.

    JAX takes a processor for one device unless told otherwise before it starts.
    """
    import jax

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    start_jax(asked or cores or 1)
    if asked is not None:
        return asked
    return max(
        number
        for number in range(1, len(jax.devices()) + 1)
        if all(group.episodes % number == 0 for group in config.groups)
    )


def _doing(at: "Report") -> str:
    return (
        f"update {at.update} of {at.of}, {_AGENTS[at.agent]}: "
        f"{at.over_bound:.1%} over the bound; about {duration(at.seconds_left)} left"
    )
