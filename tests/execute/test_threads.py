"""Threads that are waited for when they are to end."""

import queue
import threading
import time

import pytest

pytest.importorskip("torch")

from gradweave.execute.torch_distributed import threads
from gradweave.torch.progress import Progress


def started(jobs: threads.Jobs) -> threading.Thread:
    """A thread that does jobs."""
    thread = threading.Thread(target=threads.do_jobs, args=(jobs,), daemon=True)
    thread.start()
    return thread


def test_what_was_put_before_is_done_and_nothing_is_left_running():
    jobs, done = queue.SimpleQueue(), []
    both = [started(jobs), started(jobs)]
    for number in range(20):
        jobs.put(lambda number=number: (time.sleep(1e-3), done.append(number)))
    threads.end(jobs, both)
    assert sorted(done) == list(range(20))
    assert not any(thread.is_alive() for thread in both)


def test_a_thread_that_waits_for_a_lost_process_is_left(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "_LEAVE_S", 0.01)
    jobs, answer = queue.SimpleQueue(), threading.Event()
    thread = started(jobs)
    jobs.put(answer.wait)
    threads.end(jobs, [thread])
    assert thread.is_alive()
    answer.set()
    thread.join(10)


def test_a_thread_that_ends_itself_does_not_wait_for_itself():
    jobs: threads.Jobs = queue.SimpleQueue()
    thread = started(jobs)
    jobs.put(lambda: threads.end(jobs, [thread]))
    thread.join(10)
    assert not thread.is_alive()


def test_collectives_beside_the_caller_leave_no_thread():
    before = set(threading.enumerate())
    progress = Progress()
    (thread,) = set(threading.enumerate()) - before
    progress.close()
    assert not thread.is_alive()
