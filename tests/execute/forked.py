"""Processes of a job, forked from one that has imported what they need."""

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
    children = []
    for rank in range(processes):
        if child := os.fork():
            children.append(child)
            continue
        status = 1
        try:
            process(rank)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return [os.waitpid(child, 0)[1] for child in children]
