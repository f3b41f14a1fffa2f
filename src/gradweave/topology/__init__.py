"""What the network is: servers, switches and links, generators of known families, files and routes."""

from gradweave.topology.topology import Link, Topology

__all__ = ["Link", "Topology"]
