"""``gradweave train``: train agents on many devices, with any way to combine what they learn."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradweave.cli.commands.evaluate import (
    NEEDED,
    episodes_option,
    lines_of,
    render_option,
)
from gradweave.cli.console import Progress, complain, note, print_json, print_lines
from gradweave.cli.groups import command
from gradweave.cli.options import json_option, positive, writable, writable_folder
from gradweave.common import lazy
from gradweave.common.wording import counted
from gradweave.errors import NotFiniteError, OptionError
from gradweave.training.pace import duration

if TYPE_CHECKING:
    from gradweave.marl.results import Trained


@command(examples=["--env MPE_simple_spread_v3 --algorithm ippo --output run"])
@click.option(
    "--env",
    metavar="ENV",
    help="Train in this environment, or in the game that MODULE:OBJECT is or makes.  "
    "[default: MPE_simple_spread_v3]",
)
@click.option(
    "--network",
    metavar="MODULE:FACTORY",
    help="Factory of the networks (Equinox or Flax), instead of Gradweave's networks.",
)
@click.option("--algorithm", metavar="NAME", help="Train by this algorithm.  [default: ippo]")
@click.option(
    "--aggregation",
    metavar="SPEC",
    help="Combine what devices learn by mean, ring, parameter_server, scheduled:NET, d_psgd, "
    "dcd_psgd:bits=4, asynchronous:consistency=ssp,bound=3 and others.  [default: mean]",
)
@click.option(
    "--devices",
    type=click.IntRange(1, 4096),
    metavar="N",
    help="Divide the games among this many devices, or workers of an asynchronous server.  "
    "[default: 1]",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    metavar="N",
    help="Train for this many steps of all games together; more than before extend a training that "
    "is at its end.  "
    "[default: 1000000]",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**31 - 1),
    metavar="N",
    help="Make every random choice from this seed.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    metavar="N",
    help="Train this many independent learners side by side.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change one of the algorithm's settings; may be repeated.",
)
@click.option(
    "--sweep",
    "sweeps",
    multiple=True,
    metavar="NAME=V,V,...",
    help="Train with each of these values of a setting in one program, each in a subfolder of "
    "--output. Repeatable, for all combinations.",
)
@click.option(
    "--machine",
    metavar="FILE",
    help="Reward machine for the agents of a world with events: they observe its state and get its "
    "rewards, Q-learners also learn from each step in its other states, and episodes end when the "
    "task is lost. `own` is the world's machine.",
)
@click.option(
    "--gossip",
    metavar="SPEC",
    help="Let agents of FEN find the mean utility by messages along a ring, complete, a network, "
    "or exact, for none.",
)
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read any of these from this TOML file; options count more.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    default=Path("trained"),
    show_default=True,
    help="Write policy, checkpoint and logs to this folder; a training that is there is resumed.",
)
@episodes_option
@render_option
@click.option(
    "--checkpoint-minutes",
    type=float,
    callback=positive(float),
    default=2.0,
    show_default=True,
    metavar="MINUTES",
    help="Write a checkpoint at this interval in minutes.",
)
@click.option(
    "--wandb",
    metavar="PROJECT",
    help="Give the curves to this project of Weights & Biases, too, if it is installed; they stay "
    "on this machine unless WANDB_MODE=online is set.",
)
@click.option(
    "--distributed",
    is_flag=True,
    help="Train together with the other processes of mpirun, Slurm or JAX_COORDINATOR_ADDRESS, "
    "JAX_NUM_PROCESSES and JAX_PROCESS_ID; --devices counts those of all.",
)
@json_option
def train(
    file: Path | None,
    settings: tuple[str, ...],
    sweeps: tuple[str, ...],
    machine: str | None,
    gossip: str | None,
    output: Path,
    episodes: int,
    render: Path | None,
    checkpoint_minutes: float,
    wandb: str | None,
    distributed: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train agents that share an environment.

    A checkpoint is written every few minutes and on Ctrl-C; the same command then resumes from it
    and ends in the same policy, bit for bit, as it would have without the interruption.
    """
    lazy.require("gradweave train", *NEEDED, extra="marl")
    if wandb is not None:
        from gradweave.training.weights_and_biases import check_installed

        check_installed()
    begun = time.monotonic()
    from gradweave.marl.request import Request, read_request, read_sweep, session
    from gradweave.marl.request import train as train_in

    sweep = read_sweep(sweeps)

    def ask() -> Request:
        given = settings if gossip is None else (*settings, f"gossip={gossip}")
        asked = read_request(file, options, given, machine)
        if sweep and (distributed or asked.by_server or render):
            raise OptionError("--sweep: not with --distributed, --render or asynchronous workers")
        return asked

    def check_files() -> None:
        writable_folder(output, "--output")
        writable(render, ".gif")

    with (
        Progress("starting") as progress,
        session(ask, check_files, distributed=distributed, complain=complain) as (request, group),
    ):
        if not group.first:
            progress.hide()
        several = train_in(
            *(request, output, group),
            sweep=sweep or None,
            progress=progress,
            checkpoint_minutes=checkpoint_minutes,
            note=note,
            wandb=wandb,
        )
        if sweep:
            from gradweave.marl import results

            found = results.of_sweep(several, output, episodes, progress)
            found["wall_s"] = round(time.monotonic() - begun, 2)
            results.save(found, output)
            if as_json:
                print_json(found)
            else:
                print_lines(*_lines_of_sweep(found))
            _check_finite(several)
            return
        (trained,) = several.values()
        group.leave()
        if not group.first:
            return
        from gradweave.marl import results

        result = results.description(trained)
        result |= results.of_training(trained, output, group.number)
        result |= results.evaluated(trained, episodes, request.config.seed, render, progress)
    result["wall_s"] = round(time.monotonic() - begun, 2)
    results.save(result, output)
    if as_json:
        print_json(result)
    else:
        print_lines(*_lines(result))


