"""Ends a block of this process if something that it needs breaks meanwhile."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

EVERY_S = 1.0
"""Time between two checks."""


class _Found(KeyboardInterrupt):
    """Raised to end the block like Ctrl-C does, so that the code in it cleans up."""


@contextlib.contextmanager
def guarded(look: Callable[[], None], *, every_s: float = EVERY_S) -> Iterator[None]:
    """Checks regularly in a thread, and ends the block with the first error that a check raises.

    Only the main thread can be interrupted. In another thread, the error is raised after the block.

    Args:
        look: the check; raises an error if something has broken.
        every_s: time between two checks.
    """
    found: list[Exception] = []
    over = threading.Event()
    here = threading.current_thread()

    def looks() -> None:
        while not over.wait(every_s):
            try:
                look()
            except Exception as error:
                found.append(error)
                if here is threading.main_thread():
                    # A real signal, since it also interrupts system calls.
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                return

    thread = threading.Thread(target=looks, name="gradweave-guard", daemon=True)
    try:
        with _told_by_signal(found):
            thread.start()
            try:
                yield
            finally:
                over.set()
                thread.join()
    except _Found:
        pass
    if found:
        raise found[0]


@contextlib.contextmanager
def _told_by_signal(found: list[Exception]) -> Iterator[None]:
    """Makes SIGINT raise `_Found` if something was found, and otherwise act as before."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return

    def handler(number: int, frame: FrameType | None) -> None:
        if found:
            raise _Found
        if callable(before):
            before(number, frame)
        elif before is signal.SIG_DFL:
            raise KeyboardInterrupt
        # otherwise SIGINT is ignored, as in a shell's background jobs

    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
