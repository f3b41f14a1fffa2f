"""Calls of Ray actors that are retried while Ray loses them.

If a connection breaks, Ray cannot know whether the actor received a call, and reports the actor as
unavailable even if it still runs. Calls made this way must be idempotent.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

FIRST_PAUSE_S = 0.05
"""Pause before the first retry; each pause is twice as long as the preceding one."""
MAX_PAUSE_S = 2.0
"""Longest pause, so that an actor that is available again is found within this time."""


class RetriedCall:
    """A pending call that can be retried."""

    def __init__(self, make: Callable[[], Any], timeout_s: float) -> None:
        """Makes the call.

        Args:
            make: makes the call and returns its reference.
            timeout_s: how long to retry it.
        """
        self._make, self._timeout_s = make, timeout_s
        self._pause_s, self._deadline = FIRST_PAUSE_S, float("inf")
        self.reference = make()

    def retry(self) -> bool:
        """Makes the call again after a pause; False once `timeout_s` has passed."""
        now = time.monotonic()
        self._deadline = min(self._deadline, now + self._timeout_s)
        if now + self._pause_s > self._deadline:
            return False
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
        self.reference = self._make()
        return True


def results(calls: Sequence[RetriedCall], get: Callable[[list[Any]], list[Any]]) -> list[Any]:
    """The results of calls; lost calls are retried.

    Args:
        calls: pending calls.
        get: references → their values, as `ray.get`.

    Raises:
        ActorUnavailableError: an actor's calls were lost until their timeout.
        RayError: any other error of a call.
    """
    from ray.exceptions import ActorUnavailableError

    try:
        return get([call.reference for call in calls])
    except ActorUnavailableError:
        return [_result(call, get) for call in calls]


def _result(call: RetriedCall, get: Callable[[list[Any]], list[Any]]) -> Any:
    from ray.exceptions import ActorUnavailableError

    while True:
        try:
            return get([call.reference])[0]
        except ActorUnavailableError:
            if not call.retry():
                raise
