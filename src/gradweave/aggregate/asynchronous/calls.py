"""Calls of actors, made again while Ray loses them.

Where a connection breaks, Ray cannot know whether the actor heard a call, and says that the actor
is unavailable. The actor may be well: what is called this way does no harm when it is done twice.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

FIRST_PAUSE_S = 0.05
"""Before a call is made again; each time twice as long."""
LONGEST_PAUSE_S = 2.0


class Call:
    """A call that is under way, and can be made again."""

    def __init__(self, make: Callable[[], Any], timeout_s: float) -> None:
        """Makes it.

        Args:
            make: makes it, and gives its reference.
            timeout_s: for how long it is made again.
        """
        self._make, self._timeout_s = make, timeout_s
        self._pause_s, self._until = FIRST_PAUSE_S, float("inf")
        self.reference = make()

    def again(self) -> bool:
        """Makes it again after a pause, where it was not lost for too long already."""
        now = time.monotonic()
        self._until = min(self._until, now + self._timeout_s)
        if now + self._pause_s > self._until:
            return False
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        self.reference = self._make()
        return True


def answers(calls: Sequence[Call], get: Callable[[list[Any]], list[Any]]) -> list[Any]:
    """What calls answer; those that are lost are made again.

    Args:
        calls: under way.
        get: what references stand for, as `ray.get` gives it.

    Raises:
        ActorUnavailableError: an actor's calls were lost for as long as they were made again.
        RayError: what else is wrong with one of them.
    """
    from ray.exceptions import ActorUnavailableError

    try:
        return get([call.reference for call in calls])
    except ActorUnavailableError:
        return [_answer(call, get) for call in calls]


def _answer(call: Call, get: Callable[[list[Any]], list[Any]]) -> Any:
    from ray.exceptions import ActorUnavailableError

    while True:
        try:
            return get([call.reference])[0]
        except ActorUnavailableError:
            if not call.again():
                raise
