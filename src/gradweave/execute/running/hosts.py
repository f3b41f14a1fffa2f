"""Assigns servers to a launcher's processes, by the hosts that the servers are named after."""

import re
import socket
import warnings
from collections import defaultdict, deque
from collections.abc import Sequence

import numpy as np

from gradweave.errors import InputWarning, OptionError
from gradweave.execute.running.timing import Runner
from gradweave.schedules.schedule import Schedule
from gradweave.topology.topology import Topology

_HOST_BYTES = 64
"""Length of the longest host name in Linux."""
_GENERIC = re.compile(
    r"(a?rank|server|worker|process|device|accelerator|chip|[cgntx]pu|[hs])[-_.]?[0-9]+"
)
"""Names for parts of any machine, which are not names of hosts."""
_NUMBERED = re.compile(r"[a-z][a-z0-9.-]*[0-9][a-z0-9.-]*")
"""The usual form of host names: lower case, with a number."""


def placed_by_hosts(runner: Runner, schedule: Schedule) -> Schedule:
    """Reorders a schedule's servers to match hosts: each rank gets a server named after its host.

    If no order of the servers does that, returns the schedule unchanged, and rank 0 warns.
    Collective: all processes must call it.

    Args:
        runner: exchanges the names of the processes' hosts.
        schedule: the schedule.
    """
    own = socket.gethostname().encode()[:_HOST_BYTES]
    padded = np.frombuffer(own.ljust(_HOST_BYTES, b"\0"), np.uint8)
    rows = np.asarray(runner.gathered(padded.copy()), np.uint8).reshape(-1, _HOST_BYTES)
    hosts = [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in rows]
    order = server_order(schedule.topology, hosts, warn=0 in runner.ranks)
    return schedule if order is None else schedule.with_server_order(order)


def server_order(
    topology: Topology, hosts: Sequence[str], *, warn: bool = True
) -> list[int] | None:
    """The server for each rank by `order_by_hosts`, or None to leave the servers as they are.

    Args:
        topology: the network.
        hosts: [R] host of each rank.
        warn: whether to warn if the servers are named after other hosts.
    """
    if not topology.labels or len(hosts) != topology.num_servers:
        return None
    try:
        return order_by_hosts(server_names(topology), hosts)
    except OptionError as error:
        if warn:
            warnings.warn(str(error), InputWarning, stacklevel=3)
        return None


def server_names(topology: Topology) -> list[str]:
    """[N] names of the servers, in order of id."""
    return [topology.label(server) for server in topology.servers.tolist()]


def order_by_hosts(names: Sequence[str], hosts: Sequence[str]) -> list[int] | None:
    """The server for each rank, if servers are named after the hosts on which ranks run.

    Servers of one host go to its ranks in order. The names count as hosts if one of them is the
    name of a host here, or if all of them look like names of hosts and none is generic. Returns
    None if the names are not hosts, if the servers are in this order already, or if all ranks share
    one host and there are no more servers than ranks.

    Args:
        names: [N] names of the servers, in order of id.
        hosts: [R] host of each rank; R <= N.

    Raises:
        OptionError: no server is left for the host of some rank.

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
    """The name of a host without its domain."""
    return host.strip().lower().partition(".")[0]


def _host_of(name: str, known: set[str]) -> str:
    """The host in a server's name; servers of one host may be numbered, as in ``node1:2``."""
    short = _short(name)
    without = re.sub(r"[ :._-][0-9]+$", "", name.strip().lower())
    return short if short in known or _short(without) not in known else _short(without)


def _looks_like_a_host(name: str) -> bool:
    return bool(_NUMBERED.fullmatch(name)) and not _GENERIC.fullmatch(name)
