"""``gradweave train``: train agents on many devices, with any way to combine what they learn."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradweave.cli.answers import Answer
from gradweave.cli.combinations import excludes
from gradweave.cli.commands.evaluate import NEEDED, episodes_option, lines_of, render_option
from gradweave.cli.console import Progress, complain, note
from gradweave.cli.groups import command
from gradweave.cli.options import FILE, SECONDS, option, writable, writable_folder
from gradweave.common import lazy
from gradweave.common.wording import counted
from gradweave.errors import NotFiniteError, OptionError
from gradweave.training.pace import duration

if TYPE_CHECKING:
    from gradweave.marl.results import Trained


@command(examples=["--env MPE_simple_spread_v3 --algorithm ippo --output run"])
@option(
    "--env",
    "Train in this environment, or in the game that MODULE:OBJECT is or makes.  "
    "[default: MPE_simple_spread_v3]",
    metavar="ENV",
)
@option(
    "--network",
    "Factory of the networks (Equinox or Flax), instead of Gradweave's networks.",
    metavar="MODULE:FACTORY",
)
@option("--algorithm", "Train by this algorithm.  [default: ippo]", metavar="NAME")
@option(
    "--aggregation",
    "Combine what devices learn by mean, ring, parameter_server, scheduled:NET, d_psgd, "
    "dcd_psgd:bits=4, asynchronous:consistency=ssp,bound=3 and others.  [default: mean]",
    metavar="SPEC",
)
@option(
    "--devices",
    "Divide the games among this many devices, or workers of an asynchronous server.  [default: 1]",
    click.IntRange(1, 4096),
    metavar="N",
)
@option(
    "--steps",
    "Train for this many steps of all games together; more than before extend a training that "
    "is at its end.  "
    "[default: 1000000]",
    click.IntRange(1),
    metavar="N",
)
@option(
    "--seed", "Make every random choice from this seed.", click.IntRange(0, 2**31 - 1), metavar="N"
)
@option(
    "--seeds", "Train this many independent learners side by side.", click.IntRange(1), metavar="N"
)
@option(
    "--set settings",
    "Change one of the algorithm's settings; may be repeated.",
    multiple=True,
    metavar="NAME=VALUE",
)
@option(
    "--sweep sweeps",
    "Train with each of these values of a setting in one program, each in a subfolder of "
    "--output. Repeatable, for all combinations.",
    multiple=True,
    metavar="NAME=V,V,...",
)
@option(
    "--machine",
    "Reward machine for the agents of a world with events: they observe its state and get its "
    "rewards, Q-learners also learn from each step in its other states, and episodes end when the "
    "task is lost. `own` is the world's machine.",
    metavar="FILE",
)
@option(
    "--gossip",
    "Let agents of FEN find the mean utility by messages along a ring, complete, a network, "
    "or exact, for none.",
    metavar="SPEC",
)
@option(
    "--config file",
    "Read any of these from this TOML file; options count more.",
    FILE,
    metavar="FILE",
)
@option(
    "--output",
    "Write policy, checkpoint and logs to this folder; a training that is there is resumed.",
    FILE,
    metavar="FOLDER",
    default=Path("trained"),
)
@episodes_option
@render_option
@option(
    "--checkpoint-minutes",
    "Write a checkpoint at this interval in minutes.",
    SECONDS,
    default=2.0,
    metavar="MINUTES",
)
@option(
    "--wandb",
    "Give the curves to this project of Weights & Biases, too, if it is installed; they stay "
    "on this machine unless WANDB_MODE=online is set.",
    metavar="PROJECT",
)
@option(
    "--distributed",
    "Train together with the other processes of mpirun, Slurm or JAX_COORDINATOR_ADDRESS, "
    "JAX_NUM_PROCESSES and JAX_PROCESS_ID; --devices counts those of all.",
    bool,
)
@excludes("--sweep", "--distributed", "--render")
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
    **options: Any,
) -> Iterator[Answer]:
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
        if sweep and asked.by_server:
            raise OptionError("--sweep: not with asynchronous workers")
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
        if not sweep:
            group.leave()
            if not group.first:
                return
        from gradweave.marl import results

        if sweep:
            result = results.of_sweep(several, output, episodes, progress)
        else:
            (trained,) = several.values()

            result = results.description(trained)
            result |= results.of_training(trained, output, group.number)
            result |= results.evaluated(trained, episodes, request.config.seed, render, progress)
    result["wall_s"] = round(time.monotonic() - begun, 2)
    results.save(result, output)
    yield Answer(result, _lines_of_sweep(result) if sweep else _lines(result))
    if sweep:
        _check_finite(several)


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


def _lines_of_sweep(result: dict[str, Any]) -> Iterator[str]:
    width = max(map(len, result["sweep"]))
    yield (
        f"{result['algorithm']} on {result['env']}: {len(result['sweep'])} combinations of "
        f"{counted(result['seeds'], 'seed')}, {counted(result['steps'], 'step')} each, in "
        f"{duration(result['wall_s'])}"
    )
    for name, one in result["sweep"].items():
        yield (
            f"{name:{width}}  return: greedy {one['greedy']['mean']:.4g}, sampled "
            f"{one['sampled']['mean']:.4g}, at random {one['random']['mean']:.4g}"
        )
    yield f"({result['return_is']}; {counted(result['episodes'], 'episode')} a seed)"
    yield (
        f"in {result['output']}: a folder for each combination, checkpoint.safetensors, "
        "result.json; gradweave plot shows them"
    )


def _lines(result: dict[str, Any]) -> Iterator[str]:
    now = result["updates"] - result["resumed_from"]
    rate, schedule = result["steps_per_s"], result["schedule"]
    devices, processes = result["devices"], result["processes"]
    yield (
        f"{result['algorithm']} on {result['env']}: {counted(result['steps'], 'step')}, {now} of "
        f"{counted(result['updates'], 'update')} now, in {duration(result['wall_s'])} on {devices} "
        f"device{'s' * (devices > 1)}"
        + (f" of {processes} processes" if processes > 1 else "")
        + f" by {result['aggregation']}"
        + (f" ({schedule['topology']}, {counted(schedule['rounds'], 'round')})" if schedule else "")
        + (f", {rate:.3g} steps/s" if rate else "")
    )
    yield from lines_of(result)
    yield f"in {result['output']}: policy.safetensors, log.jsonl, tensorboard, result.json"
