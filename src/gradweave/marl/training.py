"""A training from its config to its policy: resumable, logged, its progress reported."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gradweave.errors import FileError, OptionError
from gradweave.marl import algorithms, checkpoint, curves
from gradweave.marl.algorithms import Aggregate
from gradweave.marl.config import Config, differences
from gradweave.marl.environment import Environment
from gradweave.marl.environments import make
from gradweave.marl.learner import Learner
from gradweave.marl.program import AT_ONCE, Program

CHECKPOINT = "checkpoint.safetensors"
POLICY = "policy.safetensors"
SCHEDULE = "schedule.json"
CALL_S = 1.0
"""What a call of the compiled program should take, so that Ctrl-C costs no more."""


@dataclasses.dataclass(frozen=True)
class Report:
    """Where a training has got to."""

    update: int
    """Updates done."""
    of: int
    steps: int
    """Steps done, of all games."""
    mean_return: float | None
    """Of the episodes that ended lately, over all seeds and agents; None if none did."""
    steps_per_s: float
    """Lately, of all games of one seed; compilation counts in the first one."""
    seconds_left: float


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


def train(
    config: Config,
    folder: Path,
    *,
    report: Callable[[Report], None] = lambda _: None,
    checkpoint_minutes: float = 2.0,
    stop_after: int | None = None,
    aggregate: Aggregate | None = None,
) -> Trained:
    """Trains, resuming from the folder's checkpoint where there is one.

    An update depends on the config and on the state before it alone, so that a training that was
    killed and resumed ends in the same bits as one that was not.

    Args:
        config: what to do.
        folder: of checkpoint, logs and the policy.
        report: told after each call of the compiled program, about once a second.
        checkpoint_minutes: time between checkpoints.
        stop_after: updates after which to stop early; the checkpoint is written.
        aggregate: in place of what the config names.

    Raises:
        OptionError: where the folder holds another training, or there are too few devices.
        FileError: where the folder cannot be made, or its checkpoint cannot be read.
        KeyboardInterrupt: where Ctrl-C came; the checkpoint is written.
    """
    before = updates_done(config, folder)
    environment = make(config.env, **config.options)
    devices = _devices(config.devices)
    learner = algorithms.build(config, environment, aggregate or _aggregate(config, folder))
    program = Program(learner, devices, config.seed, config.seeds)
    _make(folder)
    held = _Held(program, folder, config, before)
    per_update = config.settings.steps
    pace = _Pace(per_update)
    end = config.updates if stop_after is None else min(stop_after, config.updates)
    saved = time.monotonic()
    with curves.Log(folder, before, before * per_update) as log, held.saved_on_interrupt():
        while held.updates < end:
            began, done = time.monotonic(), held.updates
            number = min(pace.at_once, end - done)
            state, metrics = program.run(held.state, number)
            held.state, held.updates = state, done + number
            now = time.monotonic()
            pace.took(number, now - began)
            made = [
                curves.row(
                    jax.tree.map(lambda x, i=i: x[i], metrics),
                    done + i + 1,
                    (done + i + 1) * per_update,
                    environment.agents,
                )
                for i in range(number)
            ]
            log.write(made)
            report(_report(config, held.updates, metrics, pace))
            if held.updates < end and now - saved > 60 * checkpoint_minutes:
                held.save()
                saved = now
        if held.updates > before:
            held.save()
    parameters = program.parameters(held.state)
    if held.updates == config.updates:
        about = {"config": config.flat(), "agents": environment.agents}
        checkpoint.save(folder / POLICY, parameters, about)
    return Trained(config, environment, learner, parameters, before, pace.steps_per_s)


def updates_done(config: Config, folder: Path) -> int:
    """Updates that the checkpoint of a folder has had; 0 where there is none.

    Args:
        config: what the training is to be of.
        folder: where it is kept.

    Raises:
        OptionError: where the checkpoint is of another training; names what differs.
        FileError: where it cannot be read.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        return 0
    said = checkpoint.about(path)
    other, updates = said.get("config"), said.get("updates")
    if not isinstance(other, dict) or not isinstance(updates, int):
        raise FileError(f"{path}: does not say what training it is of")
    differ = differences(other, config.flat())
    if differ:
        more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
        raise OptionError(
            f"{path} is of another training: {'; '.join(differ[:3])}{more}; "
            "give another folder, or remove it"
        )
    return updates


