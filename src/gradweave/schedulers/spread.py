"""Runs strategies in parallel: in local processes, or on the machines of a Ray cluster."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, InvalidStateError, ProcessPoolExecutor
from multiprocessing.synchronize import Event
from typing import Any

from gradweave.errors import OptionError, RunError
from gradweave.processes.ray_cluster import Cluster, cluster


@contextlib.contextmanager
def local_processes(workers: int) -> Iterator[Executor]:
    """Fresh processes on this machine, for `solve(executor=...)`.

    Args:
        workers: number of processes.
    """
    if workers < 1:
        raise OptionError(f"local_processes: workers: expected at least 1, got {workers}")
    # Not forked: compiled code and OR-Tools hold threads and locks.
    context = multiprocessing.get_context("spawn")
    over = context.Event()
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_end_with, initargs=(over,)
    ) as pool:
        try:
            yield pool
        finally:
            over.set()
            pool.shutdown(cancel_futures=True)


def _end_with(over: Event) -> None:
    """Makes a process end as soon as the search is over, even in the middle of its work.

    It ignores Ctrl-C, which a terminal sends to all processes: that is for the searching process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end() -> None:
        over.wait()
        os._exit(0)

    threading.Thread(target=end, daemon=True).start()


@contextlib.contextmanager
def ray_cluster(address: str | None = None) -> Iterator[Executor]:
    """A Ray cluster, for `solve(executor=...)`; each strategy is a task of one processor.

    Args:
        address: address of a running cluster, which must have Gradweave installed; if not given, a
            cluster is started on this machine and shut down afterwards.

    Raises:
        OptionError: if Ray (extra ``ray``) is not installed.
        RunError: if Ray cannot start or find the cluster.
    """
    with cluster(address) as ray_cluster:
        yield _RayExecutor(ray_cluster)


class _RayExecutor(Executor):
    """A minimal executor: each submitted call becomes a task."""

    def __init__(self, ray_cluster: Cluster) -> None:
        self._cluster = ray_cluster
        self._futures: list[Future[Any]] = []
        ray_cluster.when_lost(self._end)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._cluster.check()
        future = self._cluster.ray.remote(fn).remote(*args, **kwargs).future()
        self._futures.append(future)
        return future

    def _end(self, error: RunError) -> None:
        """Fails pending futures: Ray does not when it is gone itself."""
        for future in self._futures:
            with contextlib.suppress(InvalidStateError):
                future.set_exception(error)
