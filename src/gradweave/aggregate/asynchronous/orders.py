"""What the driver orders of all servers: each is carried out once and in turn.

A call to a server brings the orders that are not known to be carried out, up to its own: where Ray
lost the call before, the next one brings what it had. A server that is asked again for what it has
done gives the answer that it gave.
"""

import collections
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from gradweave.aggregate.asynchronous.calls import Call
from gradweave.aggregate.asynchronous.crew import Crew

Taken = Callable[[list[Any]], None]
"""Takes the servers' answers."""


@dataclasses.dataclass
class _Order:
    number: int
    what: str
    """Name of the server's method."""
    given: tuple[Any, ...]
    take: Taken
    calls: list[Call] = dataclasses.field(default_factory=list)
    """Of each server."""


class Orders:
    """Orders under way, the oldest first."""

    def __init__(self, crew: Crew) -> None:
        self._crew, self._number = crew, 0
        self._open: collections.deque[_Order] = collections.deque()

    def give(self, what: str, *given: Any, take: Taken = lambda _: None) -> Callable[[], list[Any]]:
        """Orders something of all servers.

        Args:
            what: name of the server's method.
            given: its arguments.
            take: takes the answers when all are there, after those of the orders before.

        Returns:
            A function that gives the references of the answers; others, where it was asked again.
        """
        self._number += 1
        order = _Order(self._number, what, given, take)
        self._open.append(order)
        order.calls = [
            self._crew.call(partial(self._ask, server, order)) for server in self._crew.servers
        ]
        return lambda: [call.reference for call in order.calls]

    def _ask(self, server: Any, last: _Order) -> Any:
        due = [
            (order.number, order.what, order.given)
            for order in self._open
            if order.number <= last.number
        ]
        return server.follow.remote(due)

    def settle(self, *, wait: bool) -> None:
        """Takes the answers that are there by now, or all, in order.

        Raises:
            ServerLost: a server is gone.
            GradweaveError: that a server raised.
            RunError: something else that a server raised, or Ray is gone.
        """
        while self._open:
            order = self._open[0]
            if not wait and not self._crew.answered(order.calls):
                return
            answers = self._crew.answers(order.calls)
            self._open.popleft()
            order.take(answers)
