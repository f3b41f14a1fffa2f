"""A clock for time limits, which stands still while loops are compiled.

The result of a search of five seconds must not depend on whether its loops were compiled before.
"""

import contextlib
import threading
import time
from collections.abc import Iterator


def now() -> float:
    """Seconds since an arbitrary time, without those in which the clock was `stopped`."""
    return _clock.now()


@contextlib.contextmanager
def stopped(doing: str = "") -> Iterator[None]:
    """Stops the clock of this process, for all its threads.

    Args:
        doing: the reason, for `waiting_for`.
    """
    stop(doing)
    try:
        yield
    finally:
        go()


def stop(doing: str = "") -> None:
    """Stops the clock, where `stopped` cannot be used as a block."""
    _clock.stop(doing)


def go() -> None:
    """Ends one `stop`. The clock runs again once every stop has ended."""
    _clock.go()


def waiting_for() -> str:
    """Why the clock stands still; empty while it runs."""
    return _clock.doing


class _Clock:
    """The process's clock; several stops at a time count once."""

    def __init__(self) -> None:
        self.doing = ""
        self._lock = threading.Lock()
        self._stops = 0
        self._since = 0.0
        self._stood = 0.0

    def now(self) -> float:
        with self._lock:
            return (self._since if self._stops else time.monotonic()) - self._stood

    def stop(self, doing: str) -> None:
        with self._lock:
            if self._stops == 0:
                self._since = time.monotonic()
            self._stops += 1
            self.doing = self.doing or doing

    def go(self) -> None:
        with self._lock:
            self._stops -= 1
            if self._stops == 0:
                self._stood += time.monotonic() - self._since
                self.doing = ""


_clock = _Clock()
