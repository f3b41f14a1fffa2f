"""A network with links or servers lost, or links slowed."""

import dataclasses
from collections.abc import Iterable, Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import TopologyError
from gradweave.topology.capacity import capacities_from_rates
from gradweave.topology.families.family import integer
from gradweave.topology.formats.graph import to_networkx
from gradweave.topology.names import Node, find_node
from gradweave.topology.rated import exact_rate
from gradweave.topology.serving import serving_nodes
from gradweave.topology.topology import LINK_PROPERTIES, Topology


@dataclasses.dataclass(frozen=True, eq=False)
class Degraded:
    """The network that remains after a fault."""

    topology: Topology
    """The remaining network. Its nodes are numbered from 0 in the original order; if ids changed,
    its labels are the original labels, or the original ids if there were no labels."""
    node_map: NDArray[np.int32]
    """[V of the original] the new id of each node, −1 for a removed node."""

    @property
    def original(self) -> NDArray[np.int32]:
        """[V] the original id of each node: the inverse of `node_map`."""
        return np.flatnonzero(self.node_map >= 0).astype(np.int32)


def without_links(topology: Topology, links: Iterable[tuple[Node, Node]]) -> Degraded:
    """Removes links, both directions of each.

    Switches that no longer lie on a path between two servers are removed as well, with their
    remaining links.

    Args:
        topology: the network before.
        links: the two nodes of each, by id or name, in any order.

    Raises:
        TopologyError: there is no such link, or the servers can no longer all reach one another.

    >>> import gradweave as gw
    >>> without_links(gw.topology.ring(8), [(0, 1)]).topology
    Topology('ring:n=8 without 1 link': 8 servers, 0 switches, 7 links)
    """
    return degraded(topology, links=links)


def without_servers(topology: Topology, servers: Iterable[Node]) -> Degraded:
    """Removes servers, with all their links.

    Switches are removed as in `without_links`.

    Args:
        topology: the network before.
        servers: their ids or names.

    Raises:
        TopologyError: a given node is not a server, fewer than two servers remain, or these can no
            longer all reach one another.

    >>> import gradweave as gw
    >>> less = without_servers(gw.topology.complete(4), [1])
    >>> less.topology.labels, less.node_map.tolist()
    (('0', '2', '3'), [0, -1, 1, 2])
    """
    return degraded(topology, servers=servers)


def slowed(
    topology: Topology, factors: Mapping[tuple[Node, Node], float | Fraction | str]
) -> Degraded:
    """Slows links, both directions of each.

    Bandwidths and capacities are multiplied by the factor; all capacities are then divided by their
    greatest common unit. With all capacities 1 and one link at half its speed, that link's capacity
    stays 1 and that of the others becomes 2: a round then takes half as long.

    Args:
        topology: the network before.
        factors: by the two nodes of a link, ids or names, the share of its bandwidth that remains:
            above 0, at most 1.

    Returns:
        The slower network; its nodes are the same.

    Raises:
        TopologyError: there is no such link, a factor is out of range, or the capacities have no
            useful common unit.

    >>> import gradweave as gw
    >>> slowed(gw.topology.ring(3), {(0, 1): 0.5}).topology.capacity.tolist()
    [1, 2, 1, 2, 2, 2]
    """
    rate = [Fraction(capacity) for capacity in topology.capacity.tolist()]
    bandwidth = topology.bandwidth_bytes_per_s.copy()
    seen: set[int] = set()
    num_slow = 0
    for ends, value in factors.items():
        directions = _link_directions(topology, [ends]).tolist()
        names = (end if isinstance(end, str) else topology.id_name(end) for end in ends)
        link = f"link {'–'.join(names)}"
        factor = _slowing_factor(link, value)
        if not seen.isdisjoint(directions):
            raise TopologyError(f"slow: {link} is given twice; give one factor")
        seen.update(directions)
        for direction in directions:
            rate[direction] *= factor
            bandwidth[direction] *= float(factor)
        num_slow += factor < 1
    node_map = np.arange(topology.num_nodes, dtype=np.int32)
    if not num_slow:
        return Degraded(topology, node_map)
    name = f"{topology.name} with {_counted(num_slow, 'slow link')}"
    capacity = np.array(capacities_from_rates(name, rate), np.int64)
    slower = dataclasses.replace(
        topology, name=name, bandwidth_bytes_per_s=bandwidth, capacity=capacity
    )
    return Degraded(slower, node_map)


