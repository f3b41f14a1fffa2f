"""The keeper: a process that watches Ray's processes for their user, and cleans them up.

Ray ends its user's process silently if the raylet is gone, and a minute after the GCS is gone. So
the message and the clean-up must come from another process.

The keeper is run by its path, without the package, so that it is small and starts quickly. Its user
sends fields of `Watched` as JSON objects, one per line, on standard input. The end of the input
means that the user has ended.
"""

import contextlib
import dataclasses
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from typing import Any

POLL_S = 0.1
"""Time between two checks."""
NOTE_EVERY_S = 1.0
"""Time between two searches for processes that hide their mark."""
KNOCK_EVERY_S = 5.0
KNOCK_S = 2.0
"""Timeout for connecting to the address."""
PATIENCE_S = 30.0
"""How long a cluster's GCS may be silent, for example while it restarts. Ray itself waits 60 s."""
CLEAR_S = 2.0
"""How long killed processes may take to end."""


@dataclasses.dataclass
class Watched:
    """The processes to watch, and what to clean up."""

    psutil: str
    """Folder of the package psutil, which Ray brings along."""
    mark: tuple[str, str] | None = None
    """Environment variable and value of processes to kill; None: the processes belong to others."""
    folder: str | None = None
    """Folder to remove at the end."""
    parts: dict[str, int] = dataclasses.field(default_factory=dict)
    """Names and ids of the processes without which Ray does not work."""
    address: str | None = None
    """Address of a GCS on another machine."""
    resume: str = ""
    """The end of the message: what was kept of the work, and how to resume."""
    end: bool = False
    """Whether the user has ended Ray itself."""


class Keeper:
    """Watches processes until the user has ended."""

    def __init__(self, watched: Watched) -> None:
        import psutil

        self._psutil, self._watched = psutil, watched
        self._lost = ""
        self._answered = self._knocked = self._noted = time.monotonic()
        self._agents: set[Any] = set()
        self._heard = b""

    def keep(self) -> None:
        """Reports the first part of Ray that ends, and cleans up at the end."""
        while self._listen():
            if time.monotonic() - self._noted >= NOTE_EVERY_S:
                self._note_agents()
            if not self._lost:
                self._lost = self._ended()
                if self._lost:
                    self._clear()
                    _write(1, json.dumps({"lost": self._lost}))
        if not self._watched.end:
            how = self._lost or self._ended(together=True)
            self._say(how or "the process that used Ray ended")
        self._clear()
        if self._watched.folder is not None:
            shutil.rmtree(self._watched.folder, ignore_errors=True)

    def _listen(self) -> bool:
        """Reads messages for `POLL_S`; returns False if the user has ended."""
        if not select.select([0], [], [], POLL_S)[0]:
            return True
        came = os.read(0, 65536)
        *lines, self._heard = (self._heard + came).split(b"\n")
        for line in lines:
            for name, value in json.loads(line).items():
                setattr(self._watched, name, value)
                if name == "parts":
                    self._note_agents()
        return bool(came)

    def _note_agents(self) -> None:
        """Notes processes that overwrite their environment, including the mark, with a title.

        Such processes are children of Ray's own processes (`parts`). Before those are known, the
        children of all processes with the mark are noted.
        """
        parts = self._watched.parts.values() or [process.pid for process in self._with_mark()]
        for process in parts:
            with contextlib.suppress(self._psutil.Error):
                self._agents.update(self._psutil.Process(process).children())
        self._noted = time.monotonic()

    def _ended(self, *, together: bool = False) -> str:
        """Describes the part of Ray that has ended; empty if none has.

        Args:
            together: whether the user has ended as well.
        """
        gone = [f"Ray's {n} (process {i})" for n, i in self._watched.parts.items() if self._dead(i)]
        if together:
            return f"the process that used Ray ended together with {gone[0]}" if gone else ""
        return f"{gone[0]} ended" if gone else self._unanswered()

    def _unanswered(self) -> str:
        address, now = self._watched.address, time.monotonic()
        if address is None or now - self._knocked < KNOCK_EVERY_S:
            return ""
        self._knocked = now
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), KNOCK_S).close()
            self._answered = time.monotonic()
        except OSError:
            if now - self._answered > PATIENCE_S:
                return f"Ray's GCS at {address} has not answered for {now - self._answered:.0f} s"
        return ""

    def _dead(self, process: int) -> bool:
        try:
            return self._psutil.Process(process).status() == self._psutil.STATUS_ZOMBIE
        except self._psutil.Error:
            return True

    def _clear(self) -> None:
        """Kills all processes with the mark, and waits until they have ended."""
        self._note_agents()  # includes those that started since the last search
        until = time.monotonic() + CLEAR_S
        while (left := self._marked()) and time.monotonic() < until:
            for process in left:
                with contextlib.suppress(self._psutil.Error):
                    process.kill()
            time.sleep(0.02)

    def _marked(self) -> list[Any]:
        """All of Ray's processes that are still running."""
        if self._watched.mark is None:
            return []
        agents = [one for one in self._agents if one.is_running() and not self._dead(one.pid)]
        return agents + self._with_mark()

    def _with_mark(self) -> list[Any]:
        if self._watched.mark is None:
            return []
        (name, value), found = self._watched.mark, []
        for process in self._psutil.process_iter():
            with contextlib.suppress(self._psutil.Error, OSError):
                if process.environ().get(name) == value:
                    found.append(process)
        return found

    def _say(self, how: str) -> None:
        resume = f"; {self._watched.resume}" if self._watched.resume else ""
        _write(2, f"gradweave: {how}{resume}")


def _write(descriptor: int, line: str) -> None:
    """Writes a line, unbuffered, unless nobody can read it."""
    with contextlib.suppress(OSError):
        os.write(descriptor, f"{line}\n".encode())


def main() -> None:
    """Watches the processes named in the first argument."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    watched = Watched(**json.loads(sys.argv[1]))
    sys.path.append(watched.psutil)
    Keeper(watched).keep()


if __name__ == "__main__":
    main()
