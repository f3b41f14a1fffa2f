"""Identifies this machine, and looks up the state of processes on it."""

import contextlib
import functools
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from gradweave.execute.torch_distributed.status import RankStatus


@functools.cache
def machine() -> str:
    """A name shared by exactly the processes with the same process ids and monotonic clock."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts = [Path("/proc/sys/kernel/random/boot_id").read_text().strip()]
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def processes(found: Mapping[int, RankStatus]) -> dict[int, str]:
    """For each rank on this machine whose process does not run, a phrase that says why."""
    known = {}
    for rank, status in found.items():
        if status.machine == machine() and os.path.exists("/proc/self/stat"):
            state = _state(status.process)
            if state in _STATES:
                known[rank] = f"its process {status.process} {_STATES[state]}"
    return known


_STATES = {"T": "is stopped", "t": "is stopped by a debugger", "Z": "has ended", "X": "has ended"}
_STATES[""] = "has ended"


def _state(process: int) -> str:
    """The state code of a process in Linux; empty if there is no such process."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""
