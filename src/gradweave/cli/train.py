"""``gradweave train``: train agents on many devices, with any way to combine what they learn."""

import contextlib
import dataclasses
import json
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradweave import lazy
from gradweave.atomic import atomic_write
from gradweave.checks import did_you_mean
from gradweave.cli.console import Progress, duration, note, print_json, print_lines
from gradweave.cli.evaluate import (
    NEEDED,
    about,
    drawn,
    episodes_option,
    judged,
    render_option,
    told,
)
from gradweave.cli.options import json_option, positive, writable
from gradweave.cli.status import ANSWER_IS_NO, BAD_INPUT, INTERRUPTED
from gradweave.errors import FileError, GradweaveError, Negative, OptionError
from gradweave.processes.jax_start import start_jax

if TYPE_CHECKING:
    from gradweave.marl.config import Config
    from gradweave.marl.training import Report, Trained
    from gradweave.processes.agreement import Processes

RESULT = "result.json"
_KEYS = (
    *("env", "options", "algorithm", "aggregation", "devices"),
    *("seed", "seeds", "steps", "settings"),
)
_LINGER_S = 1.0
"""How long a process with nothing to say lets another say it: mpirun ends all when one fails."""
_USUAL = {"env": "MPE_simple_spread_v3", "algorithm": "ippo", "steps": 1_000_000}


@click.command()
@click.option("--env", metavar="ENV", help="What to play.  [default: MPE_simple_spread_v3]")
@click.option("--algorithm", metavar="NAME", help="How to learn.  [default: ippo]")
@click.option(
    "--aggregation",
    metavar="SPEC",
    help="How devices combine what they learn: mean, ring, parameter_server, scheduled:NET, "
    "d_psgd, dcd_psgd:bits=4, ...  [default: mean]",
)
@click.option(
    "--devices",
    type=click.IntRange(1, 4096),
    metavar="N",
    help="Devices to divide the games among.  [default: 1]",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    metavar="N",
    help="Steps of all games together; a training at its end goes on where more are asked for.  "
    "[default: 1000000]",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**31 - 1), metavar="N", help="Of every random choice."
)
@click.option(
    "--seeds", type=click.IntRange(1), metavar="N", help="Learners to train side by side."
)
@click.option(
    "--set", "given", multiple=True, metavar="NAME=VALUE", help="One of the algorithm's settings."
)
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML file that says any of this; options count more.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    default=Path("trained"),
    show_default=True,
    help="Folder for policy, checkpoint and logs; a training that is there is gone on with.",
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
    help="Time between checkpoints.",
)
@click.option(
    "--distributed",
    is_flag=True,
    help="Train together with the processes that mpirun, Slurm or JAX_COORDINATOR_ADDRESS, "
    "JAX_NUM_PROCESSES and JAX_PROCESS_ID tell of; --devices counts those of all.",
)
@json_option
def train(
    file: Path | None,
    given: tuple[str, ...],
    output: Path,
    episodes: int,
    render: Path | None,
    checkpoint_minutes: float,
    distributed: bool,
    as_json: bool,
    **asked: Any,
) -> int:
    """Train agents that share an environment.

    A checkpoint is written every few minutes and on Ctrl-C; the same command then goes on from it
    and ends in the same policy, bit for bit, as it would have without the break.
    """
    lazy.require("gradweave train", *NEEDED, extra="marl")
    task = _Task(lambda: _asked(file, asked, given), output, episodes, render, checkpoint_minutes)
    begun = time.monotonic()
    status, held = _by_several(task) if distributed else (0, _by_one(task))
    if held is None:
        return status
    held["wall_s"] = round(time.monotonic() - begun, 2)
    atomic_write(output / RESULT, (json.dumps(held, indent=1) + "\n").encode())
    if as_json:
        print_json(held)
    else:
        print_lines(*_told(held))
    return status


@dataclasses.dataclass(frozen=True)
class _Asked:
    """The training that was asked for."""

    config: "Config"
    extend: bool
    """Whether it may go on from the end of one of fewer steps: where steps are asked for, rather
    than those of the default."""


@dataclasses.dataclass(frozen=True)
class _Task:
    """What was asked for."""

    asked: Callable[[], _Asked]
    """Raises what is wrong with it."""
    output: Path
    episodes: int
    render: Path | None
    checkpoint_minutes: float

    def check_files(self) -> None:
        """Refuses what could not be written."""
        if self.output.exists() and not self.output.is_dir():
            raise FileError(f"{self.output}: is not a directory; give another name to --output")
        writable(self.render, ".gif")


