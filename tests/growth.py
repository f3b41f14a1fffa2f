"""How the processor time of something grows with its input."""

import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from gradweave.errors import GradweaveError

FACTOR = 16
MOST_TIMES = 70
"""Between 16, of a time in proportion, and 256, of one with the square."""
ENOUGH_S = 0.01
"""Less is not worth measuring: what grows too fast takes longer, at these sizes."""


def seconds(do: Callable[[], Any], times: int) -> float:
    """The least processor time of several."""
    taken = []
    for _ in range(times):
        started = time.process_time()
        try:
            do()
        except GradweaveError:
            pass
        taken.append(time.process_time() - started)
    return min(taken)


def refuse_square(small: Callable[[], Any], large: Callable[[], Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = max(seconds(small, 3), ENOUGH_S / FACTOR)
        for _ in range(3):  # the garbage collector may run at any time
            if seconds(large, 1) < MOST_TIMES * first:
                return
    pytest.fail(f"takes more than {MOST_TIMES} times as long for an input {FACTOR} times as large")
