"""A training as a command: it validates, joins processes, resumes and survives interrupts."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradweave.errors import GradweaveError, OptionError
from gradweave.marl.learners import algorithms
from gradweave.marl.request import Request
from gradweave.processes.jax_start import start_jax
from gradweave.training.pace import duration
from gradweave.training.resuming import resuming

if TYPE_CHECKING:  # these import JAX, which must not be imported yet
    from gradweave.marl.trained import Report, Trained
    from gradweave.processes.agreement import Processes

Say = Callable[[str], None]
"""Callback that receives a line of text."""
_RECOVERED = "servers were lost and all resumed from the checkpoint"


@contextlib.contextmanager
def session(
    ask: Callable[[], Request], check_files: Callable[[], None], *, distributed: bool, complain: Say
) -> Iterator[tuple[Request, "Processes"]]:
    """Context of a training: its request and processes, with JAX started while the block lasts.

    Args:
        ask: returns the request, or raises the error in it.
        check_files: raises if an output cannot be written; called in the process that writes files.
        distributed: whether other processes were started with this one. If so, an error in any
            process ends all of them; see `gradweave.processes.jax_distributed.joined`.
        complain: reports why this process ends.

    Raises:
        GradweaveError: the error that `ask` or `check_files` raised, if possible before JAX is
            imported; or the other processes cannot be reached.
    """
    if not distributed:
        check_files()
        request = ask()
        if request.imports:
            start_jax(request.devices)
        request.check()
        start_jax(request.devices)
        from gradweave.processes.agreement import Processes

        yield request, Processes()
        return
    from gradweave.processes.jax_distributed import joined

    asked = _caught(ask)
    _check_in_one_program(asked)
    devices = None if isinstance(asked, GradweaveError) else asked.config.devices
    with joined(devices, complain) as processes:

        def checked() -> Request:
            if processes.first:
                check_files()
            if isinstance(asked, GradweaveError):
                raise asked
            return asked

        with processes.lost_is_an_error():
            request = processes.together(checked)
        yield request, processes


def _check_in_one_program(asked: Request | GradweaveError) -> None:
    """Refuses a server's training in every process, before the processes look for each other."""
    if isinstance(asked, Request) and asked.by_server:
        raise OptionError(
            f"--distributed: {asked.config.aggregation} starts its workers itself; omit the option"
        )


def _caught(ask: Callable[[], Request]) -> Request | GradweaveError:
    """The request, or the error, which the other processes must receive after they have joined."""
    try:
        return ask()
    except GradweaveError as error:
        return error


def train(
    request: Request,
    output: Path,
    processes: "Processes",
    *,
    progress: Say,
    checkpoint_minutes: float,
    note: Say,
    wandb: str | None = None,
) -> "Trained":
    """Trains, and reports progress, the checkpoint it resumes from, and what remains after Ctrl-C.

    Args:
        request: the training to run.
        output: folder of the checkpoint, the logs and the policy.
        processes: the processes that train together.
        progress: called with a description of the current step.
        checkpoint_minutes: minutes between checkpoints.
        note: writes a line to standard error.
        wandb: see `training.train`.

    Raises:
        GradweaveError: see `training.train`.
    """
    from gradweave.marl import trained, training

    config, extend = request.config, request.extend

    def done() -> int:
        return trained.updates_done(config, output, extend=extend)

    with processes.lost_is_an_error():
        before = processes.number_of_first(done)
    with contextlib.ExitStack() as stack:
        if processes.first:
            stack.enter_context(resuming(output, before, config.updates, done, "train", note))
        return training.train(
            config,
            output,
            report=reporting(progress, note, config.algorithm),
            progress=progress,
            checkpoint_minutes=checkpoint_minutes,
            extend=extend,
            processes=processes,
            wandb=wandb,
        )


def train_several(
    request: Request,
    sweep: Mapping[str, Sequence[float]],
    output: Path,
    *,
    progress: Say,
    checkpoint_minutes: float,
    note: Say,
    wandb: str | None = None,
) -> "dict[str, Trained]":
    """Like `train`, for every combination of settings in a sweep; see `sweep.train_sweep`."""
    from gradweave.marl import sweep as sweeps
    from gradweave.marl.trained import stated

    config = request.config

    def done() -> int:
        found = stated(
            config, output, False, sweep={n: list(map(float, v)) for n, v in sweep.items()}
        )
        return 0 if found is None else found["updates"]

    with resuming(output, done(), config.updates, done, "train", note):
        return sweeps.train_sweep(
            config,
            sweep,
            output,
            report=reporting(progress, note, config.algorithm),
            progress=progress,
            checkpoint_minutes=checkpoint_minutes,
            wandb=wandb,
        )


def reporting(progress: Say, note: Say, algorithm: str = "ippo") -> "Callable[[Report], None]":
    """A callback that shows progress, and warns the user once per problem.

    It warns about gradients that are not finite, per device, and about agents' rewards that differ
    although the algorithm learns a common reward.

    Args:
        progress: called with a description of the current step.
        note: writes a line to standard error.
        algorithm: name of the algorithm.
    """
    averages = algorithms.algorithm(algorithm).one_team
    noted: set[int] = set()
    lost = [0, 0]

    def report(at: "Report") -> None:
        for place, (now, what) in enumerate(
            ((at.replaced, "workers that died were replaced"), (at.recovered, _RECOVERED))
        ):
            if now > lost[place]:
                lost[place] = now
                note(f"{what}: {now} by update {at.update}")
        nonlocal averages
        if averages and _differ(at.by_agent):
            averages = False
            note(
                f"{algorithm}: learns the mean of the agents' rewards, which differ: returns "
                f"{min(at.by_agent):.4g} to {max(at.by_agent):.4g}, mean {at.mean_return:.4g}; "
                "if their interests are opposed, use iql or ippo"
            )
        mean = "" if at.mean_return is None else f", return {at.mean_return:.4g}"
        progress(
            f"update {at.update} of {at.of}{mean}; "
            f"{at.steps_per_s:.3g} steps/s, about {duration(at.seconds_left)} left"
        )
        for device, number in enumerate(at.not_finite):
            if number and device not in noted:
                noted.add(device)
                note(
                    f"device {device}: gradients that are not finite, {number} by update "
                    f"{at.update}; they are left out"
                )

    return report


def _differ(returns: Sequence[float]) -> bool:
    """Whether the agents' returns differ by more than rounding."""
    if not returns:
        return False
    return max(returns) - min(returns) > 1e-4 * max(map(abs, returns))
