"""Which server is which of a launcher's processes, by the hosts that servers are named after."""

import re
import socket
import warnings
from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np

from gradweave.errors import InputWarning, OptionError
from gradweave.execute.running.timing import Runner
from gradweave.schedule.schedule import Schedule
from gradweave.topology.topology import Topology

_HOST_BYTES = 64
"""Longest host name that Linux has."""
_GENERIC = re.compile(
    r"(a?rank|server|worker|process|device|accelerator|chip|[cgntx]pu|[hs])[-_.]?[0-9]+"
)
"""Names of what every machine has; they are no hosts'."""
_NUMBERED = re.compile(r"[a-z][a-z0-9.-]*[0-9][a-z0-9.-]*")
"""Names that hosts usually have: lower case, with a number."""


def placed_by_hosts(runner: Runner, schedule: Schedule) -> Schedule:
    """The schedule whose servers, by rank, are those that the ranks' hosts are named after.

    Where no order of the servers does that, the schedule as it is, and the process of rank 0 warns.
    All processes have to call this together.

    Args:
        runner: by which the processes tell each other their hosts.
        schedule: the schedule.
    """
    own = socket.gethostname().encode()[:_HOST_BYTES]
    padded = np.frombuffer(own.ljust(_HOST_BYTES, b"\0"), np.uint8)
    rows = np.asarray(runner.gathered(padded.copy()), np.uint8).reshape(-1, _HOST_BYTES)
    topology = schedule.topology
    if not topology.labels or len(rows) != topology.num_servers:
        return schedule
    hosts = [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in rows]
    try:
        order = order_by_hosts(server_names(topology), hosts)
    except OptionError as error:
        if 0 in runner.ranks:
            warnings.warn(str(error), InputWarning, stacklevel=2)
        return schedule
    return schedule if order is None else schedule.with_server_order(order)


def server_names(topology: Topology) -> list[str]:
    """[N] the servers' names, in order of id."""
    return [topology.label(server) for server in topology.servers.tolist()]


def order_by_hosts(names: Sequence[str], hosts: Sequence[str]) -> list[int] | None:
    """Which server each rank is to be, if servers are named after the hosts that the ranks run on.

    Servers of one host go to its ranks in order. None where they are in this order already, where
    there are no more servers than ranks and all ranks share one host, or where names are not those
    of hosts: they are where one of them is that of a host here, or all look like host names that
    are not generic.

    Args:
        names: [N] of the servers, in order of id.
        hosts: [R] on which each rank runs; R <= N.

    Raises:
        OptionError: some rank's host has no server left for it.

    >>> order_by_hosts(["node1", "node2"], ["node2", "node1"])
    [1, 0]
    >>> order_by_hosts(["gpu0", "gpu1"], ["a", "b"])
    """
    if len({_short(host) for host in hosts}) == 1 and len(names) <= len(hosts):
        return None
    known = {_short(host) for host in hosts}
    wanted = [_host_of(name, known) for name in names]
    if not known & set(wanted) and not all(map(_looks_like_a_host, names)):
        return None
    places = defaultdict[str, deque[int]](deque)
    for place, host in enumerate(wanted):
        places[host].append(place)
    order = [of.popleft() if (of := places[_short(host)]) else -1 for host in hosts]
    if -1 in order:
        rank, server = order.index(-1), min(set(range(len(names))) - set(order))
        raise OptionError(
            f"rank {rank} runs on host {hosts[rank]}, which has no server for it in the network, "
            f"while server {names[server]} has no rank; start one rank on the host of each server"
        )
    return None if order == list(range(len(names))) else order


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
