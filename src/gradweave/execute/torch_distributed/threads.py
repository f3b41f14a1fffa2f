"""Threads that do what is put into a queue, and how they end."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

Jobs = queue.SimpleQueue[Callable[[], None] | None]

_LEAVE_S = 1.0
"""How long threads are waited for that are to end: one may wait for a process that is lost."""


def do_jobs(jobs: Jobs) -> None:
    """Does jobs until there is None."""
    while (job := jobs.get()) is not None:
        job()
        del job


def end(jobs: "queue.SimpleQueue[Any]", threads: Sequence[threading.Thread]) -> None:
    """Has each of some threads end after the jobs that are there, and waits until they have.

    The interpreter may not end before them: it would break off a thread that is in PyTorch, on its
    last way out as well, and C++ would abort the process ("terminate called without an active
    exception").
    """
    for _ in threads:
        jobs.put(None)
    deadline = time.monotonic() + _LEAVE_S
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(deadline - time.monotonic(), 0.0))