def _check_finite(several: "Mapping[str, Trained]") -> None:
    """Says which combinations of a sweep diverged.

    Raises:
        NotFiniteError: some did.
    """
    from gradweave.aggregate.finite import is_finite

    lost = [name for name, trained in several.items() if not is_finite(trained.parameters)]
    if lost:
        raise NotFiniteError(
            f"{', '.join(lost)}: parameters hold a NaN or an infinity; no policy of these is "
            "written"
        )


def _lines_of_sweep(result: dict[str, Any]) -> list[str]:
    width = max(map(len, result["sweep"]))
    return [
        f"{result['algorithm']} on {result['env']}: {len(result['sweep'])} combinations of "
        f"{counted(result['seeds'], 'seed')}, {counted(result['steps'], 'step')} each, in "
        f"{duration(result['wall_s'])}",
        *(
            f"{name:{width}}  return: greedy {one['greedy']['mean']:.4g}, sampled "
            f"{one['sampled']['mean']:.4g}, at random {one['random']['mean']:.4g}"
            for name, one in result["sweep"].items()
        ),
        f"({result['return_is']}; {counted(result['episodes'], 'episode')} a seed)",
        f"in {result['output']}: a folder for each combination, checkpoint.safetensors, "
        "result.json; gradweave plot shows them",
    ]


def _lines(result: dict[str, Any]) -> list[str]:
    now = result["updates"] - result["resumed_from"]
    rate = result["steps_per_s"]
    devices, processes = result["devices"], result["processes"]
    schedule = result["schedule"]
    return [
        f"{result['algorithm']} on {result['env']}: {counted(result['steps'], 'step')}, {now} of "
        f"{counted(result['updates'], 'update')} now, in {duration(result['wall_s'])} on {devices} "
        f"device{'s' * (devices > 1)}"
        + (f" of {processes} processes" if processes > 1 else "")
        + f" by {result['aggregation']}"
        + (f" ({schedule['topology']}, {counted(schedule['rounds'], 'round')})" if schedule else "")
        + (f", {rate:.3g} steps/s" if rate else ""),
        *lines_of(result),
        f"in {result['output']}: policy.safetensors, log.jsonl, tensorboard, result.json",
    ]
