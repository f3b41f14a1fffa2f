"""A training from its configuration to its policy: resumable, logged, and with reports.

A sweep trains several settings of one algorithm in one program. A single training is the same with
one setting, whose subfolder is the folder itself.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from gradweave.aggregate.finite import is_finite
from gradweave.aggregate.spec import ASYNCHRONOUS, method_of
from gradweave.common.atomic import make_folder
from gradweave.common.plugins import name_of
from gradweave.errors import NotFiniteError, OptionError
from gradweave.marl import checkpoint, results
from gradweave.marl.config import Config
from gradweave.marl.folder import (
    CHECKPOINT,
    POLICY,
    Combining,
    Sweep,
    check_environment,
    combining,
    description,
    extended_from,
    stated,
)
from gradweave.marl.games.environment import Environment
from gradweave.marl.games.environments import make
from gradweave.marl.learners import algorithms
from gradweave.marl.learners.algorithms import Aggregate
from gradweave.marl.learners.learner import Metrics
from gradweave.marl.learners.own_network import Factory, named
from gradweave.marl.program import AT_ONCE, Program
from gradweave.marl.results import Report, Trained
from gradweave.marl.sweep import SweptLearner, configs, swept_learner
from gradweave.processes.agreement import Processes
from gradweave.training.held import held
from gradweave.training.log import Log
from gradweave.training.loop import Progress, Training
from gradweave.training.pace import Pace

RECENT_CALLS = 5
"""Number of recent calls over which the reported speed is averaged."""
UNLEARNED = 10
"""Number of consecutive updates without any finite gradient after which a training ends."""


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
    """Trains, resuming from the folder's checkpoint if there is one.

    If `jax.distributed` has joined several processes, all of them call this function with the same
    configuration and share the devices evenly. Only the first process reads and writes files and
    reports. The checkpoint equals that of one process with as many devices up to rounding, since
    XLA compiles a different program. It is bit-identical if most of XLA's optimisations are off and
    the aggregation is exact, rather than the runtime's mean.

    With an asynchronous server, `Config.devices` is the number of workers, which are processes that
    this process starts; see `gradweave.marl.asynchronous.training`.

    An update depends only on the configuration and the preceding state, so a training that was
    killed and resumed gives the same bits as an uninterrupted one.

    A finished training can be extended, by a configuration that differs only in having more steps.
    Schedules that follow the completed share of the training (a decaying learning rate,
    exploration, shaping) use the new number of steps from that point on. The result therefore
    depends on the configuration and on the earlier numbers of steps, which are in
    `Trained.extended`. Without such schedules, it is the result of a training with the final number
    of steps from the start.

    Args:
        config: the configuration.
        folder: folder of the checkpoint, the logs and the policy.
        report: called after each call of the compiled program, about once per second.
        progress: called with a description of the current step before the first update, which may
            take long.
        checkpoint_minutes: minutes between checkpoints.
        stop_after: number of updates after which to stop early, with a checkpoint.
        extend: whether to resume from the end of a training with fewer steps instead of refusing.
        aggregate: replaces the aggregation of the configuration.
        processes: the processes that train together, if already known.
        environment: replaces the environment of the configuration, whose `env` is its `id`.
        network: factory of the learner's networks, which replaces that of the configuration; see
            `gradweave.marl.learners.own_network`.
        wandb: Weights & Biases project that receives the curves, or None; see
            `gradweave.training.weights_and_biases`.

    Raises:
        OptionError: the folder holds another training, or there are too few devices.
        FileError: the folder cannot be made, another training writes to it, or its checkpoint
            cannot be read.
        EndedElsewhereError: another process raised one of these errors.
        RunError: another process was lost.
        NotFiniteError: parameters are no longer finite, or several consecutive updates had no
            finite gradient; the checkpoint has the preceding parameters.
        KeyboardInterrupt: the user pressed Ctrl-C in any process; the checkpoint has been written.
    """
    check_environment(config, environment)
    if network is not None and config.network is None:
        config = dataclasses.replace(config, network=name_of(network))
    if method_of(config.aggregation) == ASYNCHRONOUS and aggregate is None:
        if environment is not None or network is not None:
            raise OptionError(
                f"{ASYNCHRONOUS}: its workers are processes, which make games and networks by "
                "name; give module:object in the config"
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
    (trained,) = train_sweep(
        config,
        None,
        folder,
        report=report,
        progress=progress,
        checkpoint_minutes=checkpoint_minutes,
        stop_after=stop_after,
        extend=extend,
        aggregate=aggregate,
        processes=processes,
        environment=environment,
        network=network,
        wandb=wandb,
    ).values()
    return trained


def train_sweep(
    config: Config,
    sweep: Sweep | None,
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
) -> dict[str, Trained]:
    """Trains every combination of settings in parallel, with `Config.seeds` seeds each.

    A combination has the same seeds, the same numbers up to rounding, and the same folder as a
    separate training. Only the checkpoint is shared, and lies in the parent folder.

    Args:
        config: configuration of all combinations; the values of the sweep replace its settings.
        sweep: values by the name of a setting, see `sweep.SWEPT`; or None for a single training.
        folder: folder of the checkpoint, with a subfolder per combination.
        report: as for `train`, over all combinations; speed is that of one seed of one.
        progress: as for `train`, as are the following.
        checkpoint_minutes: minutes between checkpoints.
        stop_after: number of updates after which to stop early, with a checkpoint.
        extend: whether to resume from the end of a training with fewer steps instead of refusing.
        aggregate: replaces the aggregation of the configuration.
        processes: the processes that train together, if already known.
        environment: replaces the environment of the configuration.
        network: factory of the learner's networks, for a single training.
        wandb: project that receives the curves; each combination is a run.

    Returns:
        The result of each combination, by its folder. Parameters that are not finite are only
        returned, and no policy is written.

    Raises:
        OptionError: a setting cannot be swept, or the folder holds another training.
        FileError: the folder cannot be made, or its checkpoint cannot be read.
        KeyboardInterrupt: the user pressed Ctrl-C; the checkpoint has been written.
    """
    processes = processes or Processes()
    with (
        contextlib.ExitStack() as stack,
        processes.lost_is_an_error(),
        processes.interruptible(),
    ):
        processes.by_first(lambda: stack.enter_context(held(folder)))
        several = {"": config} if sweep is None else configs(config, sweep)
        processes.check_same(config.flat())
        metadata = processes.by_first(lambda: stated(config, folder, extend, sweep=sweep))
        before = processes.number_of_first(lambda: 0 if metadata is None else metadata["updates"])
        environment = processes.together(lambda: environment or make(config.env, **config.options))
        network = processes.together(
            lambda: network or (None if config.network is None else named(config.network))
        )
        devices = processes.together(lambda: devices_of(config.devices))
        progress(f"preparing {config.aggregation}")
        by = Combining(aggregate) if aggregate else combining(config, folder, metadata, processes)
        progress("compiling")
        learner = processes.together(
            lambda: (
                algorithms.build(config, environment, by.aggregate, network)
                if sweep is None
                else swept_learner(config, several, list(sweep), environment, by.aggregate)
            )
        )
        total = len(several) * config.seeds
        program = Program(learner, devices, config.seed, total, groups=len(several))
        processes.by_first(lambda: by.keep(folder))
        extended = extended_from(config, metadata)
        run = _Run(config, several, sweep, folder, environment, program, by, extended, processes)
        training = Training(Progress(run.start(before), before), run.write, processes)
        steps = before * config.settings.steps
        logs = [Log(folder / name, before, steps, wandb) for name in several]
        processes.by_first(lambda: [make_folder(folder / name) for name in several])
        training.run(
            config.updates if stop_after is None else min(stop_after, config.updates),
            run.advance,
            lambda now, call: report(run.record(logs, now, call)),
            log=_opened(logs),
            pace=run.pace,
            checkpoint_minutes=checkpoint_minutes,
            most_per_call=AT_ONCE,
        )
        parameters = run.finish(training.progress)
    rate = run.pace.updates_per_s
    steps_per_s = None if rate is None else rate * config.settings.steps
    base = learner.base if isinstance(learner, SweptLearner) else learner
    return {
        name: Trained(one, environment, base, own, before, steps_per_s, by.schedule, extended)
        for (name, one), own in zip(several.items(), parameters, strict=True)
    }


@contextlib.contextmanager
def _opened(logs: Sequence[Log]) -> Iterator[None]:
    """The logs of all combinations, open while the block lasts."""
    with contextlib.ExitStack() as stack:
        for log in logs:
            stack.enter_context(log)
        yield


class _CallMetrics(NamedTuple):
    """Metrics of a call of the compiled program."""

    metrics: Metrics
    """Per update and seed, [updates, S, ...]."""
    not_finite: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class _Run:
    """The program of a training or sweep, with its checkpoints and reports."""

    config: Config
    several: Mapping[str, Config]
    """The configuration of each combination, by subfolder."""
    sweep: Sweep | None
    folder: Path
    environment: Environment
    program: Program
    by: Combining
    extended: tuple[int, ...]
    processes: Processes
    pace: Pace = dataclasses.field(default_factory=lambda: Pace(RECENT_CALLS))

    @functools.cached_property
    def left_out(self) -> "LeftOut":
        """Counter of the gradients that were skipped as not finite."""
        return LeftOut.of(self.config)

    def start(self, updates: int) -> Any:
        """The state after the given number of updates, read from the checkpoint unless it is 0."""
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
        if self.sweep is None:
            return state, _CallMetrics(metrics, self.left_out.counted(self.program, state, updates))
        # A combination that diverges does not end the others.
        return state, _CallMetrics(metrics, self.program.left_out(state))

    def record(self, logs: Sequence[Log], progress: Progress[Any], call: _CallMetrics) -> Report:
        """Logs each update of a call by combination, and reports over all of them."""
        steps = self.config.settings.steps
        for log, own in zip(logs, self._by_combination(call.metrics, axis=1), strict=True):
            results.write(log, own, progress.updates, steps, self.environment.agents)
        return report_of(self.config, progress.updates, call.metrics, self.pace, call.not_finite)

    def write(self, progress: Progress[Any]) -> None:
        """Writes the checkpoint."""
        state = self.processes.gather(progress.state)
        about = self._about(self.config, updates=progress.updates, sweep=self.sweep)
        path = self.folder / CHECKPOINT
        self.processes.by_first(lambda: checkpoint.save(path, state, about))

    def finish(self, progress: Progress[Any]) -> list[Any]:
        """The parameters of each combination [S, ...], written to its policy's file at the end."""
        parameters = jax.tree.map(np.asarray, self.program.parameters(progress.state))
        found = self._by_combination(parameters, axis=0)
        if progress.updates == self.config.updates:
            self.processes.by_first(lambda: self._write_policies(found))
        self.processes.agree()
        return found

    def _write_policies(self, found: Sequence[Any]) -> None:
        for (name, config), own in zip(self.several.items(), found, strict=True):
            if is_finite(own):
                about = self._about(config, agents=self.environment.agents)
                checkpoint.save(self.folder / name / POLICY, own, about)

    def _by_combination(self, tree: Any, axis: int) -> list[Any]:
        """The arrays of each combination, whose seeds lie next to each other along an axis."""
        parts = len(self.several)
        cut = [np.split(x, parts, axis) for x in jax.tree.leaves(tree)]
        structure = jax.tree.structure(tree)
        return [jax.tree.unflatten(structure, own) for own in zip(*cut, strict=True)]

    def _about(self, config: Config, **more: Any) -> dict[str, Any]:
        """The metadata of the training's files: everything that their arrays depend on."""
        digest = self.by.digest
        schedule: dict[str, Any] = {} if digest is None else {"schedule": digest}
        return description(config, self.extended, **more, **schedule)


