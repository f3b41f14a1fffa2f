"""A training from its config to its policy: resumable, logged, its progress reported."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gradweave.errors import FileError, OptionError
from gradweave.marl import checkpoint, curves
from gradweave.marl.combining import Combining, combining
from gradweave.marl.config import Config, differences
from gradweave.marl.games.environment import Environment
from gradweave.marl.games.environments import make
from gradweave.marl.learners import algorithms
from gradweave.marl.learners.algorithms import Aggregate
from gradweave.marl.learners.learner import Learner
from gradweave.marl.program import AT_ONCE, Program
from gradweave.processes.agreement import AgreedInterrupt, Processes
from gradweave.schedule.schedule import Schedule

CHECKPOINT = "checkpoint.safetensors"
POLICY = "policy.safetensors"
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
    not_finite: tuple[int, ...] = ()
    """Of each device: its gradients so far that were left out as not finite."""


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
        report: told after each call of the compiled program, about once a second.
        progress: told in words what is done before the first update, which may take long.
        checkpoint_minutes: time between checkpoints.
        stop_after: updates after which to stop early; the checkpoint is written.
        extend: whether to go on from the end of a training of fewer steps, rather than refuse it.
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
        processes.by_first(lambda: _make(folder))
        held = _Held(program, processes, folder, config, before, by, _extended(config, stated))
        end = config.updates if stop_after is None else min(stop_after, config.updates)
        pace = _updates(held, end, environment, report, checkpoint_minutes)
        parameters = program.parameters(held.state)
        if not processes.alone:
            parameters = jax.tree.map(np.asarray, parameters)
        if held.updates == config.updates:
            about = {"config": config.flat(), "agents": environment.agents, **held.history}
            processes.by_first(lambda: checkpoint.save(folder / POLICY, parameters, about))
        processes.agree()
    schedule = None if by is None else by.schedule
    rate = pace.steps_per_s
    return Trained(config, environment, learner, parameters, before, rate, schedule, held.extended)


def _updates(
    held: "_Held",
    end: int,
    environment: Environment,
    report: Callable[[Report], None],
    checkpoint_minutes: float,
) -> "_Pace":
    """Makes updates until so many are done, and writes what they came to."""
    processes, config, before = held.processes, held.config, held.updates
    per_update = config.settings.steps
    pace = _Pace(per_update)
    with contextlib.ExitStack() as stack:
        open_log = curves.Log(held.path.parent, before, before * per_update)
        log = processes.by_first(lambda: stack.enter_context(open_log))
        stack.enter_context(held.saved_on_interrupt())
        while held.updates < end:
            turn = processes.turn(
                min(pace.at_once, end - held.updates), save=held.is_due(checkpoint_minutes)
            )
            if turn.save:
                held.save()
            began, done = time.monotonic(), held.updates
            state, metrics = held.program.run(held.state, turn.updates)
            held.state, held.updates = state, done + turn.updates
            pace.took(turn.updates, time.monotonic() - began)
            not_finite = held.program.not_finite(state)

            def tell(done: int = done, metrics: Any = metrics, bad: Any = not_finite) -> None:
                assert log is not None
                log.write(_rows(metrics, done, per_update, environment.agents))
                report(_report(config, held.updates, metrics, bad, pace))

            processes.by_first(tell)
        if held.updates > before:
            held.save()
        processes.turn(0, save=False)  # where an error or Ctrl-C of the last call comes out
    return pace


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
    """What a folder's checkpoint says of itself, if it is one to go on from; None without one."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    said = checkpoint.about(path)
    other, updates = said.get("config"), said.get("updates")
    if not isinstance(other, dict) or not isinstance(updates, int):
        raise FileError(f"{path}: does not say what training it is of")
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
    """`Trained.extended`, of a training that goes on from a checkpoint."""
    if stated is None:
        return ()
    before = tuple(stated.get("extended", ()))
    steps = stated["config"]["steps"]
    return before if steps == config.steps else (*before, steps)


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

    def __init__(
        self,
        program: Program,
        processes: Processes,
        folder: Path,
        config: Config,
        updates: int,
        by: Combining,
        extended: tuple[int, ...],
    ) -> None:
        self.program, self.processes = program, processes
        self.path, self.config, self.updates = folder / CHECKPOINT, config, updates
        self.by, self.extended, self._kept = by, extended, False
        self._saved, self._saved_at = updates, time.monotonic()
        if updates:
            shapes = program.shapes()
            read = processes.by_first(lambda: checkpoint.load(self.path, shapes))
            processes.agree()
            self.state: Any = processes.place(read, shapes, program.sharding)
        else:
            processes.agree()
            self.state = program.start()

    def is_due(self, minutes: float) -> bool:
        """Whether there is something new to write, and the last checkpoint is that old."""
        old = time.monotonic() - self._saved_at > 60 * minutes
        return old and self.updates > self._saved

    @property
    def history(self) -> dict[str, Any]:
        """What the state depends on beside the config."""
        digest = self.by.digest
        schedule = {} if digest is None else {"schedule": digest}
        return schedule | ({"extended": list(self.extended)} if self.extended else {})

    def save(self) -> None:
        """Writes the checkpoint, and before the first one the schedule that it depends on."""
        about = {"config": self.config.flat(), "updates": self.updates, **self.history}
        state = self.processes.gather(self.state)

        def write() -> None:
            if not self._kept:
                self.by.keep(self.path.parent)
                self._kept = True
            checkpoint.save(self.path, state, about)

        self.processes.by_first(write)
        self._saved, self._saved_at = self.updates, time.monotonic()

    @contextlib.contextmanager
    def saved_on_interrupt(self) -> Iterator[None]:
        """Writes the checkpoint where Ctrl-C ends the block, if there is anything new to write."""
        try:
            yield
        except KeyboardInterrupt as error:
            together = self.processes.alone or isinstance(error, AgreedInterrupt)
            if together and self.updates > self._saved:
                self.save()
                self.processes.agree()
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


def _report(
    config: Config, updates: int, metrics: Any, not_finite: tuple[int, ...], pace: _Pace
) -> Report:
    episodes = metrics.episodes.sum()
    return Report(
        update=updates,
        of=config.updates,
        steps=updates * config.settings.steps,
        mean_return=float(metrics.returns.sum((0, 1)).mean() / episodes) if episodes else None,
        steps_per_s=pace.steps_per_s_lately,
        seconds_left=pace.seconds_each * (config.updates - updates),
        not_finite=not_finite,
    )


def _rows(
    metrics: Any, done: int, per_update: int, agents: tuple[str, ...]
) -> list[dict[str, Any]]:
    """For the log, of each update that a call made."""
    return [
        curves.row(
            jax.tree.map(lambda x, i=i: x[i], metrics),
            done + i + 1,
            (done + i + 1) * per_update,
            agents,
        )
        for i in range(len(metrics.episodes))
    ]


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


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: cannot be made a directory: {error.strerror}") from error
