"""The inside of a host while its file is read: GPUs, network cards, and what joins them."""

import itertools
import warnings
from collections.abc import Collection
from typing import Any

from gradweave.errors import AssumedWarning
from gradweave.topology.formats.graph import from_networkx
from gradweave.topology.serving import serving_nodes
from gradweave.topology.topology import DEVICE_OVERHEAD_S, Link, Topology

_MB = 10**6


class Box:
    """GPUs, cards, PCIe switches and processors, with links in MB/s.

    Nodes are named by text. Cards are switches of the graph that nothing outside joins: the fabric
    is another file's.
    """

    def __init__(self, host: str = "") -> None:
        import networkx as nx

        self.host = host
        """Name of the host, if the file has it."""
        self.graph: Any = nx.DiGraph()
        self.gpus: dict[str, str] = {}
        """The label of each GPU's node, in the order of ranks."""
        self.cpus: dict[str, tuple[str, float]] = {}
        """The host of each processor, and MB/s to each other processor of that host."""
        self.cards: dict[str, tuple[str, ...]] = {}
        """The names of each network card's ports, such as ``mlx5_0``."""
        self.assumed: list[str] = []
        """Assumptions about what the file does not state, with their sources."""

    def add_gpu(self, node: str, label: str = "") -> None:
        """Adds a GPU, the next in the order of ranks."""
        self.graph.add_node(node, kind="server")
        self.gpus[node] = label or node

    def add_switch(self, node: str) -> None:
        """Adds what only forwards: a PCIe switch, a processor, a card."""
        self.graph.add_node(node, kind="switch")

    def join(self, a: str, b: str, mb_per_s: float, latency_s: float = 0.0) -> None:
        """Adds to both directions of a link."""
        self.add(a, b, mb_per_s, latency_s)
        self.add(b, a, mb_per_s, latency_s)

    def add(self, source: str, target: str, mb_per_s: float, latency_s: float = 0.0) -> None:
        """Adds MB/s to one direction of a link, and raises its latency beyond the default."""
        link = self.graph.get_edge_data(source, target, {})
        self.graph.add_edge(
            source,
            target,
            bandwidth_bytes_per_s=link.get("bandwidth_bytes_per_s", 0) + mb_per_s * _MB,
            latency_s=max(link.get("latency_s", 0.0), Link().latency_s + latency_s),
            overhead_s=DEVICE_OVERHEAD_S,
        )

    def inside(self, cards: Collection[str] = ()) -> Any:
        """The graph with the processors of each host joined.

        Each direction between two processors has the speed of its source. Processors that neither
        a GPU nor one of the cards hangs on would be mere detours, which no hardware takes: they
        are left out.

        Args:
            cards: those to keep.
        """
        inside = Box()
        inside.graph = self.graph.copy()
        inside.graph.remove_nodes_from(card for card in self.cards if card not in cards)
        kept = {*self.gpus, *self.cpus, *cards}
        while idle := [
            node
            for node in inside.graph
            if node not in kept and len({*inside.graph.successors(node)}) < 2
        ]:
            inside.graph.remove_nodes_from(idle)
        used = {cpu: inside.graph.out_degree(cpu) for cpu in self.cpus}
        inside.graph.remove_nodes_from(cpu for cpu, links in used.items() if not links)
        for (a, (host, speed)), (b, (other, _)) in itertools.permutations(self.cpus.items(), 2):
            if host == other and used[a] and used[b]:
                inside.add(a, b, speed)
        return inside.graph

    def topology(self, name: str) -> Topology:
        """The network between the GPUs, which come first, in their order.

        Nodes that lie on no path between two GPUs are left out. What was assumed is a warning.

        Args:
            name: the network's name.

        Raises:
            TopologyError: such a network cannot exist.
        """
        if self.assumed:
            warnings.warn(f"{name}: {'; '.join(self.assumed)}", AssumedWarning, stacklevel=2)
        graph = self.inside()
        labels = self.gpus | {node: node for node in graph if node not in self.gpus}
        return named_network(graph, labels, len(self.gpus), name)


def named_network(graph: Any, labels: dict[str, str], servers: int, name: str) -> Topology:
    """The network of a graph whose nodes are named by text, without what serves no two servers.

    Args:
        graph: as `from_networkx` takes it, with kinds.
        labels: of all nodes, servers first, in the order of ids.
        servers: number of servers.
        name: the network's name.

    Raises:
        TopologyError: such a network cannot exist.
    """
    import networkx as nx

    number = {node: place for place, node in enumerate(labels)}
    numbered: Any = nx.relabel_nodes(graph, number)
    serving = serving_nodes(numbered.to_undirected(), range(servers))
    network: Any = nx.DiGraph()
    for node, place in number.items():
        if place in serving:
            network.add_node(place, label=labels[node], **graph.nodes[node])
    network.add_edges_from(
        edge for edge in numbered.edges(data=True) if serving.issuperset(edge[:2])
    )
    return from_networkx(network, name, round_capacities=False)  # stated figures, not measured
