"""A training from its config to its weights: resumable, logged, its progress reported."""

import dataclasses
import functools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradweave import arrays
from gradweave.aggregate.aggregation import Aggregation, resolve
from gradweave.atomic import make_folder
from gradweave.environment.problem import Instance, Problem, Size, stack
from gradweave.errors import FileError, OptionError
from gradweave.learning import checkpoint
from gradweave.learning.config import Config, Group, parse_aggregation
from gradweave.learning.experts import Experts
from gradweave.learning.hierarchical import AXIS, Batch, CompiledUpdate, Learner, Trainer
from gradweave.learning.networks import HierarchicalPolicy
from gradweave.learning.rollout import Decode, Rollout
from gradweave.processes.agreement import Processes
from gradweave.schedulers.learned.policy import OLD_NAMES
from gradweave.topology.spec import from_spec
from gradweave.training.log import Log
from gradweave.training.loop import Progress, Training
from gradweave.training.pace import Pace

CHECKPOINT = "checkpoint.safetensors"
WEIGHTS = "weights.safetensors"
RECENT = 50
"""Updates by whose rounds the best one of several learners is chosen."""


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of one update."""

    update: int
    """Updates completed, this one included."""
    of: int
    agent: str
    """Who learned; "imitation" where workload scheduling imitated."""
    group: int
    over_bound: float
    """Rounds over the bound, less one; mean of the problems and seeds. Of imitation: the
    expert's."""
    figures: dict[str, Any]
    seconds: float
    """Since this process began to train."""
    seconds_left: float


class State(NamedTuple):
    """All that an update depends on, beside the config."""

    learners: Learner
    """[S]."""
    recent: NDArray[np.float64]
    """[at most `RECENT`, S] how far over the bound each learner was in the last updates."""


@dataclasses.dataclass(frozen=True)
class Course:
    """A group's problems, as arrays of one size."""

    group: Group
    names: tuple[str, ...]
    batch: Batch
    """In the host's memory: each update takes a few problems of it."""
    rounds: int
    """To record of an episode, at most."""
    instances: tuple[Instance, ...]

    @functools.cached_property
    def experts(self) -> Experts:
        """Who plays the episodes to imitate."""
        return Experts.of(self.instances, self.batch.problems.size)

    @staticmethod
    def of(group: Group, devices: int) -> "Course":
        """The problems of a group.

        Raises:
            OptionError: its episodes cannot be divided among the devices.
        """
        instances = [
            Instance(from_spec(exercise.topology), exercise.collective, exercise.trees)
            for exercise in group.exercises
        ]
        group.check_devices(devices)
        size = Size.covering([instance.size for instance in instances])
        problems = stack([Problem.of(instance, size) for instance in instances])
        batch = Batch(problems, jnp.array([_busiest(instance) for instance in instances]))
        names = tuple(
            f"{exercise.topology} {exercise.collective} {exercise.trees}"
            for exercise in group.exercises
        )
        rounds = 2 * max(instance.bound for instance in instances) + 2
        host = jax.tree.map(np.asarray, batch)
        return Course(group, names, host, rounds, tuple(instances))


