"""A training from its config to its policy: resumable, logged, its progress reported."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from gradweave.aggregate.spec import ASYNCHRONOUS, method_of
from gradweave.atomic import make_folder
from gradweave.errors import OptionError
from gradweave.marl import checkpoint, rows
from gradweave.marl.combining import Combining, combining
from gradweave.marl.config import Config
from gradweave.marl.games.environment import Environment
from gradweave.marl.games.environments import id_of, make
from gradweave.marl.learners import algorithms
from gradweave.marl.learners.algorithms import Aggregate
from gradweave.marl.learners.learner import Learner, Metrics
from gradweave.marl.learners.own_network import Factory, named
from gradweave.marl.program import AT_ONCE, Program
from gradweave.marl.trained import (
    CHECKPOINT,
    POLICY,
    Report,
    Trained,
    description,
    extended_from,
    stated,
    updates_done,
)
from gradweave.plugins import name_of
from gradweave.processes.agreement import Processes
from gradweave.training.log import Log
from gradweave.training.loop import Progress, Training
from gradweave.training.pace import Pace

RECENT_CALLS = 5
"""Calls whose mean the speed reported is."""

__all__ = ["CHECKPOINT", "POLICY", "Report", "Trained", "load_policy", "train", "updates_done"]


def train(
    config: Config,
    folder: Path,
    *,
    report: Callable[[Report], None] = lambda _: None,
    progress: Callable[[str], None] = lambda _: None,
    checkpoint_minutes: float = 2.0,
    stop_after: int | None = None,
    extend: bool = False,
    aggregate: Aggregate | None = None,
    processes: Processes | None = None,
    environment: Environment | None = None,
    network: Factory | None = None,
    wandb: str | None = None,
) -> Trained:
    """Trains, resuming from the folder's checkpoint where there is one.

    Where `jax.distributed` has joined several processes, all of them call this with the same
    config and share the devices evenly. Only the first one reads and writes files and reports. The
    checkpoint is the same as that of one process with as many devices.

    By an asynchronous server, `Config.devices` counts workers, which are processes that this one
    starts; see `gradweave.marl.asynchronous.training`.

    An update depends on the config and on the state before it alone, so that a training that was
    killed and resumed ends in the same bits as one that was not.

    A training that is at its end can be extended, by a config that differs from its own in more
    steps alone. What changes with the share of the training that is done (the learning rate where
    it decays, exploration, shaping) follows the new number of steps from there on. The result
    depends on the config and on the numbers of steps that came before, which `Trained.extended`
    has; where nothing changes so, it is that of a training that had the last one from the start.

    Args:
        config: what to do.
        folder: of checkpoint, logs and the policy.
        report: called after each call of the compiled program, about once a second.
        progress: called with the step under way before the first update, which may take long.
        checkpoint_minutes: time between checkpoints.
        stop_after: updates after which to stop early; the checkpoint is written.
        extend: whether to resume from the end of a training of fewer steps, rather than refuse it.
        aggregate: in place of what the config names.
        processes: which train together, if that is known.
        environment: in place of what the config names, whose `env` is its `id`.
        network: what makes the learner's networks, in place of what the config names; see
            `gradweave.marl.learners.own_network`.
        wandb: project of Weights & Biases for the curves, see
            `gradweave.training.weights_and_biases`; None: not there.

    Raises:
        OptionError: where the folder holds another training, or there are too few devices.
        FileError: where the folder cannot be made, or its checkpoint cannot be read.
        EndedElsewhereError: where another process raised one of these.
        RunError: where another process was lost.
        KeyboardInterrupt: where Ctrl-C came, to any process; the checkpoint is written.
    """
    processes = processes or Processes()
    check_environment(config, environment)
    if network is not None and config.network is None:
        config = dataclasses.replace(config, network=name_of(network))
    if method_of(config.aggregation) == ASYNCHRONOUS and aggregate is None:
        if environment is not None or network is not None:
            raise OptionError(
                f"{ASYNCHRONOUS}: its workers are processes, which make games and networks by "
                "name: give module:object in the config"
            )
        from gradweave.marl.asynchronous.training import train as train_by_server

        return train_by_server(
            config,
            folder,
            report=report,
            progress=progress,
            checkpoint_minutes=checkpoint_minutes,
            stop_after=stop_after,
            extend=extend,
            wandb=wandb,
        )
    with processes.lost_is_an_error(), processes.interruptible():
        processes.check_same(config.flat())
        metadata = processes.by_first(lambda: stated(config, folder, extend))
        before = processes.number_of_first(lambda: 0 if metadata is None else metadata["updates"])
        environment = processes.together(lambda: environment or make(config.env, **config.options))
        network = processes.together(lambda: network or named_network(config))
        devices = processes.together(lambda: devices_of(config.devices))
        progress(f"preparing {config.aggregation}")
        by = Combining(aggregate) if aggregate else combining(config, folder, metadata, processes)
        progress("compiling")
        learner = processes.together(
            lambda: algorithms.build(config, environment, by.aggregate, network)
        )
        program = Program(learner, devices, config.seed, config.seeds)
        processes.by_first(lambda: (make_folder(folder), by.keep(folder)))
        run = _Run(
            config, folder, environment, program, by, extended_from(config, metadata), processes
        )
        training = Training(Progress(run.start(before), before), run.write, processes)
        log = Log(folder, before, before * config.settings.steps, wandb)
        training.run(
            config.updates if stop_after is None else min(stop_after, config.updates),
            run.advance,
            lambda now, call: report(run.record(log, now, call)),
            log=log,
            pace=run.pace,
            checkpoint_minutes=checkpoint_minutes,
            most_per_call=AT_ONCE,
        )
        parameters = run.finish(training.progress)
    rate = run.steps_per_s
    return Trained(
        config, environment, learner, parameters, before, rate, by.schedule, run.extended
    )


def check_environment(config: Config, environment: Environment | None) -> None:
    """Refuses a game other than that of a training.

    Raises:
        OptionError: it is not what the config names.
    """
    if environment is not None and environment.family != id_of(config.env):
        raise OptionError(f"environment: expected {config.env}, got {environment.id}")


def named_network(config: Config) -> Factory | None:
    """The factory that a config names; None where it names none."""
    return None if config.network is None else named(config.network)


def load_policy(folder: Path, learner: Learner, config: Config) -> Any:
    """Reads the parameters [S, ...] that a finished training wrote.

    Raises:
        FileError: where the file cannot be read, or is of another format.
    """
    program = Program(learner, jax.devices()[:1], config.seed, config.seeds)
    like = jax.eval_shape(program.parameters, program.shapes())
    return checkpoint.load(folder / POLICY, like)


class _CallMetrics(NamedTuple):
    """Of a call of the compiled program."""

    metrics: Metrics
    """[updates, S, ...]."""
    not_finite: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class _Run:
    """A training's program, and how its state is kept and reported."""

    config: Config
    folder: Path
    environment: Environment
    program: Program
    by: Combining
    extended: tuple[int, ...]
    processes: Processes
    pace: Pace = dataclasses.field(default_factory=lambda: Pace(RECENT_CALLS))

    def start(self, updates: int) -> Any:
        """The state after so many updates: the checkpoint's, where there are any."""
        if not updates:
            self.processes.agree()
            return self.program.start()
        shapes = self.program.shapes()
        path = self.folder / CHECKPOINT
        read = self.processes.by_first(lambda: checkpoint.load(path, shapes))
        self.processes.agree()
        return self.processes.place(read, shapes, self.program.sharding)

    def advance(self, progress: Progress[Any], updates: int) -> tuple[Any, _CallMetrics]:
        """One call of the program."""
        with self.pace.timed(updates):
            state, metrics = self.program.run(progress.state, updates)
        return state, _CallMetrics(metrics, self.program.not_finite(state))

    def record(self, log: Log, progress: Progress[Any], call: _CallMetrics) -> Report:
        """Logs each update of a call, and reports all of them."""
        steps = self.config.settings.steps
        rows.write(log, call.metrics, progress.updates, steps, self.environment.agents)
        return report_of(self.config, progress.updates, call.metrics, self.pace, call.not_finite)

    def write(self, progress: Progress[Any]) -> None:
        """Writes the checkpoint."""
        state = self.processes.gather(progress.state)
        about = self._about(updates=progress.updates)
        path = self.folder / CHECKPOINT
        self.processes.by_first(lambda: checkpoint.save(path, state, about))

    def finish(self, progress: Progress[Any]) -> Any:
        """The parameters of all seeds; written, if the training is at its end."""
        parameters = self.program.parameters(progress.state)
        if not self.processes.alone:
            parameters = jax.tree.map(np.asarray, parameters)
        if progress.updates == self.config.updates:
            path, about = self.folder / POLICY, self._about(agents=self.environment.agents)
            self.processes.by_first(lambda: checkpoint.save(path, parameters, about))
        self.processes.agree()
        return parameters

    @property
    def steps_per_s(self) -> float | None:
        """Over all calls but the first, which compiles."""
        rate = self.pace.updates_per_s
        return None if rate is None else rate * self.config.settings.steps

    def _about(self, **more: Any) -> dict[str, Any]:
        """What files say of the training: all that their arrays depend on."""
        digest = self.by.digest
        schedule = {} if digest is None else {"schedule": digest}
        return description(self.config, self.extended, **more, **schedule)


