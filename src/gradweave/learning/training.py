"""A training from its config to its weights: resumable, logged, its progress reported."""

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradweave.aggregate.aggregation import Aggregation, resolve
from gradweave.atomic import reopened
from gradweave.environment.problem import Instance, Problem, Size, stack
from gradweave.errors import FileError, OptionError
from gradweave.lazy import summary_writer
from gradweave.learning import checkpoint
from gradweave.learning.config import Config, Group, parse_aggregation
from gradweave.learning.hierarchical import AXIS, Batch, Learner, Trainer, compiled_update
from gradweave.learning.networks import HierarchicalPolicy
from gradweave.learning.rollout import Decode, Rollout
from gradweave.topology.spec import from_spec

CHECKPOINT = "checkpoint.safetensors"
LOG = "log.jsonl"
WEIGHTS = "weights.safetensors"
RECENT = 50
"""Updates by whose rounds the best one of several learners is told."""


@dataclasses.dataclass(frozen=True)
class Report:
    """What one update came to."""

    update: int
    """Updates done, this one included."""
    of: int
    agent: str
    group: int
    over_bound: float
    """Rounds over the bound, less one; mean of the problems and seeds."""
    figures: dict[str, Any]
    seconds: float
    """Since this process began to train."""
    seconds_left: float


@dataclasses.dataclass(frozen=True)
class _Held:
    """Where a training has got to: all that an update depends on, and what is kept beside it."""

    learners: Learner
    updates: int
    """Updates done."""
    recent: NDArray[np.float64]
    """[at most `RECENT`, seeds] how far over the bound each learner was in the last updates."""


@dataclasses.dataclass(frozen=True)
class _Ground:
    """A group, compiled on demand."""

    group: Group
    names: tuple[str, ...]
    batch: Batch
    rounds: int


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
        report: told of each update.
        devices: how many to divide the episodes among; all if not given.
        aggregation: how they average gradients, as `gradweave.aggregate.from_spec` understands it;
            one that is exact.
        progress: told in words what is done before the first update, which may take long.
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
    grounds = [_ground(group, len(chosen)) for group in config.groups]
    updates = _Updates(config, grounds, chosen, average)
    path = folder / CHECKPOINT
    held = _resumed(config, updates, path)
    _make(folder)
    first = held.updates
    started = saved = now = time.monotonic()
    pace = _Pace()
    with _Log(folder, first) as log, _saving_on_interrupt(path, config, lambda: held):
        for update in range(first, config.updates):
            learners, figures, group = updates.run(held.learners, update)
            over_bound = figures["over_bound"].mean(-1, dtype=np.float64)[None]
            done, recent = update + 1, np.concatenate([held.recent, over_bound])[-RECENT:]
            held = _Held(learners, done, recent)  # at once, for Ctrl-C comes at any time
            before, now = now, time.monotonic()
            pace.took(now - before, (group, config.agent(update)))
            made = Report(
                done,
                config.updates,
                config.agent(update),
                group,
                float(figures["over_bound"].mean()),
                figures,
                now - started,
                pace.seconds_each * (config.updates - done),
            )
            log.write(made, updates.last_names)
            report(made)
            last = done in (config.updates, stop_after)
            if last or now - saved > 60 * config.checkpoint_minutes:
                _save(path, config, held)
                saved = now
            if done == stop_after:
                break
    best = int(held.recent.mean(0).argmin()) if len(held.recent) else 0
    policy = jax.tree.map(lambda x: x[best] if eqx.is_array(x) else x, held.learners.policy)
    about = {"config": config.digest(), "seed": config.seed, "learner": best}
    checkpoint.save_policy(folder / WEIGHTS, policy, about)
    return policy


class _Pace:
    """How long an update takes, those aside that had to be compiled first."""

    def __init__(self) -> None:
        self.compiled: set[tuple[int, str]] = set()
        self.compiling, self.running = [], []

    def took(self, seconds: float, program: tuple[int, str]) -> None:
        """Counts an update of a group and an agent."""
        (self.running if program in self.compiled else self.compiling).append(seconds)
        self.compiled.add(program)

    @property
    def seconds_each(self) -> float:
        """The mean; of the first ones where there are no others yet."""
        return float(np.mean(self.running or self.compiling))


def _ground(group: Group, devices: int) -> _Ground:
    instances = [
        Instance(from_spec(exercise.topology), exercise.collective, exercise.trees)
        for exercise in group.exercises
    ]
    group.check_devices(devices)
    size = Size.covering([instance.size for instance in instances])
    problems = stack([Problem.of(instance, size) for instance in instances])
    batch = Batch(problems, jnp.array([_busiest(instance) for instance in instances]))
    on_host = jax.tree.map(np.asarray, batch)  # which each update takes a few problems of
    names = tuple(
        f"{exercise.topology} {exercise.collective} {exercise.trees}"
        for exercise in group.exercises
    )
    rounds = 2 * max(instance.bound for instance in instances) + 2
    return _Ground(group, names, on_host, rounds)


def _busiest(instance: Instance) -> int:
    """Transfers that a round can have, at most."""
    arrays = Problem.of(instance)
    intake, capacity = np.asarray(arrays.intake), np.asarray(arrays.capacity)
    return int(min(intake.sum(), capacity[:-1].sum()))


