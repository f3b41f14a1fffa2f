"""An order of hosts in the formats of launchers: rank 0 on the first host, and so on."""

import ipaddress
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from gradweave.common.atomic import atomic_write
from gradweave.common.checks import did_you_mean
from gradweave.errors import InputWarning, OptionError
from gradweave.export.rankfile import hosts_of_servers, rankfile
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.topology import Topology

PORT = 29_500
"""torchrun's default ``--master-port``."""
_NODE = re.compile(r"[a-z0-9]+(?:[.-]+[a-z0-9]+)*")
"""Names of Kubernetes' nodes: subdomains of RFC 1123."""
_MOST_CONFIG_MAP = 1 << 20
"""Bytes of data in a ConfigMap."""


def to_rank_order(
    topology: TopologyLike,
    ranks: Sequence[int],
    format: str,
    hosts: Sequence[str] | None = None,
    addresses: Sequence[str] | None = None,
) -> str:
    """Writes which host has which rank.

    ``hostfile``: for mpirun and MPICH's hydra, one line per host. ``rankfile``: for mpirun
    ``--map-by rankfile:file=FILE``. ``seq``: for mpirun ``--map-by seq``, one line per rank.
    ``slurm``: the same for ``SLURM_HOSTFILE``, with ``srun --distribution=arbitrary``.
    ``torchrun``: each host's ``--node-rank``, since a rendezvous orders hosts by name. ``jax``:
    JSON with the permutation of ``jax.devices()``, which are in order of id, for
    ``jax.make_mesh``. ``mlx``: for ``mlx.launch --hostfile``, whose ring rejects hosts without
    addresses; a warning names them. ``kubernetes``: a ConfigMap with the rank of each node, for
    pods that read theirs instead of their index. Controllers set the labels of pods
    ``batch.kubernetes.io/job-completion-index`` and ``apps.kubernetes.io/pod-index`` before nodes
    are chosen, and Kueue assigns indices to nodes in another order.

    Args:
        topology: the network.
        ranks: [N] node id of the server at each rank, each server once.
        format: one of `ORDER_FORMATS`.
        hosts: [N] the host of each server, in order of id; if not given, the servers' names. The
            format ``jax`` needs none.
        addresses: [N] the IP address of each server, in order of id, for ``mlx``; if not given,
            hosts that are addresses are used.

    Raises:
        OptionError: for an unknown format, ranks that are not each server once, or an invalid host
            name or address; for hostfiles of launchers other than MPI's, two servers on one host.

    >>> import gradweave as gw
    >>> net = gw.topology.star(3)
    >>> print(to_rank_order(net, [2, 0, 1], "slurm", ["a", "b", "c"]), end="")
    c
    a
    b
    """
    topology = as_topology(topology)
    if format not in _WRITERS:
        guess = did_you_mean(format, _WRITERS)
        raise OptionError(f"format: {guess}expected {', '.join(_WRITERS)}, got {format!r:.60}")
    if sorted(ranks) != topology.servers.tolist():
        raise OptionError(
            f"ranks: expected each of the {topology.num_servers} servers once, got {[*ranks]!r:.60}"
        )
    if addresses is not None:
        _check_addresses(topology, format, addresses)
    nameless = format == "jax" and hosts is None and not topology.labels
    by_id = [] if nameless else hosts_of_servers(topology, hosts)
    places: list[int] = topology.rank[[*ranks]].tolist()
    in_order = [by_id[place] for place in places if by_id]
    ips = in_order if addresses is None else [addresses[place] for place in places]
    return _WRITERS[format](topology, ranks, in_order, ips)


def save_rank_order(
    topology: TopologyLike,
    ranks: Sequence[int],
    path: str | Path,
    format: str,
    hosts: Sequence[str] | None = None,
    addresses: Sequence[str] | None = None,
) -> None:
    """Writes `to_rank_order` to a file, whole or not at all.

    Raises:
        OptionError: as `to_rank_order` does.
        FileError: the file cannot be written.
    """
    atomic_write(path, to_rank_order(topology, ranks, format, hosts, addresses).encode())


def _hostfile(_topology: Topology, _ranks: Sequence[int], hosts: list[str], _ips: list[str]) -> str:
    """A line for each stretch of ranks on one host; slots are filled in the order of lines."""
    lines: list[tuple[str, int]] = []
    for host in hosts:
        if lines and lines[-1][0] == host:
            lines[-1] = (host, lines[-1][1] + 1)
        else:
            lines.append((host, 1))
    several = [host for host, times in Counter(host for host, _ in lines).items() if times > 1]
    if several:
        raise OptionError(
            f"hostfile: the ranks of {several[0]!r:.60} do not follow each other, which a hostfile "
            "cannot say; use the format rankfile"
        )
    return "".join(f"{host} slots={slots}\n" for host, slots in lines)


