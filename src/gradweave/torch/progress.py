"""Collectives of a group that run one after the other beside the caller."""

import functools
import queue
import statistics
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gradweave.execute.torch_distributed import threads

_FOREVER = timedelta(0)
"""What PyTorch calls no timeout of `wait`: the group's own holds."""


class PlannedWork(dist.Work):
    """What a caller waits for.

    Args:
        tensor: the result, once it is complete.
        run: computes it.
    """

    def __init__(self, tensor: torch.Tensor, run: Callable[[], None]) -> None:
        super().__init__()
        self._tensor, self._run = tensor, run
        self._over, self._error = threading.Event(), None
        self._future: torch.futures.Future[Any] = torch.futures.Future()

    def perform(self) -> None:
        """Runs it, in the progress thread."""
        try:
            with torch.no_grad():  # a tensor may be a parameter
                self._run()
        except Exception as error:  # for whoever waits
            self._error = error
        del self._run
        self._over.set()
        self._future.set_result([self._tensor])

    def wait(self, timeout: timedelta = _FOREVER) -> bool:
        """Waits until it is complete, and raises its error."""
        if not self._over.wait(timeout.total_seconds() if timeout > _FOREVER else None):
            raise RuntimeError(f"the collective is not complete after {timeout}")
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """The result as DDP takes it: a list of one tensor, or an error that C++ sees."""
        return self._future.then(self._value)

    def _value(self, done: torch.futures.Future[Any]) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return done.value()

    def is_completed(self) -> bool:
        """Whether it is complete, with or without an error."""
        return self._over.is_set()

    def is_success(self) -> bool:
        """Whether it is complete without an error."""
        return self._over.is_set() and self._error is None

    def exception(self) -> Exception | None:
        """Its error."""
        return self._error

    def synchronize(self) -> None:
        """Waits, as on CPUs there is no stream to wait for."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """The tensor."""
        return [self._tensor]


class Progress:
    """The thread in which they run; it ends with this object."""

    def __init__(self) -> None:
        self._jobs: threads.Jobs = queue.SimpleQueue()
        thread = threading.Thread(
            target=threads.do_jobs, args=(self._jobs,), name="gradweave-progress", daemon=True
        )
        thread.start()
        self.close = weakref.finalize(self, threads.end, self._jobs, [thread])
        """Ends the thread after what was started."""

    def start(self, tensor: torch.Tensor, run: Callable[[], None]) -> PlannedWork:
        """Starts a collective after those before it."""
        work = PlannedWork(tensor, run)
        self._jobs.put(work.perform)
        return work


@functools.cache
def handover_s() -> float:
    """Median time from the start of a collective that does nothing to the end of its wait."""
    progress, seconds = Progress(), []
    nothing = torch.empty(0)
    for _ in range(_HANDOVERS):
        begin = time.perf_counter()
        progress.start(nothing, lambda: None).wait()
        seconds.append(time.perf_counter() - begin)
    progress.close()
    return statistics.median(seconds)


_HANDOVERS = 21
