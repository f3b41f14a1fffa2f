"""The child's side of `gradweave.processes.children`: messages to and from its parent."""

import functools
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradweave.errors import GradweaveError
from gradweave.processes.ending import end_at_once


class Parent:
    """The process that started this one, at the other end of standard input and output.

    From its construction on, standard output is reserved for the parent; all other output goes to
    standard error. Ctrl-C is handled by the parent. If it is sent to this process directly, it ends
    the process like other signals, and the parent can report that.

    Args:
        log: file for standard error, or None to leave it as it is.
    """

    def __init__(self, log: Path | None = None) -> None:
        if log is not None:
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def send(self, **message: Any) -> None:
        """Sends one JSON object; ends this process if the parent is gone."""
        try:
            self._out.write(json.dumps(message) + "\n")
            self._out.flush()
        except OSError:
            os._exit(1)

    def listen(self, receive: Callable[[dict[str, Any]], None]) -> None:
        """Passes each message to a function, in a separate thread.

        When the parent has closed the pipe or is gone, this process ends, whatever it is doing.

        Args:
            receive: called with each message.
        """

        def passes() -> None:
            for line in sys.stdin:
                receive(json.loads(line))
            os._exit(0)

        threading.Thread(target=passes, name="gradweave-parent", daemon=True).start()

    def serve(self, server: object) -> None:
        """Answers tasks, one after the other, until the parent is gone.

        Args:
            server: its method ``run`` carries out the task ``{"do": "run", …}`` and returns the
                answer. Its first `GradweaveError` or `RuntimeError` is sent, and ends this process.
        """
        tasks: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.listen(tasks.put)
        while True:
            task = tasks.get()
            try:
                self.send(**getattr(server, task["do"])(task))
            except (GradweaveError, RuntimeError) as error:
                # Threads may still be waiting for messages that will never arrive.
                end_at_once(1, functools.partial(self.send, error=str(error)))
