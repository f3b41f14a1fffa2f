"""The error that names a lost server."""

from gradweave.errors import LostServerError
from gradweave.topology.topology import Topology


def lost_server(topology: Topology, rank: int, how: str) -> LostServerError:
    """The server of a rank, by its label, or its id where it has none.

    Args:
        topology: the network.
        rank: its place among the servers, from 0.
        how: how it ended, as far as is known.
    """
    server = int(topology.servers[rank])
    return LostServerError(server, rank, how, topology.label(server))
