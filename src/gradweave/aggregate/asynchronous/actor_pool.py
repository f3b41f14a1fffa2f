"""The actors of a run: started, monitored, replaced and ended."""

import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gradweave.aggregate.asynchronous.actors import ServerActor, WorkerActor
from gradweave.aggregate.asynchronous.calls import RetriedCall, results
from gradweave.aggregate.asynchronous.layout import to_host
from gradweave.aggregate.asynchronous.task import Task
from gradweave.common.wording import counted
from gradweave.errors import GradweaveError, RunError
from gradweave.processes.ray_cluster import Cluster

EXIT_S = 0.5
"""Time that actors have to receive the call to exit."""


class ServerLost(Exception):
    """A server, and with it its part of the parameters, is gone or does not respond."""

    def __init__(self, server: int | None, reason: str = "") -> None:
        name = "a server" if server is None else f"server {server}"
        super().__init__(f"{name} was lost" + (f" ({reason})" if reason else ""))


class ActorPool:
    """Servers and workers as Ray actors.

    They are spread over the machines of a cluster: the servers in turn, the workers as Ray decides.
    Servers request no CPUs from Ray, so that any number of them starts on any machine.
    """

    def __init__(
        self,
        cluster: Cluster,
        task: Task,
        folder: str | None,
        updates: int,
        timeout_s: float,
        worker_cpus: float = 0.0,
    ) -> None:
        """Starts all actors.

        Args:
            cluster: the Ray cluster.
            task: the task to train.
            folder: folder of the servers' checkpoints.
            updates: updates of the checkpoint to read; 0 to start with the task's parameters.
            timeout_s: how long a server may not respond, since it may be busy or its disk slow, and
                how long lost calls are retried.
            worker_cpus: CPUs that each worker requests; it waits until a machine has them free.
        """
        self._cluster, ray = cluster, cluster.ray
        self._ray, self._task, self._restores = ray, task, updates > 0
        self._timeout_s, self._folder = timeout_s, folder
        start, server = to_host(task.params, task.layout()), ray.remote(ServerActor)
        self.servers = [
            server.options(num_cpus=0, scheduling_strategy=machine).remote(
                number, start[begin:end], task.optimizer, folder, updates
            )
            for number, ((begin, end), machine) in enumerate(
                zip(task.ranges(), itertools.cycle(cluster.affinities()), strict=False)
            )
        ]
        self._worker_class = ray.remote(WorkerActor).options(
            num_cpus=worker_cpus, scheduling_strategy="SPREAD"
        )
        self.workers = [self._start_worker(worker, 0, updates) for worker in range(task.workers)]

    def ready_servers(self) -> list[int]:
        """Waits until all servers are ready, and returns their process ids."""
        pids = self.results([self.call(server.ready.remote) for server in self.servers])
        if self._restores:
            self.results([self.call(server.restore.remote) for server in self.servers])
        return pids

    def ready_workers(
        self, count: int, replaced: Callable[[int], RetriedCall]
    ) -> tuple[dict[int, int], dict[int, RetriedCall]]:
        """Waits until a number of workers are ready.

        Args:
            count: number of workers to wait for.
            replaced: called with a worker that died; returns the call that starts its replacement.

        Returns:
            By worker, the process ids of those that are ready, and the pending calls of the others,
            which will return theirs.

        Raises:
            RunError: the workers were not ready within `timeout_s`.
        """
        calls: dict[int, RetriedCall] = {}
        pids: dict[int, int] = {}
        if self._task.computation is not None:
            # One worker compiles first; the others then read its result from JAX's compilation
            # cache, if it is enabled.
            first = self._first_started()
            calls[first] = self.call(self.workers[first].ready.remote)
            self._await_ready(calls, pids, 1, replaced)
        calls |= {
            number: self.call(one.ready.remote)
            for number, one in enumerate(self.workers)
            if number not in pids
        }
        self._await_ready(calls, pids, count, replaced)
        return pids, calls

    def _first_started(self) -> int:
        """The first worker that found room on a machine."""
        number_of = {one.started.remote(): number for number, one in enumerate(self.workers)}
        done = self._cluster.wait(list(number_of), self._timeout_s)
        return number_of[done[0]] if done else 0

    def _await_ready(
        self,
        calls: dict[int, RetriedCall],
        pids: dict[int, int],
        count: int,
        replaced: Callable[[int], RetriedCall],
    ) -> None:
        """Moves workers from `calls` to `pids` until `count` of them are ready."""
        while len(pids) < count:
            number_of = {call.reference: number for number, call in calls.items()}
            done = self._cluster.wait(list(number_of), self._timeout_s)
            if not done:
                raise RunError(
                    f"{len(pids)} of {counted(count, 'worker')} ready after {self._timeout_s:g} s: "
                    "add room to the Ray cluster, or lower min_workers or worker_cpus"
                )
            for number in (number_of[reference] for reference in done):
                call = calls.pop(number)
                try:
                    (pids[number],) = results([call], self._cluster.get)
                except self._ray.exceptions.RayActorError:
                    self.check_servers()
                    calls[number] = replaced(number)
                except self._ray.exceptions.RayError as error:
                    raise self.explained(error) from error

    def replace(self, worker: int, clock: int, updates: int) -> RetriedCall:
        """Starts a new actor that replaces a worker.

        Args:
            worker: number of the worker.
            clock: clock of its next step.
            updates: updates of the checkpoint that has its state; 0 for no checkpoint.

        Returns:
            A call that returns the actor's process id when it is ready.
        """
        self._kill(self.workers[worker])
        self.workers[worker] = self._start_worker(worker, clock, updates)
        return self.call(self.workers[worker].ready.remote)

    def save_states(
        self, updates: int, clocks: Sequence[int], there: Sequence[bool]
    ) -> list[RetriedCall]:
        """Requests the workers that are running to write their states, if they have any.

        Ray executes such a call after the worker's current step and before its next step.

        Args:
            updates: updates of the checkpoint.
            clocks: clock at which each worker would resume.
            there: whether each worker is running.
        """
        if self._task.computation is None:
            return []
        return [
            self.call(partial(worker.save.remote, updates, clock))
            for worker, clock, is_there in zip(self.workers, clocks, there, strict=True)
            if is_there
        ]

    def saved_states(self, calls: list[RetriedCall]) -> bool:
        """Whether all calls of `save_states` succeeded; no worker may have died or been late."""
        try:
            return all(results(calls, self._cluster.get))
        except self._ray.exceptions.RayActorError:
            return False
        except self._ray.exceptions.RayError as error:
            raise self.explained(error) from error

    def call(self, make: Callable[[], Any]) -> RetriedCall:
        """Makes a call, and retries it for `timeout_s` if it is lost."""
        return RetriedCall(make, self._timeout_s)

    def all_done(self, calls: list[RetriedCall]) -> bool:
        """Whether all results have arrived."""
        references = [call.reference for call in calls]
        if not references:
            return True
        return len(self._cluster.wait(references, 0, len(references))) == len(references)

    def results(self, calls: list[RetriedCall]) -> list[Any]:
        """The results of calls; lost calls are retried.

        Raises:
            ServerLost: a server is gone.
            GradweaveError: an actor raised it.
            RunError: an actor raised another error, a worker is gone, or Ray has ended.
        """
        try:
            return results(calls, self._cluster.get)
        except self._ray.exceptions.RayError as error:
            raise self.explained(error) from error

    def check_servers(self) -> None:
        """Raises `ServerLost` if a server is gone."""
        for number, server in enumerate(self.servers):
            try:
                results(
                    [self.call(server.ready.remote)],
                    lambda references: self._cluster.get(references, self._timeout_s),
                )
            except (
                self._ray.exceptions.RayActorError,
                # its machine went away before the actor started
                self._ray.exceptions.ActorUnschedulableError,
                self._ray.exceptions.GetTimeoutError,
            ) as error:
                raise ServerLost(number, _last_line(error)) from error

    def explained(self, error: Exception) -> GradweaveError:
        """The error to raise instead of Ray's: the Gradweave error inside it, if there is one.

        Raises:
            ServerLost: a server is gone.
        """
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, GradweaveError):
            return cause
        self.check_servers()
        return RunError(
            f"the run on Ray ended: {type(cause).__name__}: {_last_line(cause)}; the processes' "
            f"logs are in {self._cluster.logs()}"
        )

    def close(self) -> None:
        """Ends all actors."""
        actors = (*self.workers, *self.servers)
        if self._cluster.lost:
            # Actors are called directly, since no raylet may be left to kill them.
            for actor in actors:
                actor.exit.remote()
            time.sleep(EXIT_S)
            return
        for actor in actors:
            self._kill(actor)

    def _start_worker(self, worker: int, clock: int, updates: int) -> Any:
        task = self._task
        return self._worker_class.remote(
            worker,
            task.workers,
            self.servers,
            task.layout(),
            task.computations,
            clock,
            task.stragglers,
            self._timeout_s,
            self._folder,
            updates,
        )

    def _kill(self, actor: Any) -> None:
        with contextlib.suppress(Exception):
            self._ray.kill(actor)


def _last_line(error: BaseException) -> str:
    """The last line of an error's message, which has the reason."""
    return f"{(str(error).strip().splitlines() or [''])[-1].strip():.200}"
