"""When a search ends: at a time, at a value that is good enough, or once somebody says so."""

import contextlib
import dataclasses
import math
import threading
from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradweave import clock

Why = Literal["", "target", "time", "flag"]
"""Why a search ends; empty while it goes on."""

NOBODY = np.zeros(1, np.bool_)
"""The flag that nobody sets."""
NOBODY.flags.writeable = False

POLL_S, LONG_S = 0.02, 60.0
"""How often a watch looks at another's flag, and how long it sleeps at most where there is none."""


@dataclasses.dataclass(frozen=True)
class Stop:
    """What ends a search. It is made where a time limit enters, and passed down.

    A search that takes part of the time, or has a target of its own, is given a stop derived from
    its caller's. `reached` is asked between two steps; a loop that is compiled, which cannot ask
    for the time, looks at the flag of a stop that is `watched`, which costs it next to nothing.
    """

    deadline: float = math.inf
    """Of `clock.now`, in seconds."""
    target: float = -math.inf
    """Rounds, seconds or whatever the search makes small, with which it is content: a lower
    bound."""
    flag: NDArray[np.bool_] = dataclasses.field(
        default_factory=lambda: NOBODY, compare=False, repr=False
    )
    """[1] set by another thread to end the search."""
    below: float = math.inf
    """The same of what the caller has: what cannot be less need not be made."""
    dispensable: bool = False
    """Whether the search may end with nothing, since its caller has a result already. Otherwise
    what comes before the first result is finished, however late."""

    @classmethod
    def after(cls, time_limit: float | None, flag: NDArray[np.bool_] = NOBODY) -> "Stop":
        """The stop after some seconds from now on, None for no limit, or at a flag."""
        return cls(math.inf if time_limit is None else clock.now() + time_limit, flag=flag)

    def at(self, target: float) -> "Stop":
        """The same with another target."""
        return dataclasses.replace(self, target=target)

    def part(self, share: float) -> "Stop":
        """The same with a share of the time that is left."""
        if math.isinf(self.deadline):
            return self
        now = clock.now()
        return dataclasses.replace(self, deadline=now + share * (self.deadline - now))

    def within(self, seconds: float) -> "Stop":
        """The same, at the latest some seconds from now on."""
        return dataclasses.replace(self, deadline=min(self.deadline, clock.now() + seconds))

    def sooner(self, seconds: float) -> "Stop":
        """The same with an earlier deadline."""
        return dataclasses.replace(self, deadline=self.deadline - seconds)

    @property
    def seconds_left(self) -> float:
        """Until the deadline; not below 0, and infinite where there is none."""
        return max(0.0, self.deadline - clock.now())

    def reached(self, value: float = math.inf) -> Why:
        """Whether to stop, and why.

        Args:
            value: of the best that was found so far; infinite where that is nothing.
        """
        if value <= self.target:
            return "target"
        if self.flag[0]:
            return "flag"
        return "time" if clock.now() >= self.deadline else ""

    @contextlib.contextmanager
    def watched(self) -> Iterator["Stop"]:
        """The same with a flag that is set when time is up, and at the end of the block.

        At the end, so that where the block is left by Ctrl-C or an error, the threads that it has
        begun end soon.
        """
        flag = np.zeros(1, np.bool_)
        ended = threading.Event()
        alone = self.flag is NOBODY

        def watch() -> None:
            while not self.reached():  # again, where the clock stood still meanwhile
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
"""The stop of a search that ends by itself."""


class Interrupt:
    """Ends a search from outside: a handler of Ctrl-C or another thread calls `end`."""

    def __init__(self) -> None:
        self.flag = np.zeros(1, np.bool_)
        """[1] that of the search's `Stop`."""

    def end(self) -> None:
        """Ends the search soon, as if its time were up."""
        self.flag[0] = True
