"""Ways to end a process: immediately, or after cleaning up."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

_last_word = threading.Lock()
_LAST_WORD_S = 10.0
_AGAIN_S = 0.05


def end_at_once(status: int, say: Callable[[], None]) -> NoReturn:
    """Ends this process without waiting for other threads and processes, as Python would.

    If several threads call this, only the first has the last word.

    Args:
        status: the exit status.
        say: called first, for the last word.
    """
    if _last_word.acquire(blocking=False):
        try:
            say()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)
    time.sleep(_LAST_WORD_S)
    os._exit(status)


@contextlib.contextmanager
def heard_again() -> Iterator[None]:
    """Sends Ctrl-C and SIGTERM again if the exceptions that they raised were lost.

    A signal that arrives while Python collects garbage is raised inside a callback of the garbage
    collector, such as one of JAX's, and Python ignores exceptions there. That is not rare while
    large modules are imported.
    """
    before = sys.unraisablehook

    def again(unraisable: "sys.UnraisableHookArgs") -> None:
        number = _signal_of(unraisable.exc_type, unraisable.exc_value)
        if number is None:
            before(unraisable)
        else:  # not from here, where an exception would be ignored again
            threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number)).start()

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


def _signal_of(kind: type[BaseException], value: BaseException | None) -> int | None:
    """The signal that raised an exception, or None if the exception has another cause."""
    if issubclass(kind, KeyboardInterrupt):
        return signal.SIGINT
    ended = isinstance(value, SystemExit) and value.code == 128 + signal.SIGTERM
    return signal.SIGTERM if ended else None


@contextlib.contextmanager
def termination() -> Iterator[None]:
    """Turns SIGTERM into `SystemExit`, so that everything open is cleaned up."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not the main thread, which receives all signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
