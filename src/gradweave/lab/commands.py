"""Runs a user's command on an emulated network, once per server, as a launcher would."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gradweave.lab.forwarding import shortest_paths
from gradweave.lab.network import EmulatedNetwork

PORT = 29_500


def server_commands(
    network: EmulatedNetwork, command: Sequence[str]
) -> list[tuple[list[str], dict[str, str]]]:
    """Prepares a command in each server's namespace, for `gradweave.processes.children.Children`.

    The environment is torchrun's: the first server waits for the others. Messages between servers
    take shortest paths, through other servers if necessary.

    Args:
        network: an existing network; its forwarding tables are replaced.
        command: the command, the same for all servers.
    """
    paths = shortest_paths(network.topology)
    network.route(paths)
    network.forward(paths.forwarders)
    servers = network.topology.servers.tolist()
    shared = {
        **os.environ,
        "WORLD_SIZE": str(len(servers)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": network.address(0, servers[0]),
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": network.interface(0),
    }
    # By its path, without the package and site-packages, so that it starts immediately.
    inside = [sys.executable, "-I", "-S", str(Path(__file__).with_name("inside.py"))]
    return [
        ([*inside, network.name(server), *command], {**shared, "RANK": str(rank)})
        for rank, server in enumerate(servers)
    ]
