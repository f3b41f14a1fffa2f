"""What this machine knows of a job's processes."""

import contextlib
import functools
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from gradweave.torch.stands import RankStand


@functools.cache
def machine() -> str:
    """Where process ids and the monotonic clock are the same."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts = [Path("/proc/sys/kernel/random/boot_id").read_text().strip()]
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def processes(found: Mapping[int, RankStand]) -> dict[int, str]:
    """What this machine knows of the processes of its ranks that do not run."""
    known = {}
    for rank, stand in found.items():
        if stand.machine == machine() and os.path.exists("/proc/self/stat"):
            state = _state(stand.process)
            if state in _STATES:
                known[rank] = f"its process {stand.process} {_STATES[state]}"
    return known


_STATES = {"T": "is stopped", "t": "is stopped by a debugger", "Z": "has ended", "X": "has ended"}
_STATES[""] = "has ended"


def _state(process: int) -> str:
    """As Linux has it; empty where there is no such process."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""