def report_of(
    config: Config, updates: int, metrics: Metrics, pace: Pace, not_finite: tuple[int, ...]
) -> Report:
    """What to report after a call of a program, of all its seeds.

    Args:
        config: of the training.
        updates: completed.
        metrics: [U, S, ...] of the call.
        pace: of the calls lately.
        not_finite: see `Report`.
    """
    steps, episodes = config.settings.steps, metrics.episodes.sum()
    return Report(
        update=updates,
        of=config.updates,
        steps=updates * steps,
        mean_return=float(metrics.returns.sum((0, 1)).mean() / episodes) if episodes else None,
        steps_per_s=steps / pace.seconds_per_update,
        seconds_left=pace.seconds_per_update * (config.updates - updates),
        not_finite=not_finite,
    )


def devices_of(number: int) -> list[Any]:
    """As many of each process; those of a process side by side."""
    there: dict[int, list[Any]] = {}
    for device in jax.devices():
        there.setdefault(device.process_index, []).append(device)
    each, rest = divmod(number, len(there))
    if rest:
        raise OptionError(
            f"devices: expected a multiple of the {len(there)} processes, got {number}"
        )
    most = min(map(len, there.values()))
    if each > most:
        among = f", {most} in each process" if len(there) > 1 else ""
        raise OptionError(f"devices: expected at most {most * len(there)}{among}, got {number}")
    return [device for process in sorted(there) for device in there[process][:each]]
