"""The actors of a run: hired, asked whether they are there, replaced, dismissed."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

from gradweave.aggregate.asynchronous.actors import Server, Worker
from gradweave.aggregate.asynchronous.calls import Call, answers
from gradweave.aggregate.asynchronous.layout import host
from gradweave.aggregate.asynchronous.task import Task
from gradweave.errors import GradweaveError, RunError
from gradweave.processes.ray_cluster import Cluster

FAREWELL_S = 0.5
"""How long actors have to be told that they may go."""


class ServerLost(Exception):
    """A server is gone or silent, and with it its part of the parameters."""

    def __init__(self, server: int | None, how: str = "") -> None:
        who = "a server" if server is None else f"server {server}"
        super().__init__(f"{who} was lost" + (f" ({how})" if how else ""))


class Crew:
    """Servers and workers as Ray actors.

    They ask Ray for no processors, so that any number of them starts on any machine, and are spread
    over the machines of a cluster.
    """

    def __init__(
        self, cluster: Cluster, task: Task, folder: str | None, updates: int, timeout_s: float
    ) -> None:
        """Hires everybody.

        Args:
            cluster: where.
            task: what to train.
            folder: of checkpoints, for the servers.
            updates: of the checkpoint to read; 0 to begin with the task's parameters.
            timeout_s: how long a server may be silent, since it may be busy or its disk slow, and
                how long calls that Ray loses are made again.
        """
        self._cluster, ray = cluster, cluster.ray
        self._ray, self._task, self._restores = ray, task, updates > 0
        self._timeout_s = timeout_s
        self._options = {"num_cpus": 0, "scheduling_strategy": "SPREAD"}
        start = host(task.params, task.layout())
        server = ray.remote(Server).options(**self._options)
        self.servers = [
            server.remote(number, start[begin:end], task.optimizer, folder, updates)
            for number, (begin, end) in enumerate(task.ranges())
        ]
        self._worker = ray.remote(Worker).options(**self._options)
        self.workers = [self._hired(worker) for worker in range(task.workers)]

    def processes(self) -> tuple[list[int], list[int]]:
        """The process ids of servers and workers, once all are there and have what they need."""
        found = self.answers(
            [self.call(actor.ready.remote) for actor in (*self.servers, *self.workers)]
        )
        if self._restores:
            self.answers([self.call(server.restore.remote) for server in self.servers])
        return found[: len(self.servers)], found[len(self.servers) :]

    def replace(self, worker: int) -> Call:
        """Hires another actor in a worker's place.

        Returns:
            The call that answers its process id when it is there.
        """
        self._dismiss(self.workers[worker])
        self.workers[worker] = self._hired(worker)
        return self.call(self.workers[worker].ready.remote)

    def call(self, make: Callable[[], Any]) -> Call:
        """Makes a call, which is made again for `timeout_s` when it is lost."""
        return Call(make, self._timeout_s)

    def answered(self, calls: list[Call]) -> bool:
        """Whether all answers are there."""
        asked = [call.reference for call in calls]
        return len(self._cluster.wait(asked, 0, len(asked))) == len(asked)

    def answers(self, calls: list[Call]) -> list[Any]:
        """What actors answer; calls that Ray loses are made again.

        Raises:
            ServerLost: a server is gone.
            GradweaveError: that an actor raised.
            RunError: something else that an actor raised, or a worker is gone, or Ray is.
        """
        try:
            return answers(calls, self._cluster.get)
        except self._ray.exceptions.RayError as error:
            raise self.explained(error) from error

    def check_servers(self) -> None:
        """Raises `ServerLost` where a server is gone."""
        for number, server in enumerate(self.servers):
            try:
                answers(
                    [self.call(server.ready.remote)],
                    lambda asked: self._cluster.get(asked, self._timeout_s),
                )
            except (
                self._ray.exceptions.RayActorError,
                self._ray.exceptions.GetTimeoutError,
            ) as error:
                raise ServerLost(number, _short(error)) from error

    def explained(self, error: Exception) -> GradweaveError:
        """An error of Ray's in words, or the error of ours inside it.

        Raises:
            ServerLost: it is because a server is gone.
        """
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, GradweaveError):
            return cause
        self.check_servers()
        return RunError(
            f"the run on Ray ended: {type(cause).__name__}: {_short(cause)}; what the processes "
            f"said is in {self._cluster.logs()}"
        )

    def dismiss(self) -> None:
        """Ends all actors."""
        actors = (*self.workers, *self.servers)
        if self._cluster.lost:
            # They are told directly, since nobody is left who would end them.
            for actor in actors:
                actor.leave.remote()
            time.sleep(FAREWELL_S)
            return
        for actor in actors:
            self._dismiss(actor)

    def _hired(self, worker: int) -> Any:
        task = self._task
        return self._worker.remote(
            worker,
            task.workers,
            self.servers,
            task.layout(),
            task.gradient,
            task.seed,
            task.stragglers,
            self._timeout_s,
        )

    def _dismiss(self, actor: Any) -> None:
        with contextlib.suppress(Exception):
            self._ray.kill(actor)


def _short(error: BaseException) -> str:
    """The last line of what an error says, which names the reason."""
    return f"{(str(error).strip().splitlines() or [''])[-1].strip():.200}"
