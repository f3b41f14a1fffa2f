"""A block of this process that ends when something that it needs breaks meanwhile."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

EVERY_S = 1.0
"""Time between two looks."""


class _Found(KeyboardInterrupt):
    """Ends the block as Ctrl-C would, so that what it calls clears up."""


@contextlib.contextmanager
def guarded(look: Callable[[], None], *, every_s: float = EVERY_S) -> Iterator[None]:
    """Looks now and then, in a thread of its own; the block ends with the error that this raises.

    Only the main thread can be interrupted: in another one, what was found is raised after the
    block.

    Args:
        look: raises an error where something has broken.
        every_s: time between two looks.
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
                    # A real signal, since it also ends what waits in the kernel.
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
    """Has SIGINT raise `_Found` where something was found, and do what it did where nothing was."""
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
        # else it is ignored, as in a shell's background

    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
