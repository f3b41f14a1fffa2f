"""Threads that run jobs from a queue, and a safe way to end them."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

Jobs = queue.SimpleQueue[Callable[[], None] | None]

_LEAVE_S = 1.0
"""How long to wait for threads that should end: one may wait for a lost process."""


def do_jobs(jobs: Jobs) -> None:
    """Runs jobs until the queue returns None."""
    while (job := jobs.get()) is not None:
        job()
        del job


def end(jobs: "queue.SimpleQueue[Any]", threads: Sequence[threading.Thread]) -> None:
    """Ends threads after the jobs in the queue, and waits until they have ended.

    The interpreter must not exit before them: it would interrupt a thread inside PyTorch, even
    during the thread's last steps, and C++ would abort the process ("terminate called without an
    active exception").
    """
    for _ in threads:
        jobs.put(None)
    deadline = time.monotonic() + _LEAVE_S
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(deadline - time.monotonic(), 0.0))
