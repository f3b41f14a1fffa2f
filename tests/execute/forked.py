"""Processes of a job, forked from one that has imported what they need."""

import functools
import os
import sys
import traceback
from collections.abc import Callable


def forked(processes: int, process: Callable[[int], object]) -> list[int]:
    """Runs a function of the rank in forked processes, and waits for all of them.

    An error is printed, and ends its process with status 1. Processes end without PyTorch's own
    clearing up, which may wait for those that have gone.

    Returns:
        The statuses of `os.waitpid`, by rank.
    """
    children = [fork(functools.partial(process, rank)) for rank in range(processes)]
    return [os.waitpid(child, 0)[1] for child in children]


def fork(process: Callable[[], object]) -> int:
    """Runs a function in a forked process, see `forked`; returns the process's id."""
    if child := os.fork():
        return child
    status = 1
    try:
        process()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