def _by_one(task: _Task) -> dict[str, Any] | None:
    """Trains in this process alone."""
    task.check_files()
    asked = task.asked()
    _check_before_jax(asked.config)
    with Progress("starting JAX") as progress:
        start_jax(asked.config.devices)
        from gradweave.processes.agreement import Processes

        return _train(task, asked, Processes(), progress)


def _check_before_jax(config: "Config") -> None:
    """Refuses at once what training would refuse once JAX has started and a game is made."""
    from gradweave.aggregate.spec import parse
    from gradweave.marl.games.environments import asked_of

    asked_of(config.env, config.options)
    parse(config.aggregation).check_workers(config.devices)


def _by_several(task: _Task) -> tuple[int, dict[str, Any] | None]:
    """Trains with the processes that were started with this one.

    Returns:
        The exit status; and what came of it, in the first process.
    """
    from gradweave.processes import joining
    from gradweave.processes.agreement import Processes

    joining.speak_alone(_complain)
    processes = None
    with contextlib.ExitStack() as shown:
        progress = shown.enter_context(Progress("waiting for the other processes"))
        number = joining.join()
        try:
            try:
                asked = task.asked()
            except GradweaveError as error:
                asked = error  # which the others have to hear of, when JAX has started
            devices = number if isinstance(asked, GradweaveError) else asked.config.devices
            start_jax(max(devices // number, 1))
            processes = Processes()
            if not processes.first:
                shown.close()
            return 0, _train(task, asked, processes, progress)
        except BaseException as error:
            return _ended(processes, error), None


def _train(
    task: _Task,
    found: _Asked | GradweaveError,
    processes: "Processes",
    progress: Progress,
) -> dict[str, Any] | None:
    """Trains, and judges the policy.

    Args:
        task: what was asked for.
        found: the training; or what is wrong with it.
        processes: that train together.
        progress: is told what is being done.

    Returns:
        What came of it; None in processes other than the first.
    """
    from gradweave.marl import training

    def checked() -> _Asked:
        if processes.first:
            task.check_files()
        if isinstance(found, GradweaveError):
            raise found
        return found

    output = task.output
    with processes.lost_is_an_error():
        asked = processes.together(checked)
        config, extend = asked.config, asked.extend
        before = processes.number_of_first(
            lambda: training.updates_done(config, output, extend=extend)
        )
    if before and processes.first:
        note(f"resumes from {output}: {before} of {config.updates} updates are done")
    try:
        trained = training.train(
            config,
            output,
            report=_reporting(progress),
            progress=progress,
            checkpoint_minutes=task.checkpoint_minutes,
            extend=extend,
            processes=processes,
        )
    except KeyboardInterrupt:
        first = processes.first
        done = training.updates_done(config, output, extend=extend) if first else 0
        if done:
            note(f"{output} holds {done} of {config.updates} updates; train again to go on")
        raise
    if not processes.alone:
        _part(processes)
    if not processes.first:
        return None
    held = _held(trained, output) | {"processes": processes.number}
    seed = config.seed
    return (
        held
        | judged(trained, task.episodes, seed, progress)
        | drawn(trained, task.render, seed, progress)
    )


def _reporting(progress: Progress) -> "Callable[[Report], None]":
    """Shows where the training has got to, and says once of each device what was wrong with it."""
    named: set[int] = set()

    def report(made: "Report") -> None:
        progress(_doing(made))
        for device, number in enumerate(made.not_finite):
            if number and device not in named:
                named.add(device)
                note(
                    f"device {device}: gradients that are not finite, {number} by update "
                    f"{made.update}; they are left out"
                )

    return report


def _part(processes: "Processes") -> None:
    """Parts from the others, which all do."""
    from gradweave.processes import joining

    joining.leave()
    processes.ended_together = True


def _ended(processes: "Processes | None", error: BaseException) -> int:
    """Ends this process of several after an error.

    Returns:
        The exit status, where another process says what there is to say.

    Raises:
        BaseException: the error, where all processes know that they end.
    """
    from gradweave.processes import joining
    from gradweave.processes.agreement import EndedElsewhereError

    if processes is not None and processes.ended_together:
        _part(processes)
        if isinstance(error, KeyboardInterrupt) and not processes.first:
            time.sleep(_LINGER_S)
            return INTERRUPTED
        if isinstance(error, EndedElsewhereError):
            time.sleep(_LINGER_S)
            return BAD_INPUT
        raise error
    # The others do not know, and those that are gone cannot be parted from: Python's own way to
    # end would wait for them.
    if isinstance(error, KeyboardInterrupt):
        joining.end_at_once(INTERRUPTED, lambda: _complain("interrupted"))
    if isinstance(error, GradweaveError):
        status = ANSWER_IS_NO if isinstance(error, Negative) else BAD_INPUT
        joining.end_at_once(status, lambda: _complain(str(error)))
    joining.end_at_once(ANSWER_IS_NO, lambda: traceback.print_exception(error))


def _complain(reason: str) -> None:
    note(f"gradweave: {' '.join(reason.split())}")


def _asked(file: Path | None, asked: Mapping[str, Any], given: tuple[str, ...]) -> _Asked:
    """The training that a file and options describe."""
    from gradweave.marl.config import Config, read_toml
    from gradweave.marl.games.environments import family_of
    from gradweave.marl.learners import algorithms

    said = read_toml(file)
    try:
        for name in said:
            if name not in _KEYS:
                hint = did_you_mean(name, _KEYS)
                raise OptionError(f"{name}: unknown; {hint}known are {', '.join(_KEYS)}")
        for name in ("options", "settings"):
            if not isinstance(said.get(name, {}), dict):
                raise OptionError(f"{name}: expected a table, got {said[name]!r}")
        said |= {name: value for name, value in asked.items() if value is not None}
        extend = "steps" in said
        said = _USUAL | said
        settings = said.pop("settings", {}) | dict(map(_setting, given))
        for name, kind in (("env", str), ("algorithm", str), ("aggregation", str)):
            if not isinstance(said.get(name, ""), kind):
                raise OptionError(f"{name}: expected text, got {said[name]!r}")
        for name in ("devices", "steps", "seed", "seeds"):
            if type(said.get(name, 0)) is not int:
                raise OptionError(f"{name}: expected a whole number, got {said[name]!r}")
        made = algorithms.settings(said["algorithm"], family_of(said["env"]), settings)
        return _Asked(Config(settings=made, **said), extend)
    except OptionError as error:
        raise OptionError(f"{file}: {error}" if file else str(error)) from error


def _setting(text: str) -> tuple[str, Any]:
    """A name and a value, which is written as in TOML."""
    import msgspec

    name, equals, value = text.partition("=")
    if not equals:
        raise OptionError(f"--set: expected NAME=VALUE, got {text!r}")
    try:
        return name.strip(), msgspec.toml.decode(f"value = {value}")["value"]
    except msgspec.DecodeError:
        return name.strip(), value


def _held(trained: "Trained", output: Path) -> dict[str, Any]:
    """What came of a training."""
    return {
        "output": str(output),
        **about(trained),
        "seed": trained.config.seed,
        "resumed_from": trained.resumed_from,
        "steps_per_s": trained.steps_per_s,
    }


def _doing(made: "Report") -> str:
    earned = "" if made.mean_return is None else f", return {made.mean_return:.4g}"
    return (
        f"update {made.update} of {made.of}{earned}; "
        f"{made.steps_per_s:.3g} steps/s, about {duration(made.seconds_left)} left"
    )


def _told(held: dict[str, Any]) -> list[str]:
    now = held["updates"] - held["resumed_from"]
    rate = held["steps_per_s"]
    devices, processes = held["devices"], held["processes"]
    schedule = held["schedule"]
    return [
        f"{held['algorithm']} on {held['env']}: {held['steps']} steps, {now} of "
        f"{held['updates']} updates now, in {duration(held['wall_s'])} on {devices} "
        f"device{'s' * (devices > 1)}"
        + (f" of {processes} processes" if processes > 1 else "")
        + f" by {held['aggregation']}"
        + (f" ({schedule['topology']}, {schedule['rounds']} rounds)" if schedule else "")
        + (f", {rate:.3g} steps/s" if rate else ""),
        *told(held),
        f"in {held['output']}: policy.safetensors, log.jsonl, tensorboard, {RESULT}",
    ]
