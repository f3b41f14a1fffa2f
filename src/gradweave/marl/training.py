"""A training from its config to its policy: resumable, logged, its progress reported."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from gradweave.atomic import make_folder
from gradweave.errors import FileError, OptionError
from gradweave.marl import checkpoint, rows
from gradweave.marl.combining import Combining, combining
from gradweave.marl.config import Config, current, differences
from gradweave.marl.games.environment import Environment
from gradweave.marl.games.environments import make
from gradweave.marl.learners import algorithms
from gradweave.marl.learners.algorithms import Aggregate
from gradweave.marl.learners.learner import Learner, Metrics
from gradweave.marl.program import AT_ONCE, Program
from gradweave.processes.agreement import Processes
from gradweave.schedule.schedule import Schedule
from gradweave.training.log import Log
from gradweave.training.loop import Progress, Training
from gradweave.training.pace import Pace

CHECKPOINT = "checkpoint.safetensors"
POLICY = "policy.safetensors"
RECENT_CALLS = 5
"""Calls whose mean the speed reported is."""


@dataclasses.dataclass(frozen=True)
class Report:
    """How far a training is."""

    update: int
    """Updates completed."""
    of: int
    steps: int
    """Steps completed, of all games."""
    mean_return: float | None
    """Of the episodes that ended lately, over all seeds and agents; None if none did."""
    steps_per_s: float
    """Lately, of all games of one seed; compilation counts in the first one."""
    seconds_left: float
    not_finite: tuple[int, ...] = ()
    """Per device: gradients so far that were left out as not finite."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a training led to."""

    config: Config
    environment: Environment
    learner: Learner
    parameters: Any
    """[S, ...] of each seed."""
    resumed_from: int
    """Updates that were done before."""
    steps_per_s: float | None
    """Of all games of one seed, compilation aside; None where too little was done to tell."""
    schedule: Schedule | None = None
    """By which devices averaged gradients; None where by none."""
    extended: tuple[int, ...] = ()
    """Steps that it was to have before, where it was extended: in the order in which it came to
    its end."""


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
) -> Trained:
    """Trains, resuming from the folder's checkpoint where there is one.

    Where `jax.distributed` has joined several processes, all of them call this with the same
    config and share the devices evenly. Only the first one reads and writes files and reports. The
    checkpoint is the same as that of one process with as many devices.

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

    Raises:
        OptionError: where the folder holds another training, or there are too few devices.
        FileError: where the folder cannot be made, or its checkpoint cannot be read.
        EndedElsewhereError: where another process raised one of these.
        RunError: where another process was lost.
        KeyboardInterrupt: where Ctrl-C came, to any process; the checkpoint is written.
    """
    processes = processes or Processes()
    with processes.lost_is_an_error(), processes.interruptible():
        processes.check_same(config.flat())
        stated = processes.by_first(lambda: _stated(config, folder, extend))
        before = processes.number_of_first(lambda: 0 if stated is None else stated["updates"])
        environment = processes.together(lambda: make(config.env, **config.options))
        devices = processes.together(lambda: _devices(config.devices))
        progress(f"preparing {config.aggregation}")
        by = Combining(aggregate) if aggregate else combining(config, folder, stated, processes)
        progress("compiling")
        learner = processes.together(lambda: algorithms.build(config, environment, by.aggregate))
        program = Program(learner, devices, config.seed, config.seeds)
        processes.by_first(lambda: (make_folder(folder), by.keep(folder)))
        run = _Run(config, folder, environment, program, by, _extended(config, stated), processes)
        training = Training(Progress(run.start(before), before), run.write, processes)
        log = Log(folder, before, before * config.settings.steps)
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


def updates_done(config: Config, folder: Path, *, extend: bool = False) -> int:
    """Updates that the checkpoint of a folder has had; 0 where there is none.

    Args:
        config: what the training is to be of.
        folder: where it is kept.
        extend: whether the checkpoint may be the end of a training of fewer steps.

    Raises:
        OptionError: where the checkpoint is of another training; names what differs.
        FileError: where it cannot be read.
    """
    stated = _stated(config, folder, extend)
    return 0 if stated is None else stated["updates"]


def _stated(config: Config, folder: Path, extend: bool) -> Mapping[str, Any] | None:
    """The metadata of a folder's checkpoint, if it can be resumed from; None without one."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    said = checkpoint.about(path)
    other, updates = said.get("config"), said.get("updates")
    if not isinstance(other, dict) or not isinstance(updates, int):
        raise FileError(f"{path}: does not say what training it is of")
    other = current(other)
    differ = differences(other, config.flat())
    if not differ:
        return said
    more_steps = isinstance(other.get("steps"), int) and other["steps"] < config.steps
    if more_steps and not differences(other | {"steps": config.steps}, config.flat()):
        had = dataclasses.replace(config, steps=other["steps"]).updates
        if updates < had:
            raise OptionError(
                f"{path} is of {other['steps']} steps and not at its end ({updates} of {had} "
                f"updates): finish it with --steps {other['steps']}, then extend it"
            )
        if extend:
            return said
        differ = [f"{differ[0]}, which --steps {config.steps} extends it to"]
    more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
    raise OptionError(
        f"{path} is of another training: {'; '.join(differ[:3])}{more}; "
        "give another folder, or remove it"
    )


def _extended(config: Config, stated: Mapping[str, Any] | None) -> tuple[int, ...]:
    """`Trained.extended`, of a training that resumes from a checkpoint."""
    if stated is None:
        return ()
    before = tuple(stated.get("extended", ()))
    steps = stated["config"]["steps"]
    return before if steps == config.steps else (*before, steps)


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
        metrics, steps = call.metrics, self.config.settings.steps
        number = len(metrics.episodes)
        lines = [
            rows.row(
                jax.tree.map(lambda x, i=i: x[i], metrics),
                update,
                update * steps,
                self.environment.agents,
            )
            for i, update in enumerate(range(progress.updates - number + 1, progress.updates + 1))
        ]
        log.write(lines)
        for line in lines:
            rows.plot(log, line)
        episodes = metrics.episodes.sum()
        return Report(
            update=progress.updates,
            of=self.config.updates,
            steps=progress.updates * steps,
            mean_return=float(metrics.returns.sum((0, 1)).mean() / episodes) if episodes else None,
            steps_per_s=steps / self.pace.seconds_per_update,
            seconds_left=self.pace.seconds_per_update * (self.config.updates - progress.updates),
            not_finite=call.not_finite,
        )

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
        extended = {"extended": list(self.extended)} if self.extended else {}
        return {"config": self.config.flat(), **more, **schedule, **extended}


def _devices(number: int) -> list[Any]:
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
