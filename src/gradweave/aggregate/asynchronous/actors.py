"""The processes of a run: servers and workers, as classes of Ray actors.

They decide nothing. The driver says when a worker begins a step and when servers apply gradients;
arrays go between workers and servers directly.
"""

import dataclasses
import math
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import optax
from numpy.typing import NDArray

from gradweave.aggregate.asynchronous.calls import RetriedCall, results
from gradweave.aggregate.asynchronous.checkpoint import (
    load_shard,
    load_state,
    save_shard,
    save_state,
    shard_path,
    state_path,
    state_there,
)
from gradweave.aggregate.asynchronous.layout import Layout
from gradweave.aggregate.asynchronous.shard import compiled_apply, initial_shard
from gradweave.aggregate.asynchronous.stragglers import Stragglers
from gradweave.aggregate.asynchronous.task import Computation, Pulled, Stepped
from gradweave.errors import FileError
from gradweave.processes.watch import Watch

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"


def use_one_thread() -> None:
    """Has JAX compute on one CPU thread; to be called before it starts."""
    flags = os.environ.get("XLA_FLAGS", "")
    if ONE_THREAD not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {ONE_THREAD}".strip()
    import jax

    jax.config.update("jax_platforms", "cpu")


class _Actor:
    """A process that ends with its raylet."""

    def __init__(self) -> None:
        # A killed raylet's children live on where a process other than init adopts them.
        Watch(math.inf, lambda _: os._exit(1), of=os.getppid())
        use_one_thread()

    def exit(self) -> None:
        """Ends the process."""
        os._exit(0)


class ServerActor(_Actor):
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
        self.shard = initial_shard(optimizer, start)
        self._apply = compiled_apply(optimizer)
        self.pushed: dict[int, tuple[int, NDArray[Any] | None]] = {}
        self.executed = 0
        """Number of the last command."""
        self.results: dict[int, Any] = {}
        """Of commands, by number, until the driver has them."""

    def ready(self) -> int:
        """Its process id, once it runs."""
        return os.getpid()

    def restore(self) -> None:
        """Reads its shard of the checkpoint."""
        assert self.folder is not None
        self.shard = load_shard(shard_path(self.folder, self.number, self.updates), self.shard)

    def pull(self) -> tuple[int, NDArray[Any]]:
        """The number of updates, and the parameters [length]."""
        return self.updates, np.asarray(self.shard.parameters)

    def push(self, worker: int, clock: int, gradient: NDArray[Any] | None) -> None:
        """Receives a worker's gradient [length], to be applied later.

        Args:
            worker: whose it is.
            clock: of the worker's step.
            gradient: None where the whole gradient is not finite, and so is left out.
        """
        self.pushed[worker] = (clock, gradient)

    def execute(self, commands: list[tuple[int, str, tuple[Any, ...]]]) -> Any:
        """Executes commands of the driver, each once, however often it arrives.

        Args:
            commands: number, method and arguments of each: all that the driver does not know to be
                executed.

        Returns:
            The result of the last one.
        """
        for number, method, arguments in commands:
            if number > self.executed:
                self.results[number] = getattr(self, method)(*arguments)
                self.executed = number
        first, last = commands[0][0], commands[-1][0]
        self.results = {
            number: result for number, result in self.results.items() if number >= first
        }
        return self.results[last]

    def apply(self, number: int, steps: list[tuple[int, int]], scale: float) -> None:
        """Applies gradients that were pushed.

        Args:
            number: of the update.
            steps: worker and clock of each gradient.
            scale: of the optimizer's step.
        """
        if number != self.updates + 1:
            raise RuntimeError(f"server {self.number}: update {number} after {self.updates}")
        gradients = []
        for worker, clock in steps:
            pushed, gradient = self.pushed.pop(worker)
            if pushed != clock:
                raise RuntimeError(f"server {self.number}: worker {worker}: {pushed}, not {clock}")
            gradients.append(gradient)
        self.shard = self._apply(self.shard, gradients, scale)
        self.updates = number

    def save(self) -> None:
        """Writes the shard beside those of other updates."""
        assert self.folder is not None
        save_shard(shard_path(self.folder, self.number, self.updates), self.shard)


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What a worker reports of a step."""

    version: int
    """The fewest updates that any server had applied when it was first pulled from."""
    loss: float
    finite: bool
    """Whether the gradient is; if not, it was not sent."""
    pulled_bytes: NDArray[np.int64]
    """[servers]."""
    pushed_bytes: NDArray[np.int64]
    """[servers]."""
    aux: Any = None
    """As `Stepped.aux`."""


class _Pulls:
    """A step's pulls: the first at its beginning, others once so much of its duration is over."""

    def __init__(self, pull: Callable[[], list[tuple[int, Any]]], again_s: float) -> None:
        self._pull, self._again_s = pull, again_s
        self.first: Pulled | None = None
        self.bytes: NDArray[np.int64] = np.zeros(1, np.int64)
        """[servers], of all pulls together."""
        self.ends: NDArray[np.int64] = np.zeros(0, np.int64)
        """[servers] where each server's range ends."""

    def __call__(self) -> Pulled:
        if self.first is not None:
            time.sleep(max(0.0, self._again_s - time.perf_counter()))
        parts = self._pull()
        vectors = [vector for _, vector in parts]
        self.ends = np.cumsum([len(vector) for vector in vectors])
        self.bytes = self.bytes + np.array([vector.nbytes for vector in vectors])
        pulled = Pulled(min(version for version, _ in parts), np.concatenate(vectors))
        self.first = self.first or pulled
        return pulled


