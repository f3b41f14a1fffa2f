"""Whether a launcher's processes run on the hosts that their servers are named after."""

import re
import socket
import warnings
from collections.abc import Sequence

import numpy as np

from gradweave.errors import InputWarning
from gradweave.execute.running.timing import Runner
from gradweave.topology.topology import Topology

_HOST_BYTES = 64
"""Longest host name that Linux has."""
_GENERIC = re.compile(
    r"(a?rank|server|worker|process|device|accelerator|chip|[cgntx]pu|[hs])[-_.]?[0-9]+"
)
"""Names of what every machine has; they are no hosts'."""
_NUMBERED = re.compile(r"[a-z][a-z0-9.-]*[0-9][a-z0-9.-]*")
"""Names that hosts usually have: lower case, with a number."""


def warn_of_hosts(runner: Runner, topology: Topology) -> None:
    """Warns, in the process of rank 0, where ranks run on other hosts than their servers.

    All processes have to call this together.

    Args:
        runner: by which the processes tell each other their hosts.
        topology: the schedule's network.
    """
    own = socket.gethostname().encode()[:_HOST_BYTES]
    padded = np.frombuffer(own.ljust(_HOST_BYTES, b"\0"), np.uint8)
    rows = np.asarray(runner.gathered(padded.copy()), np.uint8).reshape(-1, _HOST_BYTES)
    if 0 not in runner.ranks or not topology.labels or len(rows) != topology.num_servers:
        return
    hosts = [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in rows]
    names = [topology.label(server) for server in topology.servers.tolist()]
    if warning := elsewhere(names, hosts):
        warnings.warn(warning, InputWarning, stacklevel=2)


def elsewhere(names: Sequence[str], hosts: Sequence[str]) -> str | None:
    """Says that ranks run on other hosts than those that their servers are named after.

    Nothing is said where all ranks share one host, or where names are not those of hosts: they are
    where one of them is that of a host here, or all look like host names that are not generic.

    Args:
        names: [N] of the servers, by rank.
        hosts: [N] on which each rank runs.

    >>> elsewhere(["node1", "node2"], ["node2", "node1"])
    'rank 0 runs on host node2, while the schedule has it as server node1 (1 more is elsewhere);
    start the ranks in the order of the servers, which a rankfile of gradweave export gives mpirun'
    >>> elsewhere(["gpu0", "gpu1"], ["a", "b"])
    """
    if len({_short(host) for host in hosts}) == 1:
        return None
    known = {_short(host) for host in hosts}
    wanted = [_host_of(name, known) for name in names]
    if not known & set(wanted) and not all(map(_looks_like_a_host, names)):
        return None
    wrong = [rank for rank, host in enumerate(hosts) if wanted[rank] != _short(host)]
    if not wrong:
        return None
    rank, others = wrong[0], len(wrong) - 1
    more = f" ({others} more {'is' if others == 1 else 'are'} elsewhere)" if others else ""
    return (
        f"rank {rank} runs on host {hosts[rank]}, while the schedule has it as server "
        f"{names[rank]}{more}; start the ranks in the order of the servers, which a rankfile of "
        "gradweave export gives mpirun"
    )


def _short(host: str) -> str:
    """A host without its domain."""
    return host.strip().lower().partition(".")[0]


def _host_of(name: str, known: set[str]) -> str:
    """The host that a name means: several servers of one host are numbered, as in ``node1:2``."""
    short = _short(name)
    without = re.sub(r"[ :._-][0-9]+$", "", name.strip().lower())
    return short if short in known or _short(without) not in known else _short(without)


def _looks_like_a_host(name: str) -> bool:
    return bool(_NUMBERED.fullmatch(name)) and not _GENERIC.fullmatch(name)
