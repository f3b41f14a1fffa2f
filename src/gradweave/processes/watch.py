"""A thread that ends a process that hangs, or whose parent is gone."""

import os
import threading
import time
from collections.abc import Callable

POLL_S = 0.5
"""Time between two checks."""


class Watch:
    """Calls a function if nothing moves for too long, or if another process has ended.

    Args:
        timeout_s: maximum time without a call of `moved`.
        end: called with the reason; must not return.
        of: id of the other process, on this machine, if there is one.
        after_s: additional time for another mechanism to find out what hangs.
    """

    def __init__(
        self,
        timeout_s: float,
        end: Callable[[str], None],
        *,
        of: int | None = None,
        after_s: float = 0.0,
    ) -> None:
        self._timeout_s, self._end, self._of = timeout_s, end, of
        self._after_s = after_s
        self._of_parent = of == os.getppid()
        self._moved = time.monotonic()
        threading.Thread(target=self._watch, name="gradweave-watch", daemon=True).start()

    def moved(self) -> None:
        """Notes that there was progress."""
        self._moved = time.monotonic()

    def _watch(self) -> None:
        while True:
            time.sleep(POLL_S)
            if self._of is not None and not self._is_there(self._of):
                self._end("the process that started the run ended")
            if time.monotonic() - self._moved > self._timeout_s + self._after_s:
                self._end(
                    f"nothing moved for {self._timeout_s:g} s: a server hangs, or the gradient is "
                    "too large for the time; see --timeout"
                )

    def _is_there(self, process: int) -> bool:
        # A process that ended keeps its id until its parent has waited for it, but it is no
        # longer the parent of its children.
        return os.getppid() == process if self._of_parent else _lives(process)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
