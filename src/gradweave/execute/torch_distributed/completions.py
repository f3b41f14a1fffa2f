"""Threads that complete PyTorch's futures for the threads that run collectives.

The thread that completes a future runs its callbacks, and a callback may wait for another future,
like those of PowerSGD. So threads that run collectives leave the completion to the threads here.
"""

import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from gradweave.execute.torch_distributed import threads
from gradweave.processes.owned import owned

Future = torch.futures.Future[Any]


class Completions:
    """Completes futures in order; a future whose callbacks wait does not delay those behind it.

    The threads live as long as this object.
    """

    def __init__(self) -> None:
        self._state = _State()
        self.close = weakref.finalize(
            self, owned(threads.end), self._state.jobs, self._state.threads
        )
        """Ends the threads once all jobs in the queue are done."""

    def future(
        self, value: Callable[[], Any], devices: list[torch.device] | None = None
    ) -> tuple[Future, Callable[[], None]]:
        """A future, and a function that starts its completion.

        Args:
            value: called at completion; the future gets its return value or its error.
            devices: devices of the value, unless it is in host memory.
        """
        first: Future = torch.futures.Future(devices=devices)  # pyright: ignore[reportArgumentType]
        made = first.then(lambda _: value())
        state = self._state
        # The first callback: the next job gets its turn before the caller's callbacks run.
        made.add_done_callback(lambda _: state.turn.release())
        return made, lambda: state.put(lambda: first.set_result(None))


class _State:
    """State shared by the threads, which do not hold a reference to `Completions`."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.threads: list[threading.Thread] = []
        self.turn = threading.Semaphore(1)
        """Held while a thread completes its job's future; released for the next job after that."""
        self._lock = threading.Lock()
        self._spare = 0
        """Number of idle threads minus the number of waiting jobs."""

    def put(self, complete: Callable[[], None]) -> None:
        with self._lock:
            self._spare -= 1
            if self._spare < 0:
                self._spare += 1
                name = f"gradweave-completions-{len(self.threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self.threads.append(thread)
                thread.start()
        self.jobs.put(complete)

    def _work(self) -> None:
        while True:
            self.turn.acquire()
            complete = self.jobs.get()
            if complete is None:
                self.turn.release()
                return
            complete()
            del complete
            with self._lock:
                self._spare += 1
