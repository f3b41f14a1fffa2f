"""Plans for one group, found in the process of its rank 0."""

import atexit
import functools
import logging
import os
import threading
from collections.abc import Callable
from typing import NamedTuple

from gradweave.common.wording import counted
from gradweave.errors import GradweaveError
from gradweave.execute.program import is_own
from gradweave.printable import in_one_line
from gradweave.processes.children import STOP_S
from gradweave.schedules.schedule import Schedule
from gradweave.torch.calls import SizeClass
from gradweave.torch.plans import Plans

_LEAVE_S = STOP_S + 2.0
"""How long a group that ends waits for its search to stop."""
_log = logging.getLogger("gradweave")


class Weight(NamedTuple):
    """The possible gain of a plan: the class with the greatest weight is planned first."""

    lately: bool
    """Whether the group has called the class recently."""
    bytes: int
    """Bytes of all calls of the class so far."""


class Planner:
    """Finds one plan at a time for the requested collectives and sizes, in a thread.

    Args:
        plans: the source of the plans.
    """

    def __init__(self, plans: Plans) -> None:
        self._plans = plans
        self._wanted: dict[SizeClass, Callable[[], Weight]] = {}
        self._changed = threading.Condition()
        self._ended = False
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def start(self, publish: Callable[[SizeClass, Schedule | None], None]) -> None:
        """Starts the thread.

        Args:
            publish: called with a size class and its plan, or None if the backend's own algorithm
                should run.
        """
        self._thread = threading.Thread(
            target=self._work, args=(publish,), name="gradweave-planner", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)  # a search does not outlive the process

    def want(self, of: SizeClass, weight: Callable[[], Weight]) -> None:
        """Requests a plan.

        Args:
            of: the calls that the plan is for.
            weight: returns the plan's possible gain, as known at that moment.
        """
        with self._changed:
            self._wanted[of] = weight
            self._changed.notify()

    def unwant(self, of: SizeClass) -> None:
        """Ends the search for a plan that is no longer needed."""
        with self._changed:
            self._wanted.pop(of, None)

    def close(self) -> None:
        """Ends the thread and any search in progress; does nothing in a fork, which has neither."""
        if os.getpid() != self._process:
            return
        with self._changed:
            self._ended = True
            self._changed.notify()
        atexit.unregister(self.close)
        if self._thread is not None:
            self._thread.join(_LEAVE_S)

    def _next(self) -> SizeClass | None:
        """The class to plan next, or None once the planner is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._ended)
            if self._ended:
                return None
            return max(self._wanted, key=lambda of: self._wanted[of]())

    def _given_up(self, of: SizeClass) -> str | None:
        """Reason to stop the search for a plan now, if there is one."""
        with self._changed:
            if self._ended:
                return "the group has ended"
            if of not in self._wanted:
                return "its calls have ended"
            if not self._wanted[of]().lately and any(one().lately for one in self._wanted.values()):
                return "other calls need one first"
        return None

    def _work(self, publish: Callable[[SizeClass, Schedule | None], None]) -> None:
        while (of := self._next()) is not None:
            try:
                plan = self._found(of)
            except Exception as error:  # of any kind: the group continues with the backend's own
                if self._given_up(of):
                    continue
                _say(logging.WARNING, of, error)
                plan = None
            self.unwant(of)
            publish(of, plan)

    def _found(self, of: SizeClass) -> Schedule | None:
        plan = self._plans.find(of, functools.partial(self._given_up, of))
        if plan is None or is_own(plan, "gloo"):
            return None
        if why := self._plans.hopeless(plan, of):
            _say(logging.INFO, of, why)
            return None
        return plan


def _say(level: int, of: SizeClass, why: object) -> None:
    if isinstance(why, Exception) and not isinstance(why, GradweaveError):
        why = f"{type(why).__name__}: {why}"
    what = f"{of.collective} of {counted(of.size, 'byte')}"
    line = f"no plan for {what}, which stays gloo's own: {why}"
    _log.log(level, "%s", in_one_line(line))
