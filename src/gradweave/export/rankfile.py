"""Rankfiles of Open MPI: which host runs which rank."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gradweave.common.atomic import atomic_write
from gradweave.errors import OptionError
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.topology.topology import Topology

_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")


def to_rankfile(schedule: ScheduleLike, hosts: Sequence[str] | None = None) -> str:
    """Writes where each rank runs: the process of rank r is the r-th server, in order of id.

    ``mpirun --hostfile … --map-by rankfile:file=FILE`` takes it and binds each process
    to one core, the next of its host.

    Args:
        schedule: the schedule.
        hosts: the host of each rank; if not given, the servers' names are their hosts.

    Raises:
        OptionError: not one host per rank, or not a valid host name.

    >>> import gradweave as gw
    >>> schedule = gw.schedulers.Ring().schedule(gw.topology.ring(2))
    >>> print(to_rankfile(schedule, ["node1", "node1"]), end="")
    # ring:n=2: the r-th server, in order of id, has rank r
    rank 0=node1 slot=0  # server 0
    rank 1=node1 slot=1  # server 1
    """
    schedule = as_schedule(schedule)
    topology = schedule.topology
    hosts = hosts_of_servers(topology, hosts)
    names = map(topology.node_name, topology.servers.tolist())
    title = f"{topology.name}: the r-th server, in order of id, has rank r"
    return rankfile(title, hosts, [*names])


def rankfile(title: str, hosts: Sequence[str], names: Sequence[str]) -> str:
    """A rankfile: each rank on the next core of its host.

    Args:
        title: for a comment.
        hosts: [N] the host of each rank.
        names: [N] of each rank, for comments.
    """
    used: Counter[str] = Counter()
    lines = [f"# {_plain(title)}"]
    for rank, (host, name) in enumerate(zip(hosts, names, strict=True)):
        lines.append(f"rank {rank}={host} slot={used[host]}  # {_plain(name)}")
        used[host] += 1
    return "\n".join(lines) + "\n"


def hosts_of_servers(topology: Topology, hosts: Sequence[str] | None = None) -> list[str]:
    """The host of each server, in order of id, checked.

    Args:
        topology: the network.
        hosts: [N] the hosts; if not given, the servers' names are their hosts.

    Raises:
        OptionError: not one for each server, or not a valid host name.
    """
    hosts = _names(topology) if hosts is None else list(hosts)
    if len(hosts) != topology.num_servers:
        raise OptionError(
            f"hosts: expected one for each of the {topology.num_servers} servers, got {len(hosts)}"
        )
    for rank, host in enumerate(hosts):
        if not _HOST.fullmatch(host):
            raise OptionError(
                f"hosts: expected host names such as node1 or 10.0.0.7, got {host!r:.60} for rank "
                f"{rank}"
            )
    return hosts


def save_rankfile(
    schedule: ScheduleLike, path: str | Path, *, hosts: Sequence[str] | None = None
) -> None:
    """Writes `to_rankfile` to a file, whole or not at all.

    Raises:
        OptionError: as `to_rankfile` does.
        FileError: the file cannot be written.
    """
    atomic_write(path, to_rankfile(schedule, hosts).encode())


def parse_hosts(text: str) -> list[str]:
    """Reads hosts as mpirun takes them: ``node1:8,node2:8`` are eight ranks on each.

    Raises:
        OptionError: not a number of ranks.

    >>> parse_hosts("node1:2,node2")
    ['node1', 'node1', 'node2']
    """
    hosts: list[str] = []
    for part in text.split(","):
        host, colon, count = part.strip().partition(":")
        if colon and not re.fullmatch(r"0*[1-9][0-9]{0,5}", count):
            raise OptionError(f"hosts: {part!r:.60}: expected a host and a number, as in node1:8")
        hosts += [host] * (int(count) if colon else 1)
        if len(hosts) > 1 << 20:
            raise OptionError(f"hosts: {text!r:.60}: more than {1 << 20:,} ranks")
    return hosts


def _names(topology: Topology) -> list[str]:
    if not topology.labels:
        raise OptionError(
            f"hosts: the nodes of {topology.name!r:.60} have no names to use as hosts; give the "
            "host of each rank, as in node1:8,node2:8"
        )
    return [topology.labels[server] for server in topology.servers.tolist()]


def _plain(text: str) -> str:
    """A name without characters that a comment cannot hold."""
    return re.sub(r"[^ -~]", "?", text)
