"""Which server has which rank: the r-th one, in order of id."""

from typing import Any

from gradweave.topology import Topology

_MOST_SHOWN = 16


def rank_map(topology: Topology) -> list[dict[str, Any]]:
    """Rank, server and name (None where it has none) of each server, for JSON."""
    labels = topology.labels
    return [
        {"rank": rank, "server": server, "name": labels[server] if labels else None}
        for rank, server in enumerate(topology.servers.tolist())
    ]


def rank_lines(topology: Topology) -> list[str]:
    """The same in one line, or none where ranks are ids and there are no names."""
    servers = topology.servers.tolist()
    if not topology.labels and servers == list(range(len(servers))):
        return []
    shown = [
        f"{rank} is server {topology.id_name(server)}"
        for rank, server in enumerate(servers[:_MOST_SHOWN])
    ]
    return [f"ranks: {', '.join(shown)}{', …' * (len(servers) > _MOST_SHOWN)}"]
