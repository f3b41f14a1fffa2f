"""Runs many tasks in an order that nobody promised: to show what waits for too little."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

Outcome = Literal["ran", "blocked", "done"]
Task = Callable[[], Outcome]
"""Does the next thing it has to do, if it may."""


class DeadlockError(AssertionError):
    """All that is left waits for each other."""


def interleave(tasks: Sequence[Task], seed: int) -> None:
    """Runs tasks to their ends, a thing at a time.

    Even seeds take turns of random lengths in random order. Odd seeds give each task a rank drawn
    once and always let the highest run that can: some are then as late as can be.
    """
    rng = np.random.default_rng(seed)
    left = [tasks[i] for i in rng.permutation(len(tasks))]
    while left:
        if seed % 2 == 0:
            left = [left[i] for i in rng.permutation(len(left))]
        ran = False
        for task in list(left):
            turn = 1 if seed % 2 else int(rng.choice([1, 2, 1 << 30]))
            outcome: Outcome = "ran"
            while turn and (outcome := task()) == "ran":
                ran, turn = True, turn - 1
            if outcome == "done":
                left.remove(task)
                ran = True
            if seed % 2 and ran:
                break
        if not ran:
            raise DeadlockError(f"{len(left)} of {len(tasks)} tasks wait for each other")