def _rankfile(topology: Topology, ranks: Sequence[int], hosts: list[str], _ips: list[str]) -> str:
    names = [topology.node_name(server) for server in ranks]
    return rankfile(f"{topology.name}: an order of ranks", hosts, names)


def _slurm(_topology: Topology, _ranks: Sequence[int], hosts: list[str], _ips: list[str]) -> str:
    return "".join(f"{host}\n" for host in hosts)


def _torchrun(_topology: Topology, _ranks: Sequence[int], hosts: list[str], _ips: list[str]) -> str:
    _once("torchrun", hosts)
    command = (
        f"torchrun --nnodes {len(hosts)} --node-rank RANK --master-addr {hosts[0]} "
        f"--master-port {PORT}"
    )
    lines = [f"# on each HOST: {command} …", "# RANK HOST"]
    lines += [f"{rank} {host}" for rank, host in enumerate(hosts)]
    return "\n".join(lines) + "\n"


def _jax(topology: Topology, ranks: Sequence[int], hosts: list[str], _ips: list[str]) -> str:
    permutation = topology.rank[[*ranks]].tolist()
    return json.dumps({"permutation": permutation} | ({"hosts": hosts} if hosts else {})) + "\n"


def _mlx(_topology: Topology, _ranks: Sequence[int], hosts: list[str], ips: list[str]) -> str:
    """Hosts for ssh, with the addresses at which their neighbours in the ring reach them."""
    _once("mlx", hosts)
    without = [host for host, ip in zip(hosts, ips, strict=True) if not _is_address(ip)]
    if without:
        more = f" and {len(without) - 1} more" * (len(without) > 1)
        warnings.warn(
            f"{without[0]}{more} without an IP address, which mlx.launch's ring refuses; give "
            "--addresses 10.0.0.1,10.0.0.2,… in order of server id, or add them to ips in the file",
            InputWarning,
            stacklevel=4,
        )
    entries = [
        {"ssh": host, "ips": [ip] if _is_address(ip) else []}
        for host, ip in zip(hosts, ips, strict=True)
    ]
    return json.dumps(entries, indent=1) + "\n"


def _kubernetes(
    _topology: Topology, _ranks: Sequence[int], hosts: list[str], _ips: list[str]
) -> str:
    """A ConfigMap that pods mount; its keys are quoted, since a name may look like a number."""
    _once("kubernetes", hosts)
    for host in hosts:
        if not _NODE.fullmatch(host):
            raise OptionError(
                f"kubernetes: expected names of nodes, in lower case as in node-1, got {host!r:.60}"
            )
    lines = [
        "# The rank of each node. With one pod per node and hostNetwork: true, mount this as the",
        "# volume /ranks, set NODE_NAME from the field spec.nodeName, and start",
        f'# torchrun --nnodes {len(hosts)} --node-rank "$(cat /ranks/$NODE_NAME)" --master-addr '
        f"{hosts[0]} --master-port {PORT} …",
        "apiVersion: v1",
        "kind: ConfigMap",
        "metadata:",
        "  name: rank-order",
        "data:",
        *(f'  "{host}": "{rank}"' for rank, host in enumerate(hosts)),
    ]
    text = "\n".join(lines) + "\n"
    if len(text) > _MOST_CONFIG_MAP:
        raise OptionError(
            f"kubernetes: a ConfigMap holds at most {_MOST_CONFIG_MAP:,} bytes, {len(hosts):,} "
            f"nodes take {len(text):,}"
        )
    return text


def _check_addresses(topology: Topology, format: str, addresses: Sequence[str]) -> None:
    if format != "mlx":
        raise OptionError(f"addresses: are for the format mlx; {format} has no place for them")
    if len(addresses) != topology.num_servers:
        raise OptionError(
            f"addresses: expected one for each of the {topology.num_servers} servers, got "
            f"{len(addresses)}"
        )
    for address in addresses:
        if not _is_address(address):
            raise OptionError(f"addresses: expected such as 10.0.0.7, got {address!r:.60}")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _once(format: str, hosts: list[str]) -> None:
    host, times = Counter(hosts).most_common(1)[0]
    if times > 1:
        raise OptionError(
            f"{format}: expected one server a host, got {times} on {host!r:.60}; order hosts, each "
            "one server"
        )


_WRITERS: dict[str, Callable[[Topology, Sequence[int], list[str], list[str]], str]] = {
    "hostfile": _hostfile,
    "rankfile": _rankfile,
    "seq": _slurm,
    "slurm": _slurm,
    "torchrun": _torchrun,
    "jax": _jax,
    "mlx": _mlx,
    "kubernetes": _kubernetes,
}
ORDER_FORMATS = tuple(_WRITERS)
"""The formats' names on the command line."""
