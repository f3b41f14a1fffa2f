"""The same protocol on a virtual clock: no Ray, no processes, the same result in every run.

Clocks, staleness, shards and compiled functions are those of the run on Ray; only time is virtual.
"""

import dataclasses
import heapq
import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from gradweave.aggregate.asynchronous import clocks as protocol
from gradweave.aggregate.asynchronous.clocks import Clocks, Update
from gradweave.aggregate.asynchronous.history import HistoryBuilder, Kept, Run, RunTraffic
from gradweave.aggregate.asynchronous.layout import to_host
from gradweave.aggregate.asynchronous.shard import compiled_apply, initial_shard
from gradweave.aggregate.asynchronous.task import Pulled, Task
from gradweave.errors import OptionError


@dataclasses.dataclass(frozen=True)
class Death:
    """A worker that dies in the middle of a step, and is replaced."""

    worker: int
    clock: int
    """Of the step that is lost; the worker dies the first time that it computes it."""
    away_s: float
    """From its death until its replacement is ready."""


def simulate(
    task: Task, *, deaths: Iterable[Death] = (), overhead_s: float = 0.0, keep_every: int = 0
) -> Run:
    """Runs a task on a virtual clock.

    A step takes as long as `task.stragglers` plans, plus `overhead_s`, or a second if both
    are 0; pulls, updates and decisions take no time. Steps that end at the same time are taken in
    the order of their workers' numbers. Where a step pulls again, it does so at its end. A worker
    that is replaced begins with the state of its computation as at first.

    Args:
        task: what to train.
        deaths: workers that die.
        overhead_s: added to every step, for its messages.
        keep_every: updates after which the parameters are kept each time; 0 keeps none.

    Returns:
        The same as `train`, in virtual seconds.

    Raises:
        OptionError: `overhead_s` or `keep_every` is below 0.

    >>> import jax, jax.numpy as jnp, optax
    >>> gradient = jax.value_and_grad(lambda x, draw: jnp.sum(x**2))
    >>> task = Task(jnp.ones(3), gradient, optax.sgd(0.1), workers=2, steps=4)
    >>> simulate(task).history.updates
    4
    """
    return _Simulation(task, tuple(deaths), overhead_s, keep_every).run()


class _Simulation:
    def __init__(
        self, task: Task, deaths: tuple[Death, ...], overhead_s: float, keep_every: int
    ) -> None:
        if not 0 <= overhead_s < math.inf:
            raise OptionError(f"overhead_s: expected 0 or more seconds, got {overhead_s}")
        if keep_every < 0:
            raise OptionError(f"keep_every: expected 0 or more updates, got {keep_every}")
        if task.stragglers.step_s + overhead_s == 0:
            overhead_s = 1.0
        self.task, self.overhead_s, self.keep_every = task, overhead_s, keep_every
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
        self.pushed: dict[int, tuple[float, Any]] = {}
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

    def push(self, worker: int) -> None:
        read = self.read.pop(worker)
        pulls = itertools.chain([read], iter(self.pulled, None))
        step = self.computations[worker].step(self.clocks.clock[worker], lambda: next(pulls))
        finite = bool(np.isfinite(step.gradient).all())
        self.pushed[worker] = (step.loss, step.gradient if finite else None)
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
        gradients = [gradient for _, gradient in pushed]
        finite = [gradient is not None for gradient in gradients]
        scale = self.task.scale(update)
        self.shards = [
            self.apply(shard, [None if g is None else g[b:e] for g in gradients], scale)
            for shard, (b, e) in zip(self.shards, self.task.ranges(), strict=True)
        ]
        self.history.add(update, [loss for loss, _ in pushed], finite, self.now_s)
        if self.keep_every and update.number % self.keep_every == 0:
            params = self.layout.tree(self.vector())
            kept = Kept(update.number, self.history.gradients, self.now_s, params)
            self.kept.append(kept)
