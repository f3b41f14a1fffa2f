"""The same protocol on a virtual clock: no Ray, no processes, and the same result in every run.

Clocks, staleness, shards and compiled functions are those of the run on Ray; only time is virtual.
"""

import dataclasses
import heapq
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gradweave.aggregate.asynchronous import clocks as protocol
from gradweave.aggregate.asynchronous.clocks import Clocks, Update
from gradweave.aggregate.asynchronous.history import (
    HistoryBuilder,
    Kept,
    Run,
    RunTraffic,
    UpdateReport,
)
from gradweave.aggregate.asynchronous.layout import to_host
from gradweave.aggregate.asynchronous.shard import compiled_apply, initial_shard
from gradweave.aggregate.asynchronous.task import Pulled, Stepped, Task
from gradweave.errors import OptionError


@dataclasses.dataclass(frozen=True)
class Death:
    """The death of a worker in the middle of a step, and its replacement."""

    worker: int
    clock: int
    """Clock of the step that is lost; the worker dies the first time it computes that step."""
    away_s: float
    """Time from the death until the replacement is ready."""


def simulate_training(
    task: Task,
    *,
    deaths: Iterable[Death] = (),
    overhead_s: float = 0.0,
    keep_every: int = 0,
    report: Callable[[UpdateReport], None] | None = None,
) -> Run:
    """Runs a task on a virtual clock.

    A step takes the time that `task.stragglers` plans, plus `overhead_s`, or a second if both are
    0; pulls, updates and decisions take no time. Steps that end at the same time are handled in the
    order of their workers' numbers. A step that pulls again does so after `Computation.share` of
    its duration. A replacement starts with the initial state of its computation.

    Args:
        task: the task to train.
        deaths: deaths of workers.
        overhead_s: time added to every step for its messages.
        keep_every: updates between copies of the parameters; 0 for no copies.
        report: called after each update.

    Returns:
        The same as `train`, in virtual seconds.

    Raises:
        OptionError: `overhead_s` or `keep_every` is below 0.

    >>> import jax, jax.numpy as jnp, optax
    >>> gradient = jax.value_and_grad(lambda x, draw: jnp.sum(x**2))
    >>> task = Task(jnp.ones(3), gradient, optax.sgd(0.1), workers=2, steps=4)
    >>> simulate_training(task).history.updates
    4
    """
    return _Simulation(task, tuple(deaths), overhead_s, keep_every, report).run()


