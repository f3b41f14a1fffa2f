"""A regression to train, the plain loop that `sync` must equal, and the protocol played alone."""

import dataclasses
import heapq
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gradweave.aggregate.asynchronous import Draw, Task
from gradweave.aggregate.asynchronous import clocks as protocol
from gradweave.aggregate.asynchronous.clocks import Clocks, Update
from gradweave.aggregate.asynchronous.consistency import Consistency


def regression() -> Callable[..., Any]:
    """(params, draw) -> (loss, gradient). A closure: Ray sends it as it is."""

    def loss(params: Any, draw: Draw) -> Any:
        x = jax.random.normal(draw.key, (16, 5))
        y = jnp.sin(x @ jnp.arange(5.0))
        hidden = jnp.tanh(x @ params["inner"]["w"] + params["inner"]["b"])
        return jnp.mean((hidden @ params["outer"] - y) ** 2)

    return jax.value_and_grad(loss)


def broken_at(worker: int, steps: int) -> Callable[..., Any]:
    """The same, but for one worker's first steps, in which one element of its gradient is NaN."""
    gradient = regression()

    def broken(params: Any, draw: Draw) -> Any:
        loss, made = gradient(params, draw)
        bad = (draw.worker == worker) & (draw.clock < steps)
        made["outer"] = made["outer"].at[1].set(jnp.where(bad, jnp.nan, made["outer"][1]))
        return loss, made

    return broken


def params() -> dict[str, Any]:
    random = np.random.default_rng(7)
    return {
        "inner": {"w": random.standard_normal((5, 3)).astype(np.float32), "b": np.zeros(3, "f4")},
        "outer": random.standard_normal(3).astype(np.float32),
    }


SIZE = 5 * 3 + 3 + 3


def task(**changes: Any) -> Task:
    given: dict[str, Any] = {
        "params": params(),
        "gradient": regression(),
        "optimizer": optax.adam(1e-2),
        "workers": 4,
        "steps": 12,
        "servers": 2,
        "seed": 3,
    }
    return Task(**(given | changes))


def plain_loop(of: Task) -> tuple[Any, list[float]]:
    """What `sync` stands for, without servers: parameters, and each gradient's loss."""
    now: Any = jax.tree.map(jnp.asarray, of.params)
    state, losses = of.optimizer.init(now), []
    for step in range(of.steps):
        each = []
        for worker in range(of.workers):
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(of.seed), worker), step)
            draw = Draw(key, jnp.int32(worker), jnp.int32(step))
            loss, gradient = of.gradient(now, draw)
            losses.append(float(loss))
            each.append(gradient)
        there = [g for g in each if all(np.isfinite(x).all() for x in jax.tree.leaves(g))]
        mean = jax.tree.map(lambda *g: sum(g[1:], g[0]) / len(g), *there)
        change, state = of.optimizer.update(mean, state, now)
        now = optax.apply_updates(now, change)
    return now, losses


def same(one: Any, other: Any) -> bool:
    """Bit for bit."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def close(one: Any, other: Any, tolerance: float = 1e-5) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in pairs)


@dataclasses.dataclass
class Played:
    """The protocol without parameters: who read when, what was applied."""

    reads: list[tuple[float, int, int, int]] = dataclasses.field(default_factory=list)
    """Time, worker, clock, the slowest present worker's clock."""
    updates: list[tuple[float, Update, int, tuple[bool, ...]]] = dataclasses.field(
        default_factory=list
    )
    """Time, update, the newest clock read by then, who was present."""


def play(
    rule: Consistency,
    workers: int,
    duration_s: Callable[[int, int], float],
    *,
    gradients: int,
    dies: Callable[[int, int], bool] = lambda worker, clock: False,
    away_s: float = 3.0,
    late: Collection[int] = (),
) -> Played:
    """Plays the protocol on a virtual clock; fails where everybody waits for somebody.

    Args:
        rule: the consistency.
        workers: how many.
        duration_s: of the step of a worker at a clock.
        gradients: applied before it ends.
        dies: whether a worker dies in the step; asked once for each.
        away_s: until it is replaced.
        late: workers that are not there at the beginning, and come as late as one is replaced.
    """
    played, clocks = Played(), protocol.without(protocol.initial(workers), late)
    events = [(away_s, worker, "join") for worker in sorted(late)]
    version, dead, applied = {}, set(), 0

    def take(now: float, decided: tuple[Clocks, Update | None]) -> Clocks:
        nonlocal applied
        after, update = decided
        if update is not None:
            newest = max(clock for _, _, clock, _ in played.reads)
            played.updates.append((now, update, newest, after.alive))
            applied += len(update.gradients)
        return after

    now = 0.0
    while applied < gradients:
        for worker in protocol.may_start(clocks, rule):
            clock = clocks.clock[worker]
            here = [c for c, p in zip(clocks.clock, clocks.alive, strict=True) if p]
            played.reads.append((now, worker, clock, min(here)))
            version[worker] = clocks.updates
            clocks = protocol.start(clocks, worker)
            what = "push"
            if (worker, clock) not in dead and dies(worker, clock):
                dead.add((worker, clock))
                what = "die"
            heapq.heappush(events, (now + duration_s(worker, clock), worker, what))
        assert events, "everybody waits for somebody"
        now, worker, what = heapq.heappop(events)
        if what == "push":
            clocks = take(now, protocol.push(clocks, rule, worker, version[worker]))
        elif what == "die":
            clocks = take(now, protocol.remove(clocks, rule, worker))
            heapq.heappush(events, (now + away_s, worker, "join"))
        else:
            clocks = protocol.rejoin(clocks, worker)
    return played
