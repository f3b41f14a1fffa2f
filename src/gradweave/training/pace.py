"""The duration of updates: for the time left, the speed, and the size of the next call."""

import contextlib
import time
from collections.abc import Hashable, Iterator

CALL_S = 1.0
"""Target duration of a call of a compiled program, which is how long Ctrl-C may have to wait."""
Call = tuple[int, float]
"""Number of updates, and the seconds that they took."""


class Pace:
    """The durations of a training's calls, without each program's first call, which compiles."""

    def __init__(self, window: int | None = None) -> None:
        """Starts with no calls.

        Args:
            window: number of latest calls over which `seconds_per_update` is averaged; by default
                all.
        """
        self._window = window
        self._compiled: set[Hashable] = set()
        self._first: list[Call] = []
        self._later: list[Call] = []

    @contextlib.contextmanager
    def timed(self, updates: int, program: Hashable = None) -> Iterator[None]:
        """Times a block that makes updates by a program."""
        start = time.monotonic()
        yield
        self.record(updates, time.monotonic() - start, program)

    def record(self, updates: int, seconds: float, program: Hashable = None) -> None:
        """Records a call of a program."""
        (self._later if program in self._compiled else self._first).append((updates, seconds))
        self._compiled.add(program)

    def next_call(self, most: int) -> int:
        """The updates of the next call: about `CALL_S` of work, but one if it has to compile."""
        if not self._later:
            return 1
        updates, seconds = self._later[-1]
        return max(1, min(most, int(CALL_S * updates / max(seconds, 1e-9))))

    @property
    def seconds_per_update(self) -> float:
        """The mean over the window, or over compiling calls while there are no others."""
        calls = self._later[-(self._window or 0) :] or self._first
        return _seconds(calls) / _updates(calls)

    @property
    def updates_per_s(self) -> float | None:
        """The mean over all calls, or None while there are only compiling calls."""
        seconds = _seconds(self._later)
        return _updates(self._later) / seconds if seconds else None


def duration(seconds: float) -> str:
    """Seconds as text, in a suitable unit."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _updates(calls: list[Call]) -> int:
    return sum(updates for updates, _ in calls)


def _seconds(calls: list[Call]) -> float:
    return sum(seconds for _, seconds in calls)