class WorkerActor(_Actor):
    """Pulls parameters, computes a gradient, pushes it."""

    def __init__(
        self,
        number: int,
        workers: int,
        servers: list[Any],
        layout: Layout,
        computations: Callable[[int, int], Computation],
        clock: int,
        stragglers: Stragglers,
        timeout_s: float,
        folder: str | None,
        updates: int,
    ) -> None:
        super().__init__()
        self.timeout_s = timeout_s
        self.number, self.workers, self.servers = number, workers, servers
        self.layout, self.stragglers = layout, stragglers
        self.folder, self.updates = folder, updates
        self.computation = computations(number, clock)
        self.before: tuple[int, Any] | None = None
        """Clock of the last step, and the state before it."""

    def started(self) -> None:
        """Does nothing, once the process runs."""

    def ready(self) -> int:
        """Its process id, once it has its state and what it computes with is compiled."""
        if self.before is None:  # else called again
            self._restore()
        self.computation.ready(np.zeros(self.layout.size, self.layout.dtype))
        return os.getpid()

    def _restore(self) -> None:
        """Takes the state of the checkpoint, if it has one."""
        state = self.computation.state
        if self.folder is None or state is None:
            return
        while (path := state_there(self.folder, self.number, self.updates)) is not None:
            try:
                self.computation.state = load_state(path, state)
                return
            except FileError:
                if path.exists():  # else a later checkpoint replaced it meanwhile
                    raise

    def save(self, updates: int, clock: int) -> None:
        """Writes its state as it was before a step.

        Args:
            updates: of the checkpoint.
            clock: of the step: the next one, or the last.
        """
        assert self.folder is not None
        state = self.computation.state
        if self.before is not None and self.before[0] == clock:
            state = self.before[1]
        if state is not None:
            save_state(state_path(self.folder, self.number, updates), state)

    def step(self, clock: int, epoch_s: float, *after: None) -> StepResult | None:
        """One step.

        Args:
            clock: of the step.
            epoch_s: when the run began, by `time.time`.
            after: the servers' results that the step has to wait for.

        Returns:
            None where a server was gone.
        """
        from ray.exceptions import ObjectLostError, RayActorError

        try:
            step, pulls = self._compute_timed(clock, epoch_s)
            pieces = np.split(step.gradient, pulls.ends[:-1])
            finite = bool(np.isfinite(step.gradient).all())
            each = zip(self.servers, pieces if finite else [None] * len(pieces), strict=True)
            self._call_all(
                [partial(server.push.remote, self.number, clock, piece) for server, piece in each]
            )
        except (RayActorError, ObjectLostError):  # also of what its machine held
            return None
        assert pulls.first is not None
        return StepResult(
            pulls.first.version,
            step.loss,
            finite,
            pulls.bytes,
            np.array([finite * piece.nbytes for piece in pieces]),
            step.aux,
        )

    def _call_all(self, remotes: list[Callable[[], Any]]) -> list[Any]:
        """The results of calls to servers; lost ones are retried."""
        import ray

        return results([RetriedCall(make, self.timeout_s) for make in remotes], ray.get)

    def _compute_timed(self, clock: int, epoch_s: float) -> tuple[Stepped, _Pulls]:
        """The computation's step, and a sleep until the planned duration is over."""
        start, begin = time.time() - epoch_s, time.perf_counter()
        duration = self.stragglers.duration_s(self.number, clock, self.workers, max(start, 0.0))
        pulls = _Pulls(
            lambda: self._call_all([server.pull.remote for server in self.servers]),
            begin + duration * self.computation.share,
        )
        if self.before is not None and self.before[0] == clock:  # a call that is made again
            self.computation.state = self.before[1]
        self.before = clock, self.computation.state
        step = self.computation.step(clock, pulls)
        time.sleep(max(0.0, begin + duration - time.perf_counter()))
        return step, pulls