def load_policy(folder: Path, learner: Learner, config: Config) -> Any:
    """Reads the parameters [S, ...] that a finished training wrote.

    Raises:
        FileError: where the file is none of its kind.
    """
    program = Program(learner, jax.devices()[:1], config.seed, config.seeds)
    like = jax.eval_shape(program.parameters, program.shapes())
    return checkpoint.load(folder / POLICY, like)


class _Held:
    """A training's state: all that its next update depends on."""

    def __init__(self, program: Program, folder: Path, config: Config, updates: int) -> None:
        self.path, self.config, self.updates = folder / CHECKPOINT, config, updates
        self._saved = updates
        self.state: Any = (
            program.place(checkpoint.load(self.path, program.shapes()))
            if updates
            else program.start()
        )

    def save(self) -> None:
        """Writes the checkpoint."""
        about = {"config": self.config.flat(), "updates": self.updates}
        checkpoint.save(self.path, self.state, about)
        self._saved = self.updates

    @contextlib.contextmanager
    def saved_on_interrupt(self) -> Iterator[None]:
        """Writes the checkpoint where Ctrl-C ends the block, if there is anything new to write."""
        try:
            yield
        except KeyboardInterrupt:
            if self.updates > self._saved:
                self.save()
            raise


class _Pace:
    """How many updates a call should make, and how fast they are."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._calls: list[tuple[int, float]] = []

    def took(self, updates: int, seconds: float) -> None:
        """Counts a call."""
        self._calls.append((updates, seconds))

    @property
    def at_once(self) -> int:
        """Updates of the next call: one at first, when it has to be compiled."""
        if len(self._calls) < 2:
            return 1
        updates, seconds = self._calls[-1]
        return int(np.clip(CALL_S * updates / max(seconds, 1e-9), 1, AT_ONCE))

    @property
    def seconds_each(self) -> float:
        """Of an update, lately."""
        lately = self._calls[1:][-5:] or self._calls
        return sum(s for _, s in lately) / sum(n for n, _ in lately)

    @property
    def steps_per_s(self) -> float | None:
        """Over all calls but the first, which is compiled."""
        rest = self._calls[1:]
        seconds = sum(s for _, s in rest)
        return self._steps * sum(n for n, _ in rest) / seconds if seconds else None

    @property
    def steps_per_s_lately(self) -> float:
        return self._steps / self.seconds_each


def _report(config: Config, updates: int, metrics: Any, pace: _Pace) -> Report:
    episodes = metrics.episodes.sum()
    return Report(
        update=updates,
        of=config.updates,
        steps=updates * config.settings.steps,
        mean_return=float(metrics.returns.sum((0, 1)).mean() / episodes) if episodes else None,
        steps_per_s=pace.steps_per_s_lately,
        seconds_left=pace.seconds_each * (config.updates - updates),
    )


def _devices(number: int) -> list[Any]:
    there = jax.devices()
    if number > len(there):
        raise OptionError(f"devices: expected at most {len(there)}, got {number}")
    return there[:number]


def _aggregate(config: Config, folder: Path) -> Aggregate:
    """What the config names. A schedule that is found for it is kept, for the next time."""
    from gradweave.aggregate import from_spec
    from gradweave.schedulers.solve import solve
    from gradweave.topology.spec import from_spec as network

    name, _, what = config.aggregation.partition(":")
    if name.strip() == "scheduled" and what and not Path(what).is_file():
        path = folder / SCHEDULE
        if not path.exists():
            schedule = solve(network(what), seed=config.seed).schedule
            _make(folder)
            schedule.save(path)
        return from_spec(f"scheduled:{path}", config.devices)
    return from_spec(config.aggregation, config.devices)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: cannot be made a directory: {error.strerror}") from error
