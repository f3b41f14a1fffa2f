"""A training through the asynchronous server, whose workers are processes that do not wait for all.

The server, its supervisor and its checkpoints are those of `gradweave.aggregate.asynchronous`. A
worker's step is one update of the learner on its share of the games. With W workers, every W steps
count as one update of the training and write one line of its log, whichever workers made them.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import optax

from gradweave.aggregate.asynchronous.history import UpdateReport
from gradweave.aggregate.asynchronous.task import Task
from gradweave.aggregate.asynchronous.train import train_on_ray as train_on_servers
from gradweave.aggregate.spec import AsynchronousSpec, parse
from gradweave.common.wording import counted
from gradweave.marl import checkpoint, results
from gradweave.marl.asynchronous.worker import Workers
from gradweave.marl.config import Config
from gradweave.marl.folder import POLICY, SERVERS, description, extended_from, stated
from gradweave.marl.games.environments import make
from gradweave.marl.learners import algorithms
from gradweave.marl.learners.learner import Metrics
from gradweave.marl.learners.own_network import named
from gradweave.marl.results import Report, Trained
from gradweave.training.held import one_at_a_time
from gradweave.training.log import Log

TIMEOUT_S = 600.0
"""Timeout without any sign of progress; it is long because a worker is silent while it compiles."""


@one_at_a_time
def train(
    config: Config,
    folder: Path,
    *,
    report: Callable[[Report], None] = lambda _: None,
    progress: Callable[[str], None] = lambda _: None,
    checkpoint_minutes: float = 2.0,
    stop_after: int | None = None,
    extend: bool = False,
    on_update: Callable[[UpdateReport], None] = lambda _: None,
    wandb: str | None = None,
) -> Trained:
    """Trains through the asynchronous server that `Config.aggregation` describes.

    Args:
        config: the configuration; `devices` is the number of workers.
        folder: folder of the checkpoint, the logs and the policy.
        report: called after every W steps of the W workers.
        progress: called with a description of the current step before the first update.
        checkpoint_minutes: minutes between checkpoints.
        stop_after: number of updates after which to stop early, with a checkpoint.
        extend: whether to resume from the end of a training with fewer steps instead of refusing.
        on_update: called with the report of each update of the server, which has its processes.
        wandb: as for `gradweave.marl.training.train`.

    Returns:
        The same as `gradweave.marl.training.train`. Under `Sync`, a training that was killed and
        resumed gives the same bits as an uninterrupted one; under other rules the result depends on
        the order of arrival.

    Raises:
        OptionError: the folder holds another training, or Ray is not installed.
        FileError: the folder cannot be made, or its checkpoint cannot be read.
        RunError: processes are lost repeatedly, or Ray is lost.
        KeyboardInterrupt: the user pressed Ctrl-C; the checkpoint has been written.
    """
    spec = parse(config.aggregation)
    assert isinstance(spec, AsynchronousSpec)
    spec.check_workers(config.devices)
    metadata = stated(config, folder, extend)
    before = 0 if metadata is None else metadata["updates"]
    extended = extended_from(config, metadata)
    environment = make(config.env, **config.options)
    network = None if config.network is None else named(config.network)
    learner = algorithms.build(config, environment, lambda optimizer: optimizer, network)
    progress(f"starting {counted(config.devices, 'worker')} and {counted(spec.servers, 'server')}")
    updates = config.updates if stop_after is None else min(stop_after, config.updates)
    task = server_task(config, spec, updates, description(config, extended))

    def heard(made: UpdateReport) -> None:
        on_update(made)
        rounds.add(made)

    with _Rounds(config, folder, environment.agents, before, report, wandb) as rounds:
        run = train_on_servers(
            task,
            folder=folder / SERVERS,
            checkpoint_every=1 if spec.consistency.together else config.devices,
            checkpoint_minutes=checkpoint_minutes,
            report=heard,
            timeout_s=TIMEOUT_S,
            worker_cpus=spec.worker_cpus,
            min_workers=spec.min_workers,
        )
    if updates == config.updates:
        about = description(config, extended, agents=environment.agents)
        checkpoint.save(folder / POLICY, run.params, about)
    return Trained(
        config,
        environment,
        learner,
        run.params,
        before,
        rounds.steps_per_s,
        extended=extended,
        run=run,
    )


def server_task(
    config: Config,
    spec: AsynchronousSpec,
    updates: int | None = None,
    about: Mapping[str, Any] = MappingProxyType({}),
) -> Task:
    """The task that the server trains.

    Args:
        config: configuration of the training.
        spec: the parsed aggregation of the configuration.
        updates: number of updates after which to end; by default all updates of the training.
        about: metadata for the checkpoints.
    """
    together = spec.consistency.together
    workers = Workers(config, spec.correction, together)
    compiled = workers.compiled
    start = compiled.learner.parameters(compiled.start(np.int32(0)))
    return Task(
        start,
        None,
        optax.sgd(spec.rate_for(config.devices)),
        workers=config.devices,
        steps=config.updates if updates is None else updates,
        consistency=spec.consistency,
        servers=spec.servers,
        seed=config.seed,
        scale_by_staleness=spec.scale_by_staleness,
        stragglers=spec.stragglers,
        computation=Workers(config, spec.correction, together),
        about=about,
    )


class _Rounds:
    """Gathers the workers' steps into lines of the log; a context manager that opens the log."""

    def __init__(
        self,
        config: Config,
        folder: Path,
        agents: tuple[str, ...],
        before: int,
        report: Callable[[Report], None],
        wandb: str | None,
    ) -> None:
        self._config, self._folder, self._agents = config, folder, agents
        self._report, self._before, self._wandb = report, before, wandb
        self._applied = before * config.devices
        self._gathered: list[tuple[Any, int]] = []
        self._not_finite = np.zeros(config.devices, np.int64)
        self._begin_s: float | None = None
        self._first = self._applied

    def __enter__(self) -> "_Rounds":
        self._log = self._opened(self._before)
        return self

    def __exit__(self, *error: object) -> None:
        self._log.__exit__(*error)

    def _opened(self, updates: int) -> Log:
        steps = updates * self._config.settings.steps
        return Log(self._folder, updates, steps, self._wandb).__enter__()

    @property
    def steps_per_s(self) -> float | None:
        """Speed since the first update that this process received, or None after that update."""
        if self._begin_s is None or self._applied <= self._first:
            return None
        settings, workers = self._config.settings, self._config.devices
        steps = (self._applied - self._first) * settings.steps / workers
        return steps / (self._last_s - self._begin_s)

    def add(self, made: UpdateReport) -> None:
        """Adds an update of the server."""
        workers, before = self._config.devices, made.gradients - len(made.aux)
        if before < self._applied:  # servers were lost, and the run resumed from its checkpoint
            self._log.__exit__()
            self._log, self._gathered = self._opened(before // workers), []
            self._begin_s = None
        self._gathered += zip(made.aux, made.stale, strict=True)
        self._not_finite[list(made.not_finite)] += 1
        self._applied, self._last_s = made.gradients, time.monotonic()
        if self._begin_s is None:
            self._begin_s, self._first = self._last_s, self._applied
        if before // workers < made.gradients // workers:
            self._line(made)

    def _line(self, made: UpdateReport) -> None:
        """Writes the log line of an update of the training, and reports it."""
        config, update = self._config, made.gradients // self._config.devices
        steps, metrics = (
            update * config.settings.steps,
            _together([aux.metrics for aux, _ in self._gathered]),
        )
        stale = np.mean([stale for _, stale in self._gathered])
        figures: dict[str, Any] = {**metrics.figures, "staleness": np.full(config.seeds, stale)}
        metrics = dataclasses.replace(metrics, figures=figures)
        line = results.row(metrics, update, steps, self._agents) | {
            "seconds": round(made.seconds, 3)
        }
        self._log.write([line])
        results.plot(self._log, line)
        self._gathered = []
        episodes, rate = metrics.episodes.sum(), self.steps_per_s or 0.0
        returns = np.sum(metrics.returns, 0)
        left = (config.updates - update) * config.settings.steps
        self._report(
            Report(
                update,
                config.updates,
                steps,
                float(returns.mean() / episodes) if episodes else None,
                rate,
                left / rate if rate else 0.0,
                tuple((returns / episodes).tolist()) if episodes else (),
                tuple(self._not_finite.tolist()),
                made.replaced,
                made.recovered,
            )
        )


def _together(each: list[Metrics]) -> Metrics:
    """The metrics of several steps: sums of counts, and means of figures."""
    sums = jax.tree.map(lambda *x: np.sum(x, 0), *each)
    figures = {name: x / len(each) for name, x in sums.figures.items()}
    return dataclasses.replace(sums, figures=figures)