@dataclasses.dataclass
class LeftOut:
    """Counts gradients skipped as not finite, and updates in which all gradients were skipped."""

    env: str
    each: int
    """Number of gradients per device and update."""
    counts: tuple[int, ...] = ()
    """Gradients skipped so far, per device."""
    updates: int = 0
    """Consecutive updates, up to now, in which no device had a finite gradient."""

    @classmethod
    def of(cls, config: Config) -> "LeftOut":
        """The counter at the start of a training."""
        settings = config.settings
        minibatches = getattr(settings, "minibatches", 1)
        return cls(config.env, settings.epochs * minibatches * config.seeds)

    def counted(self, program: Program, state: Any, updates: int) -> tuple[int, ...]:
        """The counts after a call of a program.

        Raises:
            NotFiniteError: parameters are not finite, or nothing was learned for `UNLEARNED`
                updates.
        """
        if not program.is_finite(state):
            raise NotFiniteError(
                "parameters contain a NaN or an infinity (the checkpoint has those before); use a "
                f"smaller learning_rate, or check that observations and rewards of {self.env} are "
                "finite"
            )
        counts = program.left_out(state)
        new = [now - old for now, old in zip(counts, self.counts, strict=False)]
        nobody = bool(new) and min(new) >= updates * self.each
        self.updates = self.updates + updates if nobody else 0
        self.counts = counts
        if self.updates >= UNLEARNED:
            raise NotFiniteError(
                f"no gradient was finite in the last {self.updates} updates, so nothing is "
                f"learned; check that observations and rewards of {self.env} are finite"
            )
        return counts


def report_of(
    config: Config, updates: int, metrics: Metrics, pace: Pace, not_finite: tuple[int, ...]
) -> Report:
    """The report after a call of a program, over all its seeds.

    Args:
        config: configuration of the training.
        updates: number of updates completed.
        metrics: metrics of the call, [U, S, ...].
        pace: speed of the recent calls.
        not_finite: see `Report`.
    """
    steps, episodes = config.settings.steps, metrics.episodes.sum()
    by_agent = metrics.returns.sum((0, 1)) / episodes if episodes else ()
    return Report(
        update=updates,
        of=config.updates,
        steps=updates * steps,
        mean_return=float(np.mean(by_agent)) if episodes else None,
        steps_per_s=steps / pace.seconds_per_update,
        seconds_left=pace.seconds_per_update * (config.updates - updates),
        by_agent=tuple(map(float, by_agent)),
        not_finite=not_finite,
    )


def devices_of(number: int) -> list[Any]:
    """The first devices of each process, the same number of each, ordered by process."""
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
