"""A clock for time limits that pauses while loops are compiled.

The result of a search of five seconds must not depend on whether its loops were compiled before.
"""

import contextlib
import threading
import time
from collections.abc import Iterator


def now() -> float:
    """Seconds since an arbitrary time, without those in which the clock was `paused`."""
    return _clock.now()


@contextlib.contextmanager
def paused(doing: str = "") -> Iterator[None]:
    """Pauses the clock of this process, for all its threads.

    Args:
        doing: the reason, for `waiting_for`.
    """
    pause(doing)
    try:
        yield
    finally:
        resume()


def pause(doing: str = "") -> None:
    """Pauses the clock if `paused` cannot be used as a block."""
    _clock.pause(doing)


def resume() -> None:
    """Ends one `pause`. The clock runs again once every pause has ended."""
    _clock.resume()


def waiting_for() -> str:
    """The reason for the pause; empty while the clock runs."""
    return _clock.doing


class _Clock:
    """The process's clock; simultaneous pauses count once."""

    def __init__(self) -> None:
        self.doing = ""
        self._lock = threading.Lock()
        self._pauses = 0
        self._since = 0.0
        self._paused_s = 0.0

    def now(self) -> float:
        with self._lock:
            return (self._since if self._pauses else time.monotonic()) - self._paused_s

    def pause(self, doing: str) -> None:
        with self._lock:
            if self._pauses == 0:
                self._since = time.monotonic()
            self._pauses += 1
            self.doing = self.doing or doing

    def resume(self) -> None:
        with self._lock:
            self._pauses -= 1
            if self._pauses == 0:
                self._paused_s += time.monotonic() - self._since
                self.doing = ""


_clock = _Clock()
