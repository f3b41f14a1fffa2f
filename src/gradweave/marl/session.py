"""A training as a command: refused, joined, resumed and interrupted as a user expects."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradweave.errors import GradweaveError, OptionError
from gradweave.marl.request import Request
from gradweave.processes.jax_start import start_jax
from gradweave.training.pace import duration
from gradweave.training.resuming import resuming

if TYPE_CHECKING:  # they import JAX, for which it is too early
    from gradweave.marl.trained import Report, Trained
    from gradweave.processes.agreement import Processes

Say = Callable[[str], None]
"""Is told a line."""
_RECOVERED = "servers were lost and all resumed from the checkpoint"


@contextlib.contextmanager
def session(
    ask: Callable[[], Request], check_files: Callable[[], None], *, distributed: bool, complain: Say
) -> Iterator[tuple[Request, "Processes"]]:
    """A training's request and its processes, JAX started, for as long as the block lasts.

    Args:
        ask: gives the request, or raises what is wrong with it.
        check_files: raises where an output cannot be written; called where they are written.
        distributed: whether other processes were started with this one. Then an error of any of
            them ends all; see `gradweave.processes.jax_distributed.joined`.
        complain: says why this process ends.

    Raises:
        GradweaveError: that `ask` or `check_files` raised, as far as possible before JAX is
            imported; or that the other processes are not found.
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
    """Refuses a server's training, in every process, before they look for each other."""
    if isinstance(asked, Request) and asked.by_server:
        raise OptionError(
            f"--distributed: {asked.config.aggregation} starts its workers itself; leave it out"
        )


def _caught(ask: Callable[[], Request]) -> Request | GradweaveError:
    """A request; or the error, of which the other processes have to hear once they have joined."""
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
    """Trains, and says how far it is, what it resumes from, and what is kept after Ctrl-C.

    Args:
        request: what to do.
        output: folder of checkpoint, logs and the policy.
        processes: that train together.
        progress: called with the step under way.
        checkpoint_minutes: between checkpoints.
        note: writes a line to standard error.
        wandb: as for `training.train`.

    Raises:
        GradweaveError: as `training.train`.
    """
    from gradweave.marl import training

    config, extend = request.config, request.extend

    def done() -> int:
        return training.updates_done(config, output, extend=extend)

    with processes.lost_is_an_error():
        before = processes.number_of_first(done)
    with contextlib.ExitStack() as stack:
        if processes.first:
            stack.enter_context(resuming(output, before, config.updates, done, "train", note))
        return training.train(
            config,
            output,
            report=reporting(progress, note),
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
    """As `train`, of every combination of settings of a sweep; see `sweep.train_sweep`."""
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
            report=reporting(progress, note),
            progress=progress,
            checkpoint_minutes=checkpoint_minutes,
            wandb=wandb,
        )


def reporting(progress: Say, note: Say) -> "Callable[[Report], None]":
    """Shows progress, and notes once per device that it has gradients that are not finite.

    Args:
        progress: called with the step under way.
        note: writes a line to standard error.
    """
    noted: set[int] = set()
    lost = [0, 0]

    def report(at: "Report") -> None:
        for place, (now, what) in enumerate(
            ((at.replaced, "workers that died were replaced"), (at.recovered, _RECOVERED))
        ):
            if now > lost[place]:
                lost[place] = now
                note(f"{what}: {now} by update {at.update}")
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
