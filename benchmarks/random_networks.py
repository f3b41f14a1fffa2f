"""Random connected networks: 8 to 40 servers, unequal capacities, with and without switches."""

import dataclasses

import networkx as nx
import numpy as np

import gradweave as gw


def random_network(seed: int, *, unlike_directions: bool = False) -> gw.Topology:
    """A connected network, determined by its seed.

    Half of the seeds give no switches; the others one for every two to six servers, each server on
    one or two of them. Further links join random pairs until the average degree is 2 to 4.
    Capacities are 1, 2 or 4.

    Args:
        seed: of everything.
        unlike_directions: whether the two directions of a link have independent capacities.
    """
    rng = np.random.default_rng([2026, seed])
    servers = int(rng.integers(8, 41))
    switches = 0 if seed % 2 else max(2, servers // int(rng.integers(2, 7)))
    graph = nx.Graph()
    graph.add_nodes_from(range(servers + switches))
    core = list(range(servers, servers + switches)) or list(range(servers))
    order = rng.permutation(core)
    for place in range(1, len(order)):  # a random tree keeps the core connected
        graph.add_edge(int(order[place]), int(order[rng.integers(place)]))
    if switches:
        for server in range(servers):
            ports = min(int(rng.integers(1, 3)), switches)
            for switch in rng.choice(core, ports, replace=False):
                graph.add_edge(server, int(switch))
    wanted = int(rng.uniform(2, 4) * len(core) / 2)
    for _ in range(50 * wanted):
        if graph.subgraph(core).number_of_edges() >= wanted:
            break
        one, other = rng.choice(core, 2, replace=False)
        graph.add_edge(int(one), int(other))
    links = np.array(graph.edges)
    network = gw.Topology.from_links(
        f"random {seed}",
        servers=servers,
        switches=switches,
        links=links,
        capacity=rng.choice([1, 2, 4], len(links)),
    )
    if not unlike_directions:
        return network
    capacity = rng.choice([1, 2, 4], len(network.source))
    return dataclasses.replace(
        network,
        capacity=capacity,
        bandwidth_bytes_per_s=gw.topology.Link().bandwidth_bytes_per_s * capacity,
    )


def well_connected_network(seed: int) -> gw.Topology:
    """A network without leaves, on which the links of many servers are bottlenecks at once.

    Half of them join 8 to 40 servers directly by a random regular graph of degree 3 or 4; in the
    others each server is on two switches, and the switches form a cycle. Every second one of either
    kind has capacities of 1, 2 or 4, the others equal links.
    """
    rng = np.random.default_rng([2027, seed])
    servers = 2 * int(rng.integers(4, 21))
    graph = nx.Graph()
    if seed % 2:
        degree = int(rng.integers(3, 5))
        while not graph or not nx.is_connected(graph):
            graph = nx.random_regular_graph(degree, servers, seed=int(rng.integers(1 << 30)))
        switches = 0
    else:
        switches = max(3, servers // 4)
        nx.add_cycle(graph, range(servers, servers + switches))
        for server in range(servers):
            for switch in rng.choice(switches, 2, replace=False):
                graph.add_edge(server, servers + int(switch))
    links = np.array(graph.edges)
    return gw.Topology.from_links(
        f"well connected {seed}",
        servers=servers,
        switches=switches,
        links=links,
        capacity=rng.choice([1, 2, 4] if seed // 2 % 2 else [1], len(links)),
    )
