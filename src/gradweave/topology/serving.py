"""Nodes that can carry a transfer between two servers."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import networkx as nx


def serving_nodes(graph: "nx.Graph", servers: Iterable[int]) -> set[int]:
    """The servers, and the switches that lie on a path between two servers.

    Args:
        graph: an undirected graph of the network, connected or not.
        servers: its nodes that are servers; nodes are integers from 0.

    >>> import networkx as nx
    >>> sorted(serving_nodes(nx.path_graph(5), servers=[0, 2]))
    [0, 1, 2]
    """
    import networkx as nx

    serving = set(servers)
    # A path between two servers is a cycle through one more node that is joined to all of them.
    hub = -1
    joined = nx.Graph(graph.edges())
    joined.add_edges_from([(hub, server) for server in serving])
    parts: Any = nx.biconnected_components(joined)  # annotated as lists in networkx, but sets
    for nodes in parts:
        if hub in nodes:
            serving |= nodes
    return serving - {hub}
