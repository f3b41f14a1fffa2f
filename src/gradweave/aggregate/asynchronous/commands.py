"""Commands of the driver to all servers: each is executed once and in order.

A call to a server carries all commands that are not known to be executed, up to its own: where Ray
lost a call, the next one makes up for it. A server that receives a command again returns the result
that it returned before.
"""

import collections
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from gradweave.aggregate.asynchronous.actor_pool import ActorPool
from gradweave.aggregate.asynchronous.calls import RetriedCall

OnDone = Callable[[list[Any]], None]
"""Called with the servers' results."""


@dataclasses.dataclass
class _Command:
    number: int
    method: str
    """Of the server."""
    arguments: tuple[Any, ...]
    on_done: OnDone
    calls: list[RetriedCall] = dataclasses.field(default_factory=list)
    """Of each server."""


class Commands:
    """Commands under way, the oldest first."""

    def __init__(self, pool: ActorPool) -> None:
        self._pool, self._number = pool, 0
        self._pending: collections.deque[_Command] = collections.deque()

    def send(
        self, method: str, *arguments: Any, on_done: OnDone = lambda _: None
    ) -> Callable[[], list[Any]]:
        """Sends a command to all servers.

        Args:
            method: of the server.
            arguments: its arguments.
            on_done: called with the results when all have arrived, after those of earlier commands.

        Returns:
            A function that returns the references of the results, which a retry replaces.
        """
        self._number += 1
        command = _Command(self._number, method, arguments, on_done)
        self._pending.append(command)
        command.calls = [
            self._pool.call(partial(self._call, server, command)) for server in self._pool.servers
        ]
        return lambda: [call.reference for call in command.calls]

    def _call(self, server: Any, last: _Command) -> Any:
        due = [
            (command.number, command.method, command.arguments)
            for command in self._pending
            if command.number <= last.number
        ]
        return server.execute.remote(due)

    def collect(self, *, wait: bool) -> None:
        """Takes the results that have arrived, or all, in order.

        Raises:
            ServerLost: a server is gone.
            GradweaveError: raised by a server.
            RunError: a server raised another error, or Ray is gone.
        """
        while self._pending:
            command = self._pending[0]
            if not wait and not self._pool.all_done(command.calls):
                return
            results = self._pool.results(command.calls)
            self._pending.popleft()
            command.on_done(results)