def _slowing_factor(link: str, value: float | Fraction | str) -> Fraction:
    factor = exact_rate("slow", f"the factor of {link}", value)
    if factor > 1:
        raise TopologyError(f"slow: the factor of {link} must be at most 1, got {value!s:.40}")
    return factor


def degraded(
    topology: Topology,
    *,
    links: Iterable[tuple[Node, Node]] = (),
    servers: Iterable[Node] = (),
    slow: Mapping[tuple[Node, Node], float | Fraction | str] | None = None,
) -> Degraded:
    """Slows links, and removes links and servers, all at once.

    Args:
        topology: the network before.
        links: links to remove, as for `without_links`.
        servers: servers to remove, as for `without_servers`.
        slow: links to slow, as for `slowed`.

    Raises:
        TopologyError: as those three do.
    """
    slower = slowed(topology, slow or {}).topology
    lost = np.array([_server(slower, server) for server in servers], np.int64)
    return _without(slower, np.unique(lost), _link_directions(slower, links))


def random_faults(topology: Topology, links: int = 0, servers: int = 0, seed: int = 0) -> Degraded:
    """Removes random servers, then random links, one after another.

    Each is drawn from those whose removal leaves all remaining servers connected.

    Args:
        topology: the network before.
        links: number of links to remove.
        servers: number of servers to remove.
        seed: of the draws.

    Raises:
        TopologyError: the network does not stay connected without so many.

    >>> import gradweave as gw
    >>> random_faults(gw.topology.torus((4, 4)), links=2, servers=1, seed=3).topology
    Topology('torus:4x4 without 1 server and 2 links': 15 servers, 0 switches, 26 links)
    """
    links = integer("random_faults", "links", links, least=0)
    servers = integer("random_faults", "servers", servers, least=0)
    random = np.random.default_rng(integer("random_faults", "seed", seed, least=0, most=2**63))
    lost_servers = np.zeros(0, np.int64)
    lost_links = np.zeros(0, np.int64)
    while len(lost_servers) < servers:
        # A server that could not be removed may be, once those behind it are.
        remaining = random.permutation(np.setdiff1d(topology.servers, lost_servers))
        drawn = (np.append(lost_servers, candidate) for candidate in remaining)
        more = next((m for m in drawn if not _cut_off(topology, m, lost_links)), lost_servers)
        if len(more) == len(lost_servers):
            break
        lost_servers = more
    _check_drawn(topology, "servers", len(lost_servers), servers)
    kept = _kept_links(topology, lost_servers, lost_links)
    one_way = np.flatnonzero((topology.source < topology.target) & kept)
    for candidate in random.permutation(one_way).tolist():
        if len(lost_links) == 2 * links:
            break
        more = np.append(lost_links, [candidate, topology.opposite[candidate]])
        if not _cut_off(topology, lost_servers, more):
            lost_links = more
    _check_drawn(topology, "links", len(lost_links) // 2, links)
    return _without(topology, np.sort(lost_servers), lost_links)


def _check_drawn(topology: Topology, kind: str, drawn: int, requested: int) -> None:
    if drawn < requested:
        raise TopologyError(
            f"random_faults: {topology.name} can lose {drawn} {kind} in the order drawn before its "
            f"servers are cut off from one another; {requested} were requested"
        )


def _link_directions(topology: Topology, links: Iterable[tuple[Node, Node]]) -> NDArray[np.int64]:
    """Both directions of each link, as indices into the network's columns."""
    directions: list[int] = []
    for ends in links:
        if not isinstance(ends, tuple | list | np.ndarray) or len(ends) != 2:
            raise TopologyError(f"a link must be given as its two nodes, got {ends!r:.40}")
        a, b = (find_node(topology, node, "link") for node in ends)
        direction = int(topology.find_links(np.array(a), np.array(b)))
        if direction < 0:
            raise TopologyError(
                f"no link joins {topology.node_name(a)} and {topology.node_name(b)} in "
                f"{topology.name!r:.60}"
            )
        directions += [direction, int(topology.opposite[direction])]
    return np.unique(np.array(directions, np.int64))


def _server(topology: Topology, name: Node) -> int:
    node = find_node(topology, name, "server")
    if not topology.is_server[node]:
        raise TopologyError(f"{topology.node_name(node)} is not a server; remove its links instead")
    return node


def _kept_links(topology: Topology, nodes: NDArray, links: NDArray) -> NDArray[np.bool_]:
    """[L] whether each link direction remains without these nodes and link directions."""
    kept = ~(np.isin(topology.source, nodes) | np.isin(topology.target, nodes))
    kept[links] = False
    return kept


def _cut_off(topology: Topology, servers: NDArray, links: NDArray) -> list[int]:
    """The remaining servers that the first cannot reach; all if fewer than two remain."""
    kept = _kept_links(topology, servers, links).tolist()
    targets, first_link = topology.target.tolist(), topology.first_link.tolist()
    remaining = np.setdiff1d(topology.servers, servers).tolist()
    if len(remaining) < 2:
        return remaining
    reached, frontier = {remaining[0]}, [remaining[0]]
    while frontier:
        node = frontier.pop()
        for link in range(first_link[node], first_link[node + 1]):
            if kept[link] and targets[link] not in reached:
                reached.add(targets[link])
                frontier.append(targets[link])
    return [server for server in remaining if server not in reached]


def _without(topology: Topology, servers: NDArray, links: NDArray) -> Degraded:
    parts = [(len(servers), "server"), (len(links) // 2, "link")]
    lost = " and ".join(_counted(count, noun) for count, noun in parts if count)
    if not lost:
        return Degraded(topology, np.arange(topology.num_nodes, dtype=np.int32))
    name = f"{topology.name} without {lost}"
    remaining = np.setdiff1d(topology.servers, servers)
    if len(remaining) < 2:
        raise TopologyError(
            f"{name}: {_counted(len(remaining), 'server')} left; at least 2 are needed"
        )
    cut_off = _cut_off(topology, servers, links)
    if cut_off:
        raise TopologyError(
            f"{name}: {topology.node_name(cut_off[0])} can no longer reach "
            f"{topology.node_name(int(remaining[0]))} ({len(cut_off)} of {len(remaining)} servers "
            "cannot); remove them as well, or keep a path to them"
        )
    kept = _kept_links(topology, servers, links)
    graph = to_networkx(topology).to_undirected()
    ends = np.stack([topology.source[~kept], topology.target[~kept]], axis=1)
    graph.remove_edges_from(ends.tolist())
    serving = serving_nodes(graph, remaining.tolist())
    stays = np.zeros(topology.num_nodes, np.bool_)
    stays[np.array(sorted(serving), np.int64)] = True
    return _renumbered(topology, name, stays, kept)


def _renumbered(topology: Topology, name: str, stays: NDArray, kept: NDArray) -> Degraded:
    """The network of the nodes that stay and of the kept links between them."""
    node_map = np.where(stays, np.cumsum(stays) - 1, -1).astype(np.int32)
    kept = kept & stays[topology.source] & stays[topology.target]
    original = np.flatnonzero(stays).tolist()
    labels = topology.labels
    if len(original) < topology.num_nodes:
        labels = tuple(labels[node] if labels else str(node) for node in original)
    positions = topology.positions
    remaining = Topology(
        name=name,
        is_server=topology.is_server[stays],
        source=node_map[topology.source[kept]],
        target=node_map[topology.target[kept]],
        labels=labels,
        positions=None if positions is None else positions[stays],
        **{field: getattr(topology, field)[kept] for field in LINK_PROPERTIES},
    )
    return Degraded(remaining, node_map)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
