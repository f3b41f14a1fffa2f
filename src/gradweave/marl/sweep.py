"""Several settings of one algorithm, each with several seeds, trained by one compiled program.

Settings that are numbers in formulas become an axis of the program, like seeds. Settings that
change shapes or the program itself cannot; each of their values is a separate training.
"""

import contextlib
import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from gradweave.aggregate.finite import is_finite
from gradweave.common.atomic import make_folder
from gradweave.common.checks import expected_one_of
from gradweave.errors import OptionError
from gradweave.marl import checkpoint, rows
from gradweave.marl.combining import combining
from gradweave.marl.config import Config
from gradweave.marl.games.environment import Environment
from gradweave.marl.games.environments import make
from gradweave.marl.learners import algorithms
from gradweave.marl.learners.learner import Learner, Metrics
from gradweave.marl.program import AT_ONCE, Program
from gradweave.marl.trained import CHECKPOINT, POLICY, Report, Trained, description, stated
from gradweave.marl.training import RECENT_CALLS, devices_of, report_of
from gradweave.processes.agreement import Processes
from gradweave.training.held import one_at_a_time
from gradweave.training.log import Log
from gradweave.training.loop import Progress, Training
from gradweave.training.pace import Pace

SWEPT = (
    "learning_rate",
    "discount",
    "gae_lambda",
    "clip_ratio",
    "entropy_coefficient",
    "value_coefficient",
    "max_gradient_norm",
    "td_lambda",
    "target_update_rate",
    "reward_scale",
)
"""Settings that can vary within a sweep, for algorithms that have them."""


class SweptState(eqx.Module):
    """The state of a learner, and the settings it learns with."""

    values: dict[str, Float[Array, ""]]
    state: Any


@dataclasses.dataclass(frozen=True, eq=False)
class SweptLearner:
    """A learner whose settings are part of its state; `Program` uses it as a `Learner`."""

    base: Learner
    """The learner that supplies every setting that does not vary."""
    remade: Callable[[Mapping[str, Array]], Learner]
    """Maps values to the learner with these values."""
    values: Mapping[str, np.ndarray]
    """[S] values of each setting, one per learner in the program."""

    @property
    def games(self) -> int:
        """See `Learner.games`."""
        return self.base.games

    def init_numbered(
        self, shared: PRNGKeyArray, first: Int[Array, ""] | int, number: Int[Array, ""]
    ) -> SweptState:
        """See `Learner.init`; `number` selects the learner's values."""
        values = {name: jnp.asarray(all)[number] for name, all in self.values.items()}
        return SweptState(values, self.remade(values).init(shared, first))

    def update(self, state: SweptState) -> tuple[SweptState, Metrics]:
        """See `Learner.update`."""
        after, metrics = self.remade(state.values).update(state.state)
        return SweptState(state.values, after), metrics

    def parameters(self, state: SweptState) -> Any:
        """See `Learner.parameters`."""
        return self.base.parameters(state.state)


