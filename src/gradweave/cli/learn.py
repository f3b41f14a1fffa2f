"""``gradweave learn``: train the policies of the learned scheduler."""

import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradweave import lazy
from gradweave.cli.console import Progress, duration, note, print_json, print_lines
from gradweave.cli.options import json_option
from gradweave.errors import FileError
from gradweave.processes.jax_start import start_jax

if TYPE_CHECKING:
    from gradweave.learning.config import Config
    from gradweave.learning.training import Report

_NEEDED = ("jax", "equinox", "jaxtyping", "optax", "safetensors", "tensorboardX")
_AGENTS = {"tree": "flow-tree selection", "workload": "workload scheduling"}


@click.command()
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML file that says what to train and on what.  [default: the shipped weights' own]",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    default=Path("learned"),
    show_default=True,
    help="Folder for weights, checkpoint and logs; a training that is there is gone on with.",
)
@click.option(
    "--devices",
    type=click.IntRange(1, 4096),
    metavar="N",
    help="Devices to divide the episodes among.  [default: all accelerators, or else all cores]",
)
@click.option(
    "--aggregation",
    metavar="SPEC",
    default="mean",
    show_default=True,
    help="How devices average gradients: mean, ring, parameter_server, or scheduled: and a "
    "schedule's file or a network.",
)
@json_option
def learn(
    file: Path | None, output: Path, devices: int | None, aggregation: str, as_json: bool
) -> None:
    """Train the policies that the scheduler "learned" plays.

    A checkpoint is written every few minutes and on Ctrl-C; the same command then goes on from it
    and, on as many devices, ends in the same weights as it would have without the break.
    """
    lazy.require("gradweave learn", *_NEEDED, extra="learn")
    if output.exists() and not output.is_dir():
        raise FileError(f"{output}: is not a directory; give another name to --output")
    begun = time.monotonic()
    from gradweave.learning.config import parse_aggregation, read_config

    config = read_config(file)
    parse_aggregation(aggregation, devices)
    _check_groups(config, devices)
    with Progress("starting JAX"):
        from gradweave.learning.training import WEIGHTS, train, updates_done

        before = updates_done(config, output)
        number = _devices(config, devices)
    if before:
        note(f"resumes from {output}: {before} of {config.updates} updates are done")
    last: Report | None = None
    progress = Progress("reading the networks")

    def report(made: "Report") -> None:
        nonlocal last
        last = made
        progress(_doing(made))

    try:
        with progress:
            train(
                config,
                output,
                report=report,
                devices=number,
                aggregation=aggregation,
                progress=progress,
            )
    except KeyboardInterrupt:
        done = updates_done(config, output)
        if done:
            note(f"{output} holds {done} of {config.updates} updates; learn again to go on")
        raise
    weights = output / WEIGHTS
    scheduler = f"learned:weights={weights}"
    held: dict[str, Any] = {
        "output": str(output),
        "weights": str(weights),
        "scheduler": scheduler,
        "updates": config.updates,
        "resumed_from": before,
        "devices": number,
        "aggregation": aggregation,
        "over_bound": None if last is None else last.over_bound,
        "wall_s": round(time.monotonic() - begun, 2),
    }
    if as_json:
        print_json(held)
    else:
        print_lines(
            f"{config.updates} updates, {config.updates - before} of them now, "
            f"in {duration(held['wall_s'])} on {number} device{'s' * (number > 1)}",
            f"weights: {weights}",
            f"use them: gradweave schedule NET --scheduler {shlex.quote(scheduler)}",
        )


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


def _doing(made: "Report") -> str:
    return (
        f"update {made.update} of {made.of}, {_AGENTS[made.agent]}: "
        f"{made.over_bound:.1%} over the bound; about {duration(made.seconds_left)} left"
    )
