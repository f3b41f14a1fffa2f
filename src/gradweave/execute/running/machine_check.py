"""Checks whether this machine has enough cores and memory for a run, before anything is started."""

import os
import warnings
from pathlib import Path

from gradweave.common.wording import counted
from gradweave.errors import InputWarning, OptionError
from gradweave.topology.units import format_size

KEPT, PEAK = 4, 8
"""Copies of a gradient per server: permanent ones (the server's part, the working copy, the
library's copy, the expected result), and the peak while results are checked, measured as 8.3 with
MPI and PyTorch and 5.9 with JAX."""
PROCESS_BYTES = 100_000_000
"""Minimum memory of a process, without any gradient."""
SERVERS_PER_CORE = 8
"""With more servers per core, times say nothing about the schedule."""


def check_machine(servers: int, processes: int, gradient_bytes: int) -> None:
    """Refuses a run that needs more memory than this machine has; warns of too many servers.

    Args:
        servers: number of servers, each with one gradient.
        processes: number of processes, among which the servers are divided.
        gradient_bytes: size of the gradient.

    Raises:
        OptionError: see `check_memory`.
    """
    cores = os.cpu_count() or 1
    if servers > SERVERS_PER_CORE * cores:
        _warn(f"{servers} servers share {counted(cores, 'core')}; the times are those of the cores")
    if warning := check_memory(servers, processes, gradient_bytes):
        _warn(warning)


def _warn(warning: str) -> None:
    warnings.warn(warning, InputWarning, stacklevel=4)


def available_bytes() -> int | None:
    """Memory that new processes can use without swapping, or None if the system does not tell."""
    each = [_available_to_machine(), *(_left_of(*names) for names in _LIMITS)]
    return min((size for size in each if size is not None), default=None)


def check_memory(servers: int, processes: int, gradient_bytes: int) -> str | None:
    """Refuses a run that needs more memory than this machine has.

    Args:
        servers: number of servers, each with one gradient.
        processes: number of processes, among which the servers are divided.
        gradient_bytes: size of the gradient.

    Returns:
        A warning if the memory may not suffice while results are checked.

    Raises:
        OptionError: the memory does not suffice; the message gives both sizes.
    """
    available = available_bytes()
    if available is None:
        return None
    least, peak = (
        servers * gradient_bytes * copies + processes * PROCESS_BYTES for copies in (KEPT, PEAK)
    )
    what = f"{servers} gradients of {format_size(gradient_bytes)} and their copies need"
    free = f"{format_size(available)} of memory are available"
    if least > available:
        raise OptionError(
            f"{what} at least {format_size(least)}, and {free} here; make the gradient smaller, or "
            "spread the processes over machines with mpirun or torchrun"
        )
    if peak > available:
        return f"{what} up to {format_size(peak)} while results are checked, and {free}"
    return None


_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)
"""Files with a container's memory limit and use, for both versions of control groups."""


def _available_to_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, ValueError, StopIteration):
        return None


def _left_of(limit: str, used: str) -> int | None:
    try:
        return max(int(Path(limit).read_text()) - int(Path(used).read_text()), 0)
    except (OSError, ValueError):  # no such file, or no limit: "max"
        return None
