"""Plans for one group, found in the process of its rank 0."""

import atexit
import logging
import queue
import threading
from collections.abc import Callable

from gradweave.errors import GradweaveError
from gradweave.execute.program import is_own
from gradweave.processes.children import STOP_S
from gradweave.schedule.schedule import Schedule
from gradweave.torch.calls import SizeClass
from gradweave.torch.plans import Plans
from gradweave.wording import counted

_LEAVE_S = STOP_S + 2.0
"""How long a group that ends waits for a search to end."""
_log = logging.getLogger("gradweave")


class Planner:
    """Answers for each collective and size with a plan, one at a time, in a thread of its own.

    Args:
        plans: where they come from.
    """

    def __init__(self, plans: Plans) -> None:
        self._plans = plans
        self._wanted: queue.SimpleQueue[SizeClass | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, publish: Callable[[SizeClass, Schedule | None], None]) -> None:
        """Starts the thread.

        Args:
            publish: called with what was asked for and its plan; None: the backend's own is to be
                taken.
        """
        self._thread = threading.Thread(
            target=self._work, args=(publish,), name="gradweave-planner", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)  # a search does not outlive the process

    def want(self, of: SizeClass) -> None:
        """Asks for a plan."""
        self._wanted.put(of)

    def close(self) -> None:
        """Ends the thread, and a search under way."""
        self._ended.set()
        self._wanted.put(None)
        atexit.unregister(self.close)
        if self._thread is not None:
            self._thread.join(_LEAVE_S)

    def _work(self, publish: Callable[[SizeClass, Schedule | None], None]) -> None:
        while (of := self._wanted.get()) is not None and not self._ended.is_set():
            try:
                plan = self._plans.find(of, self._ended)
            except GradweaveError as error:
                if not self._ended.is_set():
                    what = f"{of.collective} of {counted(of.size, 'byte')}"
                    _log.warning("no plan for %s, which stays gloo's own: %s", what, error)
                plan = None
            publish(of, None if plan is None or is_own(plan, "gloo") else plan)
