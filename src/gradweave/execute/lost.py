"""The error that names a lost server."""

from gradweave.errors import LostServerError
from gradweave.topology.topology import Topology


def lost_server(topology: Topology, rank: int, how: str) -> LostServerError:
    """The error for the server of a rank, named by its label, or by its id if it has no label.

    Args:
        topology: the network.
        rank: rank of the server, from 0.
        how: how the server ended, as far as is known.
    """
    server = int(topology.servers[rank])
    return LostServerError(server, rank, how, topology.label(server))