def train(
    config: Config,
    folder: Path,
    *,
    report: Callable[[Report], None],
    devices: int | None = None,
    aggregation: str = "mean",
    progress: Callable[[str], None] = lambda _: None,
    stop_after: int | None = None,
) -> HierarchicalPolicy:
    """Trains both agents, resuming from the folder's checkpoint where there is one.

    An update depends on the learners before it, the config, the aggregation, the number of devices
    and its own number alone, so that a training that was killed and resumed ends in the same files
    of checkpoint and weights, byte for byte, as one that was not.

    Args:
        config: what to do.
        folder: of checkpoint, logs and weights.
        report: called after each update.
        devices: how many to divide the episodes among; all if not given.
        aggregation: how they average gradients, as `gradweave.aggregate.from_spec` understands it;
            one that is exact.
        progress: called with the step under way before the first update, which may take long.
        stop_after: updates after which to stop early, for tests; the checkpoint is written.

    Returns:
        The policies; of several seeds, those with the fewest rounds at the end.

    Raises:
        OptionError: where the folder holds another config's checkpoint, or the aggregation is not
            exact.
        FileError: where the folder cannot be made, or its checkpoint cannot be read.
        KeyboardInterrupt: where Ctrl-C came; the checkpoint is written.
    """
    chosen = jax.devices()[: devices or len(jax.devices())]
    if devices is not None and len(chosen) < devices:
        raise OptionError(f"devices: expected at most {len(jax.devices())}, got {devices}")
    spec = parse_aggregation(aggregation, len(chosen))
    progress(f"preparing {aggregation}")
    average = resolve(spec, len(chosen), AXIS)
    progress("compiling")
    courses = [Course.of(group, len(chosen)) for group in config.groups]
    updates = _Updates(config, courses, chosen, average)
    path = folder / CHECKPOINT
    first = _start(config, updates, path)
    make_folder(folder)
    training = Training(first, lambda now: _save(path, config, now), Processes())
    log = Log(folder, first.updates, first.updates)
    start = time.monotonic()

    def record(now: Progress[State], update: _Update) -> None:
        result = updates.report(update, now.updates, time.monotonic() - start)
        _write(log, result, update.names)
        report(result)

    training.run(
        config.updates if stop_after is None else min(stop_after, config.updates),
        lambda now, _: updates.run(now),
        record,
        log=log,
        pace=updates.pace,
        checkpoint_minutes=config.checkpoint_minutes,
    )
    state = training.progress.state
    best = int(state.recent.mean(0).argmin()) if len(state.recent) else 0
    policy = jax.tree.map(lambda x: x[best], state.learners.policy)
    about = {"config": config.digest(), "seed": config.seed, "learner": best}
    checkpoint.save_policy(folder / WEIGHTS, policy, about)
    return policy


def _busiest(instance: Instance) -> int:
    """Transfers that a round can have, at most."""
    arrays = Problem.of(instance)
    intake, capacity = np.asarray(arrays.intake), np.asarray(arrays.capacity)
    return int(min(intake.sum(), capacity[:-1].sum()))


class _Update(NamedTuple):
    """The results of one update."""

    agent: str
    group: int
    names: tuple[str, ...]
    """Of the problems that were played."""
    figures: dict[str, Any]
    """[S], or [S, problems]."""


class _Updates:
    """The compiled updates, one for each agent and group, and for imitation."""

    def __init__(
        self, config: Config, courses: Sequence[Course], devices: list[Any], average: Aggregation
    ) -> None:
        self.config, self.courses, self.devices = config, courses, devices
        self.pace = Pace()
        decode = Decode(select=not config.single_policy)
        self.trainers = [
            Trainer(
                config.tree,
                config.workload,
                Rollout(course.rounds, config.draws, config.rewards, decode),
                course.group.episodes,
                max(config.updates, 1),
                average,
            )
            for course in courses
        ]
        self.compiled: dict[tuple[int, str, bool], CompiledUpdate] = {}

    def start(self) -> Learner:
        """The learners of all seeds before the first update."""
        keys = jax.random.split(jax.random.key(self.config.seed), self.config.seeds)
        learners = [
            self.trainers[0].start(HierarchicalPolicy(key, self.config.tree_bias)) for key in keys
        ]
        return jax.tree.map(lambda *x: jnp.stack(x), *learners)

    def run(self, progress: Progress[State]) -> tuple[State, _Update]:
        """One update of every seed."""
        config, update = self.config, progress.updates
        rng = np.random.default_rng([config.seed, update])
        shares = np.array([course.group.share for course in self.courses])
        index = int(rng.choice(len(shares), p=shares / shares.sum()))
        course, agent = self.courses[index], config.agent(update)
        which = np.sort(rng.choice(len(course.names), course.group.at_once, replace=False))
        batch = jax.tree.map(lambda x: x[which], course.batch)
        imitates = config.imitates(update)
        if imitates:
            first = jax.tree.map(lambda x: x[0], progress.state.learners.policy)
            expert = course.experts.play(first, which.tolist(), (config.seed, update))
            batch = dataclasses.replace(batch, expert=expert)
        key = jax.random.fold_in(jax.random.key(config.seed), update)
        keys = jax.random.split(key, (len(self.devices), config.seeds))
        program = index, agent, imitates
        if program not in self.compiled:
            self.compiled[program] = CompiledUpdate(self.trainers[index], agent, self.devices)
        with self.pace.timed(1, program):
            learners, figures = self.compiled[program](progress.state.learners, batch, keys)
            figures = jax.tree.map(np.asarray, figures)
        recent = progress.state.recent
        if not imitates:  # then episodes are the expert's
            over_bound = figures["over_bound"].mean(-1, dtype=np.float64)[None]
            recent = np.concatenate([recent, over_bound])[-RECENT:]
        names = tuple(course.names[i] for i in which)
        shown = "imitation" if imitates else agent
        return State(learners, recent), _Update(shown, index, names, figures)

    def report(self, update: _Update, completed: int, seconds: float) -> Report:
        """An update's report, after so many updates and seconds."""
        return Report(
            completed,
            self.config.updates,
            update.agent,
            update.group,
            float(update.figures["over_bound"].mean()),
            update.figures,
            seconds,
            self.pace.seconds_per_update * (self.config.updates - completed),
        )


