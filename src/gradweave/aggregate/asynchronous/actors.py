"""The processes of a run: servers and workers, as classes of Ray actors.

They make no decisions. The driver decides when a worker starts a step and when servers apply
gradients; arrays are sent between workers and servers directly.
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
    """Restricts JAX to one CPU thread; must be called before JAX starts."""
    flags = os.environ.get("XLA_FLAGS", "")
    if ONE_THREAD not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {ONE_THREAD}".strip()
    import jax

    jax.config.update("jax_platforms", "cpu")


class _Actor:
    """A process that ends when its raylet does."""

    def __init__(self) -> None:
        # If a raylet is killed and a process other than init adopts its children, they would
        # survive. So this process ends when its parent changes.
        Watch(math.inf, lambda _: os._exit(1), of=os.getppid())
        use_one_thread()

    def exit(self) -> None:
        """Ends the process."""
        os._exit(0)


class ServerActor(_Actor):
    """A server, which holds one range of the parameters and the optimizer's state for it."""

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
        """Number of the last command executed."""
        self.results: dict[int, Any] = {}
        """Results of commands, by number, until the driver has received them."""

    def ready(self) -> int:
        """The process id; returning it shows that the process runs."""
        return os.getpid()

    def restore(self) -> None:
        """Reads the server's shard of the checkpoint."""
        assert self.folder is not None
        self.shard = load_shard(shard_path(self.folder, self.number, self.updates), self.shard)

    def pull(self) -> tuple[int, NDArray[Any]]:
        """The number of updates, and the server's parameters [length]."""
        return self.updates, np.asarray(self.shard.parameters)

    def push(self, worker: int, clock: int, gradient: NDArray[Any] | None) -> None:
        """Receives a worker's gradient [length], which is applied later.

        Args:
            worker: number of the worker.
            clock: clock of the worker's step.
            gradient: None if the whole gradient is not finite, and is therefore skipped.
        """
        self.pushed[worker] = (clock, gradient)

    def execute(self, commands: list[tuple[int, str, tuple[Any, ...]]]) -> Any:
        """Executes commands of the driver, each only once even if it arrives repeatedly.

        Args:
            commands: number, method and arguments of all commands that the driver does not know to
                have been executed.

        Returns:
            The result of the last command.
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
            number: number of the update.
            steps: worker and clock of each gradient.
            scale: factor for the optimizer's step.
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
        """Writes the shard to a file for this number of updates; files of other updates remain."""
        assert self.folder is not None
        save_shard(shard_path(self.folder, self.number, self.updates), self.shard)


@dataclasses.dataclass(frozen=True)
class StepResult:
    """A worker's result of a step."""

    version: int
    """The smallest number of updates that any server had applied at the first pull."""
    loss: float
    finite: bool
    """Whether the gradient is finite; otherwise it was not sent."""
    pulled_bytes: NDArray[np.int64]
    """Bytes pulled from each of the [servers]."""
    pushed_bytes: NDArray[np.int64]
    """Bytes pushed to each of the [servers]."""
    aux: Any = None
    """See `Stepped.aux`."""


class _Pulls:
    """A step's pulls: the first at its start, later pulls after a given share of its duration."""

    def __init__(self, pull: Callable[[], list[tuple[int, Any]]], again_s: float) -> None:
        self._pull, self._again_s = pull, again_s
        self.first: Pulled | None = None
        self.bytes: NDArray[np.int64] = np.zeros(1, np.int64)
        """Bytes pulled from each of the [servers], over all pulls."""
        self.ends: NDArray[np.int64] = np.zeros(0, np.int64)
        """End of each server's range, [servers]."""

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
    """A worker, which pulls parameters, computes a gradient and pushes it."""

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
        """Clock of the last step, and the state before that step."""

    def started(self) -> None:
        """Does nothing; it returns once the process runs."""

    def ready(self) -> int:
        """The process id, returned once the state is restored and the computation compiled."""
        if self.before is None:  # otherwise a retried call
            self._restore()
        self.computation.ready(np.zeros(self.layout.size, self.layout.dtype))
        return os.getpid()

    def _restore(self) -> None:
        """Restores the state in the checkpoint, if it has one."""
        state = self.computation.state
        if self.folder is None or state is None:
            return
        while (path := state_there(self.folder, self.number, self.updates)) is not None:
            try:
                self.computation.state = load_state(path, state)
                return
            except FileError:
                if path.exists():  # otherwise a later checkpoint has replaced it
                    raise

    def save(self, updates: int, clock: int) -> bool:
        """Writes the state as it was before a step.

        Args:
            updates: updates of the checkpoint.
            clock: clock of the step: the next step or the last.

        Returns:
            False if a later step has begun, as when a lost call is repeated: the state is gone.
        """
        assert self.folder is not None
        state = self.computation.state
        if self.before is not None:
            last, before = self.before
            if last > clock:
                return False
            if last == clock:
                state = before
        if state is not None:
            save_state(state_path(self.folder, self.number, updates), state)
        return True

    def step(self, clock: int, epoch_s: float, *after: None) -> StepResult | None:
        """One step.

        Args:
            clock: clock of the step.
            epoch_s: start of the run, by `time.time`.
            after: results of the servers that the step has to wait for.

        Returns:
            The result, or None if a server was gone.
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
        except (RayActorError, ObjectLostError):  # also objects lost with a machine
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
        """The results of calls to servers; lost calls are retried."""
        import ray

        return results([RetriedCall(make, self.timeout_s) for make in remotes], ray.get)

    def _compute_timed(self, clock: int, epoch_s: float) -> tuple[Stepped, _Pulls]:
        """The computation's step, followed by a sleep for the rest of its planned duration."""
        start, begin = time.time() - epoch_s, time.perf_counter()
        duration = self.stragglers.duration_s(self.number, clock, self.workers, max(start, 0.0))
        pulls = _Pulls(
            lambda: self._call_all([server.pull.remote for server in self.servers]),
            begin + duration * self.computation.share,
        )
        if self.before is not None and self.before[0] == clock:  # a call that is repeated
            self.computation.state = self.before[1]
        self.before = clock, self.computation.state
        step = self.computation.step(clock, pulls)
        time.sleep(max(0.0, begin + duration - time.perf_counter()))
        return step, pulls
