"""Random connected networks of up to 40 servers, with and without switches."""

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
        graph = _regular_graph(int(rng.integers(3, 5)), servers, rng)
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


def unseen_network(seed: int) -> gw.Topology:
    """A network of 8 to 24 servers on which no choice was ever made: for `learned_ablation` alone.

    By turns a random regular graph of degree 3 to 5; a torus or a mesh of unequal sides; a random
    regular graph of switches with two or three servers each; a random regular graph whose links
    have capacities of 1 to 4, where all others have equal links.
    """
    rng, kind = np.random.default_rng([2028, seed]), seed % 4
    if kind == 1:
        sides: list[int] = []
        while not 8 <= np.prod(sides) <= 24 or len(set(sides)) == 1:
            sides = rng.integers(2, 8, rng.integers(2, 4)).tolist()
        family = ("torus", "mesh")[seed // 4 % 2]
        return gw.topology.from_spec(f"{family}:{'x'.join(map(str, sides))}")
    if kind == 2:
        switches, each = 2 * int(rng.integers(2, 5)), int(rng.integers(2, 4))
        servers = each * switches
        graph = nx.relabel_nodes(
            _regular_graph(3, switches, rng), {i: servers + i for i in range(switches)}
        )
        graph.add_edges_from((server, servers + server // each) for server in range(servers))
    else:
        switches, servers = 0, 2 * int(rng.integers(4, 13))
        graph = _regular_graph(int(rng.integers(3, 6)), servers, rng)
    links = np.array(graph.edges)
    return gw.Topology.from_links(
        f"unseen {seed}",
        servers=servers,
        switches=switches,
        links=links,
        capacity=rng.choice([1, 2, 3, 4] if kind == 3 else [1], len(links)),
    )


def _regular_graph(degree: int, nodes: int, rng: np.random.Generator) -> nx.Graph:
    """A connected one, drawn until it is."""
    graph = nx.Graph()
    while not graph or not nx.is_connected(graph):
        graph = nx.random_regular_graph(degree, nodes, seed=int(rng.integers(1 << 30)))
    return graph
