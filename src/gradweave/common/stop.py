"""Conditions that end a search: a time limit, a good enough value, or a flag set from outside."""

import contextlib
import dataclasses
import math
import threading
from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.common import clock

Why = Literal["", "target", "time", "flag"]
"""Why a search ends; empty while it goes on."""

NOBODY = np.zeros(1, np.bool_)
"""A flag that is never set."""
NOBODY.flags.writeable = False

POLL_S, LONG_S = 0.02, 60.0
"""How often a watch checks another flag, and its longest sleep if there is none."""


@dataclasses.dataclass(frozen=True)
class Stop:
    """The conditions that end a search. Created where a time limit is given, and passed down.

    A search that takes part of the time, or has its own target, is given a stop derived from its
    caller's. `reached` is called between steps; a compiled loop, which cannot ask for the time,
    checks the flag of a stop that is `watched`, which costs almost nothing.
    """

    deadline: float = math.inf
    """Deadline by `clock.now`, in seconds."""
    target: float = -math.inf
    """Value of the minimised quantity, such as rounds or seconds, that is good enough: a lower
    bound."""
    flag: NDArray[np.bool_] = dataclasses.field(
        default_factory=lambda: NOBODY, compare=False, repr=False
    )
    """[1] set by another thread to end the search."""
    below: float = math.inf
    """Value that the caller already has: results that cannot be lower are not needed."""
    dispensable: bool = False
    """Whether the search may end without a result, since its caller already has one. Otherwise it
    continues until its first result, however late."""

    @classmethod
    def after(cls, time_limit: float | None, flag: NDArray[np.bool_] = NOBODY) -> "Stop":
        """A stop some seconds from now, None for no limit, or when a flag is set."""
        return cls(math.inf if time_limit is None else clock.now() + time_limit, flag=flag)

    def at(self, target: float) -> "Stop":
        """The same stop with another target."""
        return dataclasses.replace(self, target=target)

    def part(self, share: float) -> "Stop":
        """The same stop with a fraction of the remaining time."""
        if math.isinf(self.deadline):
            return self
        now = clock.now()
        return dataclasses.replace(self, deadline=now + share * (self.deadline - now))

    def within(self, seconds: float) -> "Stop":
        """The same stop, at the latest some seconds from now."""
        return dataclasses.replace(self, deadline=min(self.deadline, clock.now() + seconds))

    def sooner(self, seconds: float) -> "Stop":
        """The same stop with an earlier deadline."""
        return dataclasses.replace(self, deadline=self.deadline - seconds)

    @property
    def seconds_left(self) -> float:
        """Time until the deadline; at least 0, and infinite without a deadline."""
        return max(0.0, self.deadline - clock.now())

    def reached(self, value: float = math.inf) -> Why:
        """Whether to stop, and why.

        Args:
            value: the best value found so far; infinite if there is none.
        """
        if value <= self.target:
            return "target"
        if self.flag[0]:
            return "flag"
        return "time" if clock.now() >= self.deadline else ""

    @contextlib.contextmanager
    def watched(self) -> Iterator["Stop"]:
        """The same stop with a flag that is set when time is up, and at the end of the block.

        Setting it at the end makes threads that were started in the block end soon if Ctrl-C or an
        error leaves it.
        """
        flag = np.zeros(1, np.bool_)
        ended = threading.Event()
        alone = self.flag is NOBODY

        def watch() -> None:
            while not self.reached():  # check again if the clock was paused in between
                longest = LONG_S if alone else POLL_S
                if ended.wait(min(max(self.seconds_left, 1e-3), longest)):
                    return
            flag[0] = True

        thread = None
        if self.deadline < math.inf or not alone:
            thread = threading.Thread(target=watch, daemon=True)
            thread.start()
        try:
            yield dataclasses.replace(self, flag=flag)
        finally:
            flag[0] = True
            ended.set()
            if thread is not None:
                thread.join()


UNLIMITED = Stop()
"""The stop of a search without limits."""


class Interrupt:
    """Ends a search from outside: a handler of Ctrl-C or another thread calls `end`."""

    def __init__(self) -> None:
        self.flag = np.zeros(1, np.bool_)
        """[1] the flag of the search's `Stop`."""

    def end(self) -> None:
        """Ends the search soon, as if its time were up."""
        self.flag[0] = True