def points(sweep: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """Every combination of a sweep's values; the last setting changes fastest.

    >>> points({"learning_rate": [1e-3, 3e-3], "discount": [0.9]})
    [{'learning_rate': 0.001, 'discount': 0.9}, {'learning_rate': 0.003, 'discount': 0.9}]
    """
    return [dict(zip(sweep, each, strict=True)) for each in itertools.product(*sweep.values())]


def stated_as(sweep: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """A sweep as the checkpoint's metadata stores it."""
    return {name: list(map(float, values)) for name, values in sweep.items()}


def name_of_point(values: Mapping[str, float]) -> str:
    """The name of a combination's folder.

    >>> name_of_point({"learning_rate": 1e-3, "discount": 0.9})
    'learning_rate=0.001,discount=0.9'
    """
    return ",".join(f"{name}={value:g}" for name, value in values.items())


def configs(config: Config, sweep: Mapping[str, Sequence[float]]) -> dict[str, Config]:
    """The configuration of each combination, by folder, as `gradweave train` alone would have it.

    Raises:
        OptionError: a setting cannot vary within a sweep, or has a value out of its range.
    """
    if config.network is not None:
        raise OptionError("--sweep: not with --network; run a separate command per setting")
    if not sweep or not all(sweep.values()):
        raise OptionError("--sweep: expected NAME=VALUE,VALUE,…")
    known = [name for name in SWEPT if hasattr(config.settings, name)]
    for name in sweep:
        if name not in known:
            raise OptionError(expected_one_of("--sweep: setting", known, name))
    found = {}
    for values in points(sweep):
        settings = dataclasses.replace(config.settings, **values)
        found[name_of_point(values)] = dataclasses.replace(config, settings=settings)
    return found


@one_at_a_time
def train_sweep(
    config: Config,
    sweep: Mapping[str, Sequence[float]],
    folder: Path,
    *,
    report: Callable[[Report], None] = lambda _: None,
    progress: Callable[[str], None] = lambda _: None,
    checkpoint_minutes: float = 2.0,
    stop_after: int | None = None,
    wandb: str | None = None,
) -> dict[str, Trained]:
    """Trains every combination of settings in parallel, with `Config.seeds` seeds each.

    A combination has the same seeds, the same numbers up to rounding, and the same folder as a
    separate training. Only the checkpoint is shared, and lies in the parent folder.

    Args:
        config: configuration of all combinations; the values of the sweep replace its settings.
        sweep: values by the name of a setting; see `SWEPT`.
        folder: folder of the checkpoint, with a subfolder per combination.
        report: as for `training.train`; speed is that of one seed of one combination.
        progress: called with a description of the current step before the first update.
        checkpoint_minutes: minutes between checkpoints.
        stop_after: number of updates after which to stop early, with a checkpoint.
        wandb: as for `training.train`; each combination is a run.

    Returns:
        The result of each combination, by its folder.

    Raises:
        OptionError: a setting cannot be swept, or the folder holds another training.
        FileError: the folder cannot be made, or its checkpoint cannot be read.
        KeyboardInterrupt: the user pressed Ctrl-C; the checkpoint has been written.
    """
    several = configs(config, sweep)
    asked = stated_as(sweep)
    metadata = stated(config, folder, False, sweep=asked)
    before = 0 if metadata is None else metadata["updates"]
    environment, processes = make(config.env, **config.options), Processes()
    by = combining(config, folder, metadata, processes)
    by.keep(folder)
    progress("compiling")
    learner = _learner(config, several, list(sweep), environment, by.aggregate)
    total = len(several) * config.seeds
    program = Program(learner, devices_of(config.devices), config.seed, total, groups=len(several))
    state = program.start() if not before else _read(folder, program, processes)
    run = _Sweep(config, asked, several, folder, environment, program)

    with contextlib.ExitStack() as stack:
        training = Training(Progress(state, before), run.write, processes)
        steps = before * config.settings.steps
        for name in several:
            make_folder(folder / name)
        logs = [Log(folder / name, before, steps, wandb) for name in several]
        opened = stack.enter_context(_all(logs))
        training.run(
            config.updates if stop_after is None else min(stop_after, config.updates),
            run.advance,
            lambda now, metrics: report(run.record(opened, now, metrics)),
            log=contextlib.nullcontext(),
            pace=run.pace,
            checkpoint_minutes=checkpoint_minutes,
            most_per_call=AT_ONCE,
        )
    return run.finish(training.progress, before, learner.base)


def _learner(
    config: Config,
    several: Mapping[str, Config],
    swept: Sequence[str],
    environment: Environment,
    aggregate: Any,
) -> SweptLearner:
    """A learner that contains every combination."""
    row = algorithms.algorithm(config.algorithm)

    def made(settings: Any) -> Learner:
        return row.build(environment, settings, config.devices, config.updates, aggregate)

    def remade(values: Mapping[str, Array]) -> Learner:
        settings = copy.copy(config.settings)
        # values are traced arrays here, so the checks at construction would fail
        for name, value in values.items():
            object.__setattr__(settings, name, value)
        return made(settings)

    each = [one.settings for one in several.values()]
    values = {
        name: np.repeat(np.array([getattr(one, name) for one in each], np.float32), config.seeds)
        for name in swept
    }
    return SweptLearner(made(config.settings), remade, values)


def _read(folder: Path, program: Program, processes: Processes) -> Any:
    shapes = program.shapes()
    return processes.place(checkpoint.load(folder / CHECKPOINT, shapes), shapes, program.sharding)


@contextlib.contextmanager
def _all(logs: Sequence[Log]) -> Iterator[Sequence[Log]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(log) for log in logs]


@dataclasses.dataclass(frozen=True)
class _Sweep:
    """The program of a sweep, with its checkpoints and reports."""

    config: Config
    sweep: Mapping[str, list[float]]
    several: Mapping[str, Config]
    folder: Path
    environment: Environment
    program: Program
    pace: Pace = dataclasses.field(default_factory=lambda: Pace(RECENT_CALLS))

    def advance(self, progress: Progress[Any], updates: int) -> tuple[Any, Metrics]:
        """One call of the program."""
        with self.pace.timed(updates):
            return self.program.run(progress.state, updates)

    def record(self, logs: Sequence[Log], progress: Progress[Any], metrics: Metrics) -> Report:
        """Logs each update of a call to each combination's folder, and reports over all."""
        steps = self.config.settings.steps
        for place, log in enumerate(logs):
            mine = self._of(place)
            own = jax.tree.map(lambda x, mine=mine: x[:, mine], metrics)
            rows.write(log, own, progress.updates, steps, self.environment.agents)
        left_out = self.program.left_out(progress.state)
        return report_of(self.config, progress.updates, metrics, self.pace, left_out)

    def write(self, progress: Progress[Any]) -> None:
        """Writes the checkpoint."""
        about = description(self.config, (), updates=progress.updates, sweep=self.sweep)
        checkpoint.save(self.folder / CHECKPOINT, progress.state, about)

    def finish(self, progress: Progress[Any], before: int, learner: Learner) -> dict[str, Trained]:
        """The result of each combination; writes finite policies if the training has ended."""
        parameters = jax.tree.map(np.asarray, self.program.parameters(progress.state))
        rate = self.pace.updates_per_s
        steps_per_s = None if rate is None else rate * self.config.settings.steps
        made = {}
        for place, (name, config) in enumerate(self.several.items()):
            mine = self._of(place)
            own = jax.tree.map(lambda x, mine=mine: x[mine], parameters)
            if progress.updates == config.updates and is_finite(own):
                about = description(config, (), agents=self.environment.agents)
                checkpoint.save(self.folder / name / POLICY, own, about)
            made[name] = Trained(config, self.environment, learner, own, before, steps_per_s)
        return made

    def _of(self, place: int) -> slice:
        """The slice of learners that belong to a combination."""
        return slice(place * self.config.seeds, (place + 1) * self.config.seeds)