class _Updates:
    """The compiled updates, one for each agent and group."""

    def __init__(
        self, config: Config, grounds: list[_Ground], devices: list[Any], average: Aggregation
    ) -> None:
        self.config, self.grounds, self.devices = config, grounds, devices
        self.last_names: tuple[str, ...] = ()
        decode = Decode(select=not config.single_policy)
        self.trainers = [
            Trainer(
                config.tree,
                config.workload,
                Rollout(ground.rounds, config.draws, config.rewards, decode),
                ground.group.episodes,
                max(config.updates, 1),
                average,
            )
            for ground in grounds
        ]
        self.compiled: dict[tuple[int, str], Any] = {}

    def start(self) -> Learner:
        """The learners of all seeds before the first update."""
        keys = jax.random.split(jax.random.key(self.config.seed), self.config.seeds)
        made = [
            self.trainers[0].start(HierarchicalPolicy(key, self.config.tree_bias)) for key in keys
        ]
        return jax.tree.map(lambda *x: jnp.stack(x) if eqx.is_array(x[0]) else x[0], *made)

    def run(self, learners: Learner, update: int) -> tuple[Learner, dict[str, Any], int]:
        """One update of every seed; what it came to; and its group."""
        config = self.config
        rng = np.random.default_rng([config.seed, update])
        shares = np.array([ground.group.share for ground in self.grounds])
        index = int(rng.choice(len(shares), p=shares / shares.sum()))
        ground, agent = self.grounds[index], config.agent(update)
        which = np.sort(rng.choice(len(ground.names), ground.group.at_once, replace=False))
        self.last_names = tuple(ground.names[i] for i in which)
        batch = jax.tree.map(lambda x: x[which], ground.batch)
        if (index, agent) not in self.compiled:
            self.compiled[index, agent] = compiled_update(self.trainers[index], agent, self.devices)
        key = jax.random.fold_in(jax.random.key(config.seed), update)
        keys = jax.random.split(key, (len(self.devices), config.seeds))
        learners, figures = self.compiled[index, agent](learners, batch, keys)
        return learners, jax.tree.map(np.asarray, figures), index


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
    return int(metadata["updates"])


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: cannot be made a directory: {error.strerror}") from error


def _save(path: Path, config: Config, held: _Held) -> None:
    metadata = {
        "format": checkpoint.CHECKPOINT_FORMAT,
        "version": checkpoint.VERSION,
        "config": config.digest(),
        "updates": str(held.updates),
        "recent": json.dumps(held.recent.tolist()),
    }
    checkpoint.save(path, held.learners, metadata)


@contextlib.contextmanager
def _saving_on_interrupt(path: Path, config: Config, held: Callable[[], _Held]) -> Iterator[None]:
    """Writes the checkpoint where Ctrl-C ends the block, if there is anything new to write."""
    first = held().updates
    try:
        yield
    except KeyboardInterrupt:
        if held().updates > first:
            _save(path, config, held())
        raise


def _resumed(config: Config, updates: _Updates, path: Path) -> _Held:
    """The learners to go on with, and what the checkpoint says beside them."""
    start = updates.start()
    done = updates_done(config, path.parent)
    recent = np.zeros((0, config.seeds))
    if done == 0:
        return _Held(start, 0, recent)
    learners, metadata = checkpoint.load(path, start, checkpoint.CHECKPOINT_FORMAT)
    rows = json.loads(metadata.get("recent", "[]"))
    return _Held(learners, done, np.array(rows).reshape(-1, config.seeds))


class _Log:
    """One line of JSON an update, and the same for TensorBoard."""

    def __init__(self, folder: Path, first: int) -> None:
        self.path = folder / LOG
        self.events = folder / "tensorboard"
        self.first = first

    def __enter__(self) -> "_Log":
        self.file = reopened(self.path, lambda line: _update_of(line) <= self.first)
        self.board = summary_writer()(str(self.events), purge_step=self.first)
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.board.close()

    def write(self, made: Report, names: tuple[str, ...]) -> None:
        """One update."""
        figures = {
            name: np.asarray(value, np.float64).mean(0).tolist()
            for name, value in made.figures.items()
        }
        by_problem = {
            name: {
                figure: round(figures[figure][place], 5)
                for figure in ("rounds", "over_bound", "at_bound", "selected")
            }
            for place, name in enumerate(names)
        }
        whole = {name: value for name, value in figures.items() if not isinstance(value, list)}
        row = {
            "update": made.update,
            "agent": made.agent,
            "group": made.group,
            "seconds": round(made.seconds, 2),
            "decisions": sum(figures["decisions"]),
            "over_bound": made.over_bound,
            **whole,
            "problems": by_problem,
        }
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
        for name, value in (whole | {"over_bound": made.over_bound}).items():
            self.board.add_scalar(f"{made.agent}/{name}", value, made.update)
        for name, values in by_problem.items():
            self.board.add_scalar(f"rounds/{name}", values["rounds"], made.update)


def _update_of(line: str) -> float:
    """The update that a line of the log is of; a line that was cut off is of none."""
    try:
        return json.loads(line)["update"]
    except ValueError:
        return np.inf
