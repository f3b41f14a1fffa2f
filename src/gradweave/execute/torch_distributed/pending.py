"""A collective under way, as the threads see it that wait for its messages."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gradweave.errors import RunError


class PendingCollective:
    """A collective under way: whether it is over, when it last progressed, and who is awaited."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.error: RunError | None = None
        self._moved = time.monotonic()
        self._awaited: dict[int, int] = {}

    def moved(self) -> None:
        """Notes that something was completed."""
        self._moved = time.monotonic()

    def still_s(self) -> float:
        """Seconds since a message was completed."""
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

    def awaited(self) -> list[int]:
        """Ranks that messages are awaited from or to."""
        return sorted(set(self._awaited.copy().values()))

    def attempt(self, job: Callable[[], object]) -> None:
        """Calls a function that does all of it, and keeps its error."""
        try:
            job()
        except Exception as error:
            self.fail(error)
        self.over.set()

    def fail(self, error: Exception) -> None:
        """Ends it with an error; the first one counts."""
        if self.error is None:
            self.error = error if isinstance(error, RunError) else RunError(str(error))
        self.over.set()
