"""``gradweave learn``: train the learned scheduler's policies, or the paper's of one network."""

import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradweave.cli.answers import Answer
from gradweave.cli.combinations import excludes, needs
from gradweave.cli.console import Progress, note
from gradweave.cli.groups import command
from gradweave.cli.options import FILE, option, writable_folder
from gradweave.cli.paper_training import case_of, compared, lines_of
from gradweave.common import lazy
from gradweave.common.wording import counted
from gradweave.environment.instance import TREES, Trees
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


@command(
    examples=[
        "--paper B3 --output B3",
        "--devices 4 --aggregation scheduled:ring:4 --output learned",
    ]
)
@option(
    "--config file",
    "Read the training's configuration from this TOML file.  [default: that of the shipped "
    "weights]",
    FILE,
    metavar="FILE",
)
@option(
    "--paper",
    "Train as the paper does, on this network: B3, B4, B5, D4, D5, D6, J10, J15 or J20 of its "
    "Table 2, or any other.",
    metavar="NETWORK",
)
@option(
    "--trees",
    "With --paper, the reading of its trees: shortest paths with ties broken evenly, or "
    "(fixed) by lowest ids, or trees that grow with the schedule.",
    click.Choice(TREES),
    default="even",
)
@option(
    "--seed",
    "With --paper, make every random choice from this seed.",
    click.IntRange(0, 2**31 - 1),
    default=0,
)
@needs("--paper", "--trees", "--seed")
@excludes("--paper", "--config")
@option(
    "--output",
    "Write weights, checkpoint and logs to this folder; a training that is there is resumed.",
    FILE,
    metavar="FOLDER",
    default=Path("learned"),
)
@option(
    "--devices",
    "Divide the episodes among this many devices.  [default: all accelerators, or else all cores]",
    click.IntRange(1, 4096),
    metavar="N",
)
@option(
    "--aggregation",
    "Average gradients by mean, ring, parameter_server, or scheduled: and a schedule's file "
    "or a network.",
    metavar="SPEC",
    default="mean",
)
def learn(
    file: Path | None,
    paper: str | None,
    trees: Trees,
    seed: int,
    output: Path,
    devices: int | None,
    aggregation: str,
) -> Answer:
    """Train the policies of the scheduler "learned".

    With --paper, train the paper's two policies on one network by its Algorithm 1, with its
    rewards; show their rounds next to the paper's, to those of 19 constants and to the bound, and
    draw the curve.

    A checkpoint is written every few minutes and on Ctrl-C; the same command then resumes from it
    and, on as many devices, ends in the same weights as it would have without the interruption.
    """
    lazy.require("gradweave learn", *_NEEDED, extra="learn")
    writable_folder(output, "--output")
    begun = time.monotonic()
    from gradweave.learning.config import parse_aggregation, read_config
    from gradweave.learning.paper import config as paper_config

    if paper is None:
        case, config = None, read_config(file)
    else:
        case = case_of(paper)
        config = paper_config(case.spec, trees, seed)
    parse_aggregation(aggregation, devices)
    _check_groups(config, devices)
    with Progress("starting JAX") as progress:
        result = _train(config, output, devices, aggregation, progress)
        if case is not None:
            progress("drawing episodes by 19 constants")
            result["paper"] = compared(case, config, output)
    result["wall_s"] = round(time.monotonic() - begun, 2)
    return Answer(result, _lines(config, result))


def _lines(config: "Config", result: dict[str, Any]) -> Iterator[str]:
    number = result["devices"]
    yield (
        f"{counted(config.updates, 'update')}, "
        f"{config.updates - result['resumed_from']} of them now, "
        f"in {duration(result['wall_s'])} on {number} device{'s' * (number > 1)}"
    )
    if "paper" in result:
        yield from lines_of(result["paper"])
    yield f"weights: {result['weights']}"
    yield f"use them: gradweave solve NET --scheduler {shlex.quote(result['scheduler'])}"


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
