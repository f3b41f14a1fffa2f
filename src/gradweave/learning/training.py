"""A training from its configuration to its weights: resumable, logged, and with reports."""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradweave.aggregate.aggregation import Aggregation, resolve
from gradweave.common import arrays
from gradweave.environment.problem import Instance, Problem, Size, stack
from gradweave.errors import FileError, OptionError
from gradweave.learning.checkpoint import save_policy
from gradweave.learning.config import Config, Group, parse_aggregation
from gradweave.learning.experts import Experts
from gradweave.learning.hierarchical import AXIS, Batch, CompiledUpdate, Learner, Trainer
from gradweave.learning.networks import HierarchicalPolicy
from gradweave.learning.policies.policy import OLD_NAMES
from gradweave.learning.rollout import Decode, Rollout
from gradweave.processes.agreement import Processes
from gradweave.topology.spec import from_spec
from gradweave.training.checkpoint import CHECKPOINT, Format, check_same, differences
from gradweave.training.held import one_at_a_time
from gradweave.training.log import Log
from gradweave.training.loop import Progress, Training
from gradweave.training.pace import Pace

FORMAT = Format("gradweave-training", old_names=OLD_NAMES)
WEIGHTS = "weights.safetensors"
RECENT = 50
"""Number of recent updates whose rounds determine the best of several learners."""


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of one update."""

    update: int
    """Number of updates completed, including this update."""
    of: int
    agent: str
    """The agent that learned; "imitation" if workload scheduling imitated."""
    group: int
    over_bound: float
    """Rounds divided by the lower bound, minus one; mean over problems and seeds. During imitation,
    that of the expert."""
    figures: dict[str, Any]
    seconds: float
    """Time since this process started training."""
    seconds_left: float


class State(NamedTuple):
    """Everything that an update depends on, apart from the configuration."""

    learners: Learner
    """[S] learners."""
    recent: NDArray[np.float64]
    """[at most `RECENT`, S] excess over the bound of each learner in the last updates."""


@dataclasses.dataclass(frozen=True)
class Course:
    """A group's problems, as arrays of one size."""

    group: Group
    names: tuple[str, ...]
    batch: Batch
    """Kept in host memory: each update uses a few problems."""
    rounds: int
    """Maximum number of rounds recorded per episode."""
    instances: tuple[Instance, ...]

    @functools.cached_property
    def experts(self) -> Experts:
        """Plays the episodes to imitate."""
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


@one_at_a_time
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
    """Trains both agents, resuming from the folder's checkpoint if there is one.

    An update depends only on the preceding learners, the configuration, the aggregation, the number
    of devices and the update's number. So a training that was killed and resumed produces the same
    files of checkpoint and weights, byte for byte, as an uninterrupted one.

    Args:
        config: the configuration.
        folder: folder of the checkpoint, the logs and the weights.
        report: called after each update.
        devices: number of devices among which to divide the episodes; by default all.
        aggregation: how they average gradients, in the notation of `aggregate.aggregator`;
            must be exact.
        progress: called with a description of the current step before the first update, which may
            take long.
        stop_after: number of updates after which to stop early, for tests, with a checkpoint.

    Returns:
        The policies; with several seeds, those with the fewest rounds at the end.

    Raises:
        OptionError: the folder holds the checkpoint of another configuration, or the aggregation is
            not exact.
        FileError: the folder cannot be made, or its checkpoint cannot be read.
        KeyboardInterrupt: the user pressed Ctrl-C; the checkpoint has been written.
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
    save_policy(folder / WEIGHTS, policy, about)
    return policy


def _busiest(instance: Instance) -> int:
    """Maximum number of transfers per round."""
    arrays = Problem.of(instance)
    intake, capacity = np.asarray(arrays.intake), np.asarray(arrays.capacity)
    return int(min(intake.sum(), capacity[:-1].sum()))


class _Update(NamedTuple):
    """The results of one update."""

    agent: str
    group: int
    names: tuple[str, ...]
    """Names of the problems that were played."""
    figures: dict[str, Any]
    """Figures, [S] or [S, problems]."""


class _Updates:
    """The compiled updates, one per agent and group, and those for imitation."""

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
        if not imitates:  # during imitation the episodes are the expert's
            over_bound = figures["over_bound"].mean(-1, dtype=np.float64)[None]
            recent = np.concatenate([recent, over_bound])[-RECENT:]
        names = tuple(course.names[i] for i in which)
        shown = "imitation" if imitates else agent
        return State(learners, recent), _Update(shown, index, names, figures)

    def report(self, update: _Update, completed: int, seconds: float) -> Report:
        """The report of an update, given the number of completed updates and the seconds so far."""
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
    """Number of updates in a folder's checkpoint; 0 if there is none.

    Args:
        config: configuration of the training that should resume.
        folder: folder of the training.

    Raises:
        OptionError: the checkpoint belongs to another configuration.
        FileError: the checkpoint cannot be read.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        return 0
    about = FORMAT.about(path)
    there = about.get("config")
    if isinstance(there, dict):
        check_same(path, differences(there, config.fields()))
    elif there != config.digest():  # all that earlier checkpoints have
        check_same(path, ["its config"])
    return arrays.whole_entry(path, {"updates": str(about.get("updates", ""))}, "updates")


def _save(path: Path, config: Config, progress: Progress[State]) -> None:
    about = {
        "config": config.fields(),
        "updates": progress.updates,
        "recent": progress.state.recent.tolist(),
    }
    FORMAT.save(path, progress.state.learners, about)


def _start(config: Config, updates: _Updates, path: Path) -> Progress[State]:
    """The checkpoint's state, or the state before the first update if there is none."""
    learners, completed = updates.start(), updates_done(config, path.parent)
    recent = np.zeros((0, config.seeds))
    if completed:
        learners = jax.tree.map(jnp.asarray, FORMAT.load(path, learners))
        about = FORMAT.about(path)
        said = about.get("recent") or []
        if isinstance(said, str):  # in an earlier checkpoint
            said = arrays.json_entry(path, about, "recent")
        recent = _recent(path, said, config.seeds)
    return Progress(State(learners, recent), completed)


def _recent(path: Path, said: Any, seeds: int) -> NDArray[np.float64]:
    """[N, seeds] the record of the last updates in a checkpoint."""
    try:
        return np.array(said, np.float64).reshape(-1, seeds)
    except (TypeError, ValueError, OverflowError):
        raise FileError(f"{path}: metadata: recent: expected {seeds} figures a row") from None


def _write(log: Log, report: Report, names: tuple[str, ...]) -> None:
    """Writes one update's log line and points; ``names`` are those of the problems played."""
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
