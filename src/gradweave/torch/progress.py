"""Runs a group's collectives one after the other in a thread, next to the caller."""

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
from gradweave.execute.torch_distributed.completions import Completions, Future
from gradweave.processes.owned import owned
from gradweave.torch.wrapper import untraced

_FOREVER = timedelta(0)
"""PyTorch's value for a `wait` without a timeout: the timeout of the group applies."""


class PlannedWork(dist.Work):
    """The work object of a collective that runs in the progress thread.

    Args:
        tensor: the result; valid once the work is complete.
        run: runs the collective.
        completions: completes the work's future.
    """

    def __init__(
        self, tensor: torch.Tensor, run: Callable[[], None], completions: Completions
    ) -> None:
        super().__init__()
        self._tensor, self._run, self._completions = tensor, run, completions
        self._over, self._error = threading.Event(), None
        self._future: Future | None = None
        self._complete: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def perform(self) -> None:
        """Runs the collective, in the progress thread."""
        try:
            with torch.no_grad():  # a tensor may be a parameter
                self._run()
        except Exception as error:  # raised again in `wait`
            self._error = error
        del self._run
        with self._lock:
            self._over.set()
            complete = self._complete
        if complete is not None:
            complete()

    def wait(self, timeout: timedelta = _FOREVER) -> bool:
        """Waits until the collective is complete, and raises its error if it failed."""
        if not self._over.wait(timeout.total_seconds() if timeout > _FOREVER else None):
            raise RuntimeError(f"the collective is not complete after {timeout}")
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> Future:
        """The result in the form that DDP expects: a list of one tensor, or an error that C++ sees.

        During a backward pass, the pass waits for the result at its end. C++ turns an error from a
        future's callback into a RuntimeError, and raises that in DDP's own wait; the wait here
        comes first and raises the original error, such as `LostServerError`.
        """
        if torch._C._current_graph_task_id() != -1:
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self.wait)
        with self._lock:
            if self._future is None:
                self._future, self._complete = self._completions.future(self._value)
                if self._over.is_set():
                    self._complete()
            return self._future

    def _value(self) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return [self._tensor]

    def is_completed(self) -> bool:
        """Whether the collective is complete, with or without an error."""
        return self._over.is_set()

    def is_success(self) -> bool:
        """Whether the collective is complete without an error."""
        return self._over.is_set() and self._error is None

    def exception(self) -> Exception | None:
        """The error of the collective, if it failed."""
        return self._error

    def synchronize(self) -> None:
        """Waits; on CPUs there is no stream to synchronize with."""
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """The tensor."""
        return [self._tensor]


untraced(PlannedWork)


class Progress:
    """The thread that runs the collectives; it ends with this object."""

    def __init__(self) -> None:
        self._jobs: threads.Jobs = queue.SimpleQueue()
        thread = threading.Thread(
            target=threads.do_jobs, args=(self._jobs,), name="gradweave-progress", daemon=True
        )
        thread.start()
        self._completions = Completions()
        self._end = weakref.finalize(self, owned(threads.end), self._jobs, [thread])

    def close(self) -> None:
        """Ends the threads once all started collectives are complete."""
        self._end()
        self._completions.close()

    def start(self, tensor: torch.Tensor, run: Callable[[], None]) -> PlannedWork:
        """Starts a collective, which runs after all that were started before."""
        work = PlannedWork(tensor, run, self._completions)
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