class _Simulation:
    def __init__(
        self,
        task: Task,
        deaths: tuple[Death, ...],
        overhead_s: float,
        keep_every: int,
        report: Callable[[UpdateReport], None] | None,
    ) -> None:
        if not 0 <= overhead_s < math.inf:
            raise OptionError(f"overhead_s: expected 0 or more seconds, got {overhead_s}")
        if keep_every < 0:
            raise OptionError(f"keep_every: expected 0 or more updates, got {keep_every}")
        if task.stragglers.step_s + overhead_s == 0:
            overhead_s = 1.0
        self.task, self.overhead_s, self.keep_every = task, overhead_s, keep_every
        self.report = report
        self.deaths = {(death.worker, death.clock): death.away_s for death in deaths}
        self.layout = task.layout()
        self.computes = task.computations
        self.computations = [self.computes(worker, 0) for worker in range(task.workers)]
        self.apply = compiled_apply(task.optimizer)
        start = to_host(task.params, self.layout)
        self.shards = [initial_shard(task.optimizer, start[b:e]) for b, e in task.ranges()]
        self.clocks = protocol.initial(task.workers)
        self.history, self.kept, self.replaced = HistoryBuilder(), [], 0
        self.now_s = 0.0
        self.events: list[tuple[float, int, str]] = []
        self.read: dict[int, Pulled] = {}
        self.again: dict[int, Pulled] = {}
        """Second pulls of steps, by worker."""
        self.pushed: dict[int, tuple[Stepped, bool]] = {}
        """Result of each worker's step, and whether its gradient is finite."""
        self.steps = np.zeros(task.workers, np.int64)

    def run(self) -> Run:
        task = self.task
        while self.history.gradients < task.gradients:
            for worker in protocol.may_start(self.clocks, task.rule):
                self.start(worker)
            self.now_s, worker, event = heapq.heappop(self.events)
            getattr(self, event)(worker)
        shard_bytes = [(e - b) * self.layout.dtype.itemsize for b, e in task.ranges()]
        moved_bytes = np.outer(self.steps, shard_bytes)
        params = self.layout.tree(self.vector())
        traffic = RunTraffic(moved_bytes, moved_bytes.copy())
        return Run(params, self.history.build(), traffic, tuple(self.kept), self.replaced)

    def vector(self) -> Any:
        return np.concatenate([np.asarray(shard.parameters) for shard in self.shards])

    def pulled(self) -> Pulled:
        return Pulled(self.clocks.updates, self.vector())

    def start(self, worker: int) -> None:
        clock = self.clocks.clock[worker]
        self.clocks = protocol.start(self.clocks, worker)
        self.read[worker] = self.pulled()
        duration = self.overhead_s + self.task.stragglers.duration_s(
            worker, clock, self.task.workers, self.now_s
        )
        event = "die" if (worker, clock) in self.deaths else "push"
        heapq.heappush(self.events, (self.now_s + duration, worker, event))
        self.again.pop(worker, None)
        if (share := self.computations[worker].share) < 1:
            heapq.heappush(self.events, (self.now_s + share * duration, worker, "pull_again"))

    def pull_again(self, worker: int) -> None:
        self.again[worker] = self.pulled()

    def push(self, worker: int) -> None:
        read = self.read.pop(worker)
        pulls = iter([read, self.again.pop(worker, read)])
        step = self.computations[worker].step(self.clocks.clock[worker], lambda: next(pulls))
        finite = bool(np.isfinite(step.gradient).all())
        self.pushed[worker] = (step, finite)
        self.steps[worker] += 1
        self.advance(protocol.push(self.clocks, self.task.rule, worker, read.version))

    def die(self, worker: int) -> None:
        away_s = self.deaths.pop((worker, self.clocks.clock[worker]))
        heapq.heappush(self.events, (self.now_s + away_s, worker, "join"))
        self.replaced += 1
        if self.task.elastic:
            self.advance(protocol.remove(self.clocks, self.task.rule, worker))

    def join(self, worker: int) -> None:
        if self.task.elastic:
            self.clocks = protocol.rejoin(self.clocks, worker)
        self.computations[worker] = self.computes(worker, self.clocks.clock[worker])
        if not self.task.elastic:
            self.start(worker)

    def advance(self, decision: tuple[Clocks, Update | None]) -> None:
        self.clocks, update = decision
        if update is None:
            return
        pushed = [self.pushed[gradient.worker] for gradient in update.gradients]
        gradients = [step.gradient if finite else None for step, finite in pushed]
        scale = self.task.scale(update)
        self.shards = [
            self.apply(shard, [None if g is None else g[b:e] for g in gradients], scale)
            for shard, (b, e) in zip(self.shards, self.task.ranges(), strict=True)
        ]
        losses = [step.loss for step, _ in pushed]
        self.history.add(update, losses, [finite for _, finite in pushed], self.now_s)
        if self.keep_every and update.number % self.keep_every == 0:
            params = self.layout.tree(self.vector())
            kept = Kept(update.number, self.history.gradients, self.now_s, params)
            self.kept.append(kept)
        if self.report is not None:
            self.report(self.reported(update, losses))

    def reported(self, update: Update, losses: list[float]) -> UpdateReport:
        pushed = [(gradient.worker, *self.pushed[gradient.worker]) for gradient in update.gradients]
        return UpdateReport(
            update.number,
            self.history.gradients,
            self.task.gradients,
            float(np.mean(losses)),
            max(update.staleness),
            self.now_s,
            not_finite=tuple(worker for worker, _, finite in pushed if not finite),
            stale=update.staleness,
            aux=tuple(step.aux for _, step, _ in pushed),
            replaced=self.replaced,
        )
