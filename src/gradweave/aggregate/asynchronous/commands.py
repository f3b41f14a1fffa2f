"""Commands from the driver to all servers; each is executed once and in order.

A call to a server carries all commands that are not known to have been executed, up to the newest.
So if Ray loses a call, the next call makes up for it. A server that receives a command again
returns its earlier result.
"""

import collections
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from gradweave.aggregate.asynchronous.actor_pool import ActorPool
from gradweave.aggregate.asynchronous.calls import RetriedCall

OnDone = Callable[[list[Any]], None]
"""Receives the servers' results."""


@dataclasses.dataclass
class _Command:
    number: int
    method: str
    """Name of the server's method."""
    arguments: tuple[Any, ...]
    on_done: OnDone
    calls: list[RetriedCall] = dataclasses.field(default_factory=list)
    """The call to each server."""


class Commands:
    """Pending commands, oldest first."""

    def __init__(self, pool: ActorPool) -> None:
        self._pool, self._number = pool, 0
        self._pending: collections.deque[_Command] = collections.deque()

    def send(
        self, method: str, *arguments: Any, on_done: OnDone = lambda _: None
    ) -> Callable[[], list[Any]]:
        """Sends a command to all servers.

        Args:
            method: name of the server's method.
            arguments: its arguments.
            on_done: called with the results when all have arrived, after those of earlier commands.

        Returns:
            A function that returns the references of the results; a retry replaces them.
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
        """Processes the results that have arrived in order, or waits for all of them.

        Raises:
            ServerLost: a server is gone.
            GradweaveError: a server raised it.
            RunError: a server raised another error, or Ray has ended.
        """
        while self._pending:
            command = self._pending[0]
            if not wait and not self._pool.all_done(command.calls):
                return
            results = self._pool.results(command.calls)
            self._pending.popleft()
            command.on_done(results)
