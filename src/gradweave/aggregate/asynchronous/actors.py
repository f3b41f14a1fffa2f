"""The processes of a run: servers and workers, as classes that Ray makes actors of.

Nothing here decides anything. The driver says when a worker begins a step and when servers apply
gradients; arrays go between workers and servers directly.
"""

import dataclasses
import math
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optax
from numpy.typing import NDArray

from gradweave.aggregate.asynchronous.calls import Call, answers
from gradweave.aggregate.asynchronous.checkpoint import load_shard, save_shard, shard_path
from gradweave.aggregate.asynchronous.layout import Layout
from gradweave.aggregate.asynchronous.shard import applying, fresh
from gradweave.aggregate.asynchronous.stragglers import Stragglers
from gradweave.aggregate.asynchronous.task import Gradient, flat_gradient
from gradweave.processes.watch import Watch

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"


def one_thread() -> None:
    """Has JAX compute on one thread of the processor; to be called before it starts."""
    flags = os.environ.get("XLA_FLAGS", "")
    if ONE_THREAD not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {ONE_THREAD}".strip()
    import jax

    jax.config.update("jax_platforms", "cpu")


class _Actor:
    """What servers and workers have in common."""

    def __init__(self) -> None:
        # A raylet that is killed leaves its workers where some other process than init adopts them.
        Watch(math.inf, lambda _: os._exit(1), of=os.getppid())
        one_thread()

    def leave(self) -> None:
        """Ends the process."""
        os._exit(0)


class Server(_Actor):
    """Holds one range of the parameters and the optimizer's state for it."""

    def __init__(
        self,
        number: int,
        start: NDArray[Any],
        optimizer: optax.GradientTransformation,
        folder: str | None,
        updates: int,
    ) -> None:
        super().__init__()
        self.number, self.folder, self.updates = number, folder, updates
        self.shard = fresh(optimizer, start)
        self._apply = applying(optimizer)
        self.pushed: dict[int, tuple[int, NDArray[Any] | None]] = {}
        self.followed = 0
        self.answers: dict[int, Any] = {}

    def ready(self) -> int:
        """Its process id, once it is there."""
        return os.getpid()

    def restore(self) -> None:
        """Reads its shard after the updates that it was hired with."""
        assert self.folder is not None
        self.shard = load_shard(shard_path(self.folder, self.number, self.updates), self.shard)

    def pull(self) -> tuple[int, NDArray[Any]]:
        """Number of updates, and the parameters [length]."""
        return self.updates, np.asarray(self.shard.parameters)

    def push(self, worker: int, clock: int, gradient: NDArray[Any] | None) -> None:
        """Takes a worker's gradient [length] and keeps it until told to apply it.

        Args:
            worker: whose it is.
            clock: of the worker's step.
            gradient: None where the whole gradient is not finite, and so is left out.
        """
        self.pushed[worker] = (clock, gradient)

    def follow(self, orders: list[tuple[int, str, tuple[Any, ...]]]) -> Any:
        """Carries out what the driver orders, each order once, however often it comes.

        Args:
            orders: number, method and arguments of each: the first that the driver does not know to
                be carried out, and those after it.

        Returns:
            The answer to the last one.
        """
        for number, what, given in orders:
            if number > self.followed:
                self.answers[number] = getattr(self, what)(*given)
                self.followed = number
        first, last = orders[0][0], orders[-1][0]
        self.answers = {number: made for number, made in self.answers.items() if number >= first}
        return self.answers[last]

    def apply(self, number: int, turns: list[tuple[int, int]], scale: float) -> None:
        """Applies gradients that were pushed.

        Args:
            number: of the update.
            turns: worker and clock of each gradient.
            scale: of the optimizer's step.
        """
        if number != self.updates + 1:
            raise RuntimeError(f"server {self.number}: update {number} after {self.updates}")
        gradients = []
        for worker, clock in turns:
            came, gradient = self.pushed.pop(worker)
            if came != clock:
                raise RuntimeError(f"server {self.number}: worker {worker}: {came}, not {clock}")
            gradients.append(gradient)
        self.shard = self._apply(self.shard, gradients, scale)
        self.updates = number

    def save(self) -> None:
        """Writes the shard beside those of other updates."""
        assert self.folder is not None
        save_shard(shard_path(self.folder, self.number, self.updates), self.shard)


@dataclasses.dataclass(frozen=True)
class Pushed:
    """What a worker tells of a step that it has made."""

    version: int
    """The fewest updates that a server had applied when it was pulled from."""
    loss: float
    finite: bool
    """Whether the gradient is; if not, nothing of it was sent."""
    pulled_bytes: NDArray[np.int64]
    """[servers]."""
    pushed_bytes: NDArray[np.int64]
    """[servers]."""


class Worker(_Actor):
    """Pulls parameters, computes a gradient, pushes it."""

    def __init__(
        self,
        number: int,
        workers: int,
        servers: list[Any],
        layout: Layout,
        gradient: Gradient,
        seed: int,
        stragglers: Stragglers,
        timeout_s: float,
    ) -> None:
        super().__init__()
        self.timeout_s = timeout_s
        self.number, self.workers, self.servers = number, workers, servers
        self.layout, self.stragglers = layout, stragglers
        self.gradient = flat_gradient(gradient, layout, seed)

    def ready(self) -> int:
        """Its process id, once its gradient is compiled."""
        self.compute(np.zeros(self.layout.size, self.layout.dtype), 0)
        return os.getpid()

    def compute(self, vector: NDArray[Any], clock: int) -> tuple[float, NDArray[Any]]:
        """The loss, and the gradient [size]."""
        loss, gradient = self.gradient(vector, self.number, clock)
        return float(loss), np.asarray(gradient)

    def step(self, clock: int, epoch_s: float, *after: None) -> Pushed | None:
        """One step.

        Args:
            clock: of the step.
            epoch_s: when the run began, by `time.time`.
            after: the servers' answers that the step must come after.

        Returns:
            What it did; None where a server was not there.
        """
        from ray.exceptions import RayActorError

        try:
            parts = self._answers([server.pull.remote for server in self.servers])
            vectors = [vector for _, vector in parts]
            loss, gradient = self.lasting(np.concatenate(vectors), clock, epoch_s)
            ends = np.cumsum([len(vector) for vector in vectors])
            pieces = np.split(gradient, ends[:-1])
            finite = bool(np.isfinite(gradient).all())
            each = zip(self.servers, pieces if finite else [None] * len(pieces), strict=True)
            self._answers(
                [partial(server.push.remote, self.number, clock, piece) for server, piece in each]
            )
        except RayActorError:
            return None
        return Pushed(
            min(version for version, _ in parts),
            loss,
            finite,
            np.array([vector.nbytes for vector in vectors]),
            np.array([finite * piece.nbytes for piece in pieces]),
        )

    def _answers(self, asked: list[Callable[[], Any]]) -> list[Any]:
        """What servers answer; what Ray loses is asked again."""
        import ray

        return answers([Call(make, self.timeout_s) for make in asked], ray.get)

    def lasting(
        self, vector: NDArray[Any], clock: int, epoch_s: float
    ) -> tuple[float, NDArray[Any]]:
        """`compute`, made to last as long as is planned."""
        start, begin = time.time() - epoch_s, time.perf_counter()
        made = self.compute(vector, clock)
        duration = self.stragglers.duration_s(self.number, clock, self.workers, max(start, 0.0))
        time.sleep(max(0.0, begin + duration - time.perf_counter()))
        return made


def folder_of(path: Path | None) -> str | None:
    """A checkpoint's folder as servers are told it, whatever their working directory."""
    return None if path is None else str(path.absolute())
