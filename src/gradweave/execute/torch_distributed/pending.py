"""A collective in progress, shared by the threads that wait for its messages."""

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from gradweave.errors import RunError


class PendingCollective:
    """A collective in progress: whether it is over, its last progress, and the awaited ranks."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.error: RunError | None = None
        self._moved = time.monotonic()
        self._awaited: dict[int, int] = {}

    def moved(self) -> None:
        """Notes that a message or step was completed."""
        self._moved = time.monotonic()

    def still_s(self) -> float:
        """Seconds since the last progress."""
        return time.monotonic() - self._moved

    @contextmanager
    def awaiting(self, peer: int) -> Iterator[None]:
        """Notes that this thread waits for a message from or to a rank."""
        thread = threading.get_ident()
        self._awaited[thread] = peer
        try:
            yield
        finally:
            del self._awaited[thread]

    @contextmanager
    def awaiting_all(self, peers: Collection[int]) -> Iterator[None]:
        """Notes that messages from or to some ranks are awaited, in any order."""
        self._awaited |= {-1 - peer: peer for peer in peers}  # threads have positive numbers
        try:
            yield
        finally:
            for peer in peers:
                del self._awaited[-1 - peer]

    def awaited(self) -> list[int]:
        """Ranks from or to which messages are awaited."""
        return sorted(set(self._awaited.copy().values()))

    def attempt(self, job: Callable[[], object]) -> None:
        """Calls a function that does the whole collective, and keeps its error."""
        try:
            job()
        except Exception as error:
            self.fail(error)
        self.over.set()

    def fail(self, error: Exception) -> None:
        """Ends the collective with an error; only the first error is kept."""
        if self.error is None:
            self.error = error if isinstance(error, RunError) else RunError(str(error))
        self.over.set()