def updates_done(config: Config, folder: Path) -> int:
    """Updates that the checkpoint of a folder has had; 0 where there is none.

    Args:
        config: what the training is to be of.
        folder: where it is kept.

    Raises:
        OptionError: where the checkpoint is another config's.
        FileError: where it cannot be read.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        return 0
    metadata = checkpoint.metadata(path, checkpoint.CHECKPOINT_FORMAT)
    if metadata.get("config") != config.digest():
        raise OptionError(
            f"{path} is of a training with another config; give another folder, or remove it"
        )
    return arrays.whole_entry(path, metadata, "updates")


def _save(path: Path, config: Config, progress: Progress[State]) -> None:
    metadata = {
        "config": config.digest(),
        "updates": str(progress.updates),
        "recent": json.dumps(progress.state.recent.tolist()),
    }
    checkpoint.save(path, progress.state.learners, checkpoint.CHECKPOINT_FORMAT, metadata)


def _start(config: Config, updates: _Updates, path: Path) -> Progress[State]:
    """The checkpoint's state, or that before the first update where there is none."""
    learners, completed = updates.start(), updates_done(config, path.parent)
    recent = np.zeros((0, config.seeds))
    if completed:
        kind = checkpoint.CHECKPOINT_FORMAT
        learners = checkpoint.load(path, learners, kind, OLD_NAMES)
        text = checkpoint.metadata(path, checkpoint.CHECKPOINT_FORMAT)
        recent = _recent(path, arrays.json_entry(path, text, "recent") or [], config.seeds)
    return Progress(State(learners, recent), completed)


def _recent(path: Path, said: Any, seeds: int) -> NDArray[np.float64]:
    """[N, seeds] what a checkpoint says of the last updates."""
    try:
        return np.array(said, np.float64).reshape(-1, seeds)
    except (TypeError, ValueError, OverflowError):
        raise FileError(f"{path}: metadata: recent: expected {seeds} figures a row") from None


def _write(log: Log, report: Report, names: tuple[str, ...]) -> None:
    """One update's line and points; ``names`` are of the problems that were played."""
    figures = {
        name: np.asarray(value, np.float64).mean(0).tolist()
        for name, value in report.figures.items()
    }
    by_problem = {
        name: {
            figure: round(figures[figure][place], 5)
            for figure in ("rounds", "over_bound", "at_bound", "selected")
        }
        for place, name in enumerate(names)
    }
    overall = {name: value for name, value in figures.items() if not isinstance(value, list)}
    row = {
        "update": report.update,
        "agent": report.agent,
        "group": report.group,
        "seconds": round(report.seconds, 2),
        "decisions": sum(figures["decisions"]),
        "over_bound": report.over_bound,
        **overall,
        "problems": by_problem,
    }
    log.write([row])
    for name, value in (overall | {"over_bound": report.over_bound}).items():
        log.plot(f"{report.agent}/{name}", value, report.update)
    for name, values in by_problem.items():
        log.plot(f"rounds/{name}", values["rounds"], report.update)
