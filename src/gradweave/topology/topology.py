"""The network: servers, switches and full-duplex links, as immutable arrays."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradweave.common.drawn import Drawn
from gradweave.common.wording import counted
from gradweave.errors import TopologyError
from gradweave.printable import printable

Integers = NDArray[np.integer[Any]]
"""Integers of any width as arguments; stored as int32 unless stated otherwise."""
Floats = NDArray[np.floating[Any]]
"""Numbers of any width as arguments; stored as float64."""

LINK_COLUMNS = (
    "source",
    "target",
    "bandwidth_bytes_per_s",
    "latency_s",
    "capacity",
    "overhead_s",
)
"""Fields of `Topology` that have one entry per link direction."""
LINK_PROPERTIES = LINK_COLUMNS[2:]
"""The link properties that may differ between the two directions of a link."""

DEVICE_OVERHEAD_S = 0.0
"""Overhead of a message between GPUs or TPUs, inside their boxes or over their network cards. Such
devices have many messages in flight, so the cost of a message is latency and holds no link. Not
measured here."""

MANY_STEPS = 1 << 15
"""Nodes of routes from which on a compiled loop looks up their links."""

MAX_NODES = 1 << 20
"""Largest number of nodes accepted; a guard against absurd specifications, not a limit of the
code."""


_DTYPES = {
    "is_server": np.bool_,
    "source": np.int32,
    "target": np.int32,
    "bandwidth_bytes_per_s": np.float64,
    "latency_s": np.float64,
    "capacity": np.int32,
    "overhead_s": np.float64,
}


@dataclasses.dataclass(frozen=True)
class Link:
    """Properties of a generated link, the same in both directions.

    The defaults are a 100 Gbit/s link with one microsecond of latency, and the overhead of the
    cheapest message that was measured (benchmarks/experiments/message_cost.py).
    """

    bandwidth_bytes_per_s: float = 12.5e9
    latency_s: float = 1e-6
    capacity: int = 1
    """Transfers that the link carries in one round, per direction."""
    overhead_s: float = 1e-6
    """Time for which a message holds the link beyond that of its bytes, per direction."""


@dataclasses.dataclass(frozen=True, eq=False)
class Topology(Drawn):
    """A network of servers (which compute) and switches (which only forward).

    Nodes are 0 … V−1 and directed links 0 … L−1; each link direction is one entry, both directions
    of a link are present, and entries are sorted by (source, target). Parallel links are one link
    of higher capacity. Arrays are read-only. Checked at construction: the network is connected, has
    at least two servers, and every number makes sense. The model leaves out switch-internal limits:
    a switch forwards at the speed of its links.

    Raises:
        TopologyError: naming the node or link at fault.
    """

    name: str
    """A specification that makes this network, such as ``bcube:n=3,k=1``, or the name of a file."""
    is_server: NDArray[np.bool_]
    """[V] True for servers, False for switches."""
    source: Integers
    """[L] node that the link direction leaves."""
    target: Integers
    """[L] node that the link direction enters."""
    bandwidth_bytes_per_s: Floats
    """[L] bandwidth of the link direction, in bytes per second."""
    latency_s: Floats
    """[L] latency of the link direction, in seconds."""
    capacity: Integers
    """[L] transfers that the link direction carries in one round."""
    overhead_s: Floats = dataclasses.field(default_factory=lambda: np.zeros(0))
    """[L] seconds for which a message holds the link direction in addition to its bytes' time: the
    processor time of its sender or receiver, or the gap that a network card keeps. Rounds ignore
    it. If not given, that of `Link`."""
    labels: tuple[str, ...] = ()
    """[V] the nodes' names, such as those in a file; empty where nodes have ids only."""
    positions: NDArray[np.float64] | None = None
    """[V, 2] where to draw each node, in arbitrary units, or None to let the report choose."""
    message_bytes: float = math.inf
    """Message size for which `shortest_path_trees` and similar functions choose the quickest among
    equally short routes; infinite to choose the widest. Files do not store it.
    """

    def __post_init__(self) -> None:
        if not np.size(self.overhead_s):
            object.__setattr__(self, "overhead_s", np.full(np.size(self.source), Link().overhead_s))
        columns = {
            field: _column(field, getattr(self, field), dtype) for field, dtype in _DTYPES.items()
        }
        lengths = {field: len(columns[field]) for field in LINK_COLUMNS}
        if len(set(lengths.values())) > 1:
            raise TopologyError(
                f"link columns differ in length: {lengths}; give one entry per direction in each"
            )
        order = np.lexsort((columns["target"], columns["source"]))
        for field in LINK_COLUMNS:
            columns[field] = columns[field][order]
        if self.positions is not None:
            columns["positions"] = np.array(self.positions, np.float64)
        for field, array in columns.items():
            array.flags.writeable = False
            object.__setattr__(self, field, array)
        object.__setattr__(self, "labels", tuple(self.labels))
        self._check_nodes()
        self._check_links()
        self._check_link_properties()
        self._check_connected()

    def _check_nodes(self) -> None:
        nodes = self.num_nodes
        if self.positions is not None and self.positions.shape != (nodes, 2):
            raise TopologyError(
                f"positions: expected one (x, y) per node, got shape {self.positions.shape}"
            )
        if not self.message_bytes > 0:
            raise TopologyError(f"message_bytes must be above 0, got {self.message_bytes:g}")
        if nodes > MAX_NODES:
            raise TopologyError(f"{nodes} nodes; at most {MAX_NODES} are supported")
        if self.labels and len(self.labels) != nodes:
            raise TopologyError(
                f"labels: expected {nodes} (one per node) or none, got {len(self.labels)}"
            )
        if self.num_servers < 2:
            raise TopologyError(
                f"{self.num_servers} server{'s' * (self.num_servers != 1)} in {self.name!r}; "
                "an all-reduce needs at least 2"
            )

    def _check_links(self) -> None:
        nodes = self.num_nodes
        ends = np.concatenate([self.source, self.target])
        outside = ends[(ends < 0) | (ends >= nodes)]
        if outside.size:
            raise TopologyError(f"a link names node {outside[0]}, but nodes are 0 to {nodes - 1}")
        key = self.source.astype(np.int64) * nodes + self.target
        opposite = self.target.astype(np.int64) * nodes + self.source
        for invalid, problem in (
            (self.source == self.target, "joins a node to itself; remove it"),
            (
                np.diff(key, prepend=-1) == 0,
                "is given twice; give parallel links as one link of higher capacity",
            ),
            (~np.isin(opposite, key), "has no opposite direction; give both"),
        ):
            if invalid.any():
                raise TopologyError(f"link {self.link_name(int(np.argmax(invalid)))}: {problem}")

    def _check_link_properties(self) -> None:
        for field, expected, unit in (
            ("bandwidth_bytes_per_s", "positive", "bytes/s"),
            ("latency_s", "zero or positive", "s"),
            ("capacity", "at least 1", "transfers per round"),
            ("overhead_s", "zero or positive", "s"),
        ):
            values = getattr(self, field)
            valid = np.isfinite(values) & (values >= 0 if unit == "s" else values > 0)
            if not valid.all():
                link = int(np.argmin(valid))
                raise TopologyError(
                    f"link {self.link_name(link)}: {field} must be {expected} and finite, "
                    f"got {values[link]:g} {unit}"
                )

    def _check_connected(self) -> None:
        component = components(self.num_nodes, self.source, self.target)
        unreached = np.flatnonzero(component != component[self.servers[0]])
        if unreached.size:
            raise TopologyError(
                f"disconnected: {self.node_name(int(unreached[0]))} cannot be reached from "
                f"{self.node_name(int(self.servers[0]))} ({unreached.size} of {self.num_nodes} "
                "nodes cannot); add links or remove it"
            )

    @staticmethod
    def from_links(
        name: str,
        *,
        servers: int,
        switches: int,
        links: Iterable[tuple[int, int]] | NDArray,
        link: Link | None = None,
        capacity: Sequence[int] | NDArray | None = None,
        bandwidth_bytes_per_s: NDArray | None = None,
        positions: NDArray | None = None,
    ) -> "Topology":
        """Makes a network from undirected pairs, each with the same properties in both directions.

        Args:
            name: the network's name.
            servers: number of servers; they are nodes 0 … servers−1.
            switches: number of switches; they follow the servers.
            links: pairs of nodes, one per link.
            link: properties of each direction of each link.
            capacity: of each link, in multiples of ``link.capacity``.
            bandwidth_bytes_per_s: of each link; if not given, in proportion to its capacity.
            positions: [V, 2] where to draw the nodes.
        """
        link = link or Link()
        if servers + switches > MAX_NODES:
            raise TopologyError(
                f"{name}: {servers + switches} nodes; at most {MAX_NODES} are supported"
            )
        pairs = np.array(links if isinstance(links, np.ndarray) else list(links), np.int64)
        pairs = pairs.reshape(-1, 2)
        multiple = np.asarray(1 if capacity is None else capacity, np.int64)
        multiple = np.broadcast_to(multiple, len(pairs))
        if bandwidth_bytes_per_s is None:
            bandwidth_bytes_per_s = link.bandwidth_bytes_per_s * multiple
        return Topology(
            name=name,
            is_server=np.arange(servers + switches) < servers,
            source=np.concatenate([pairs[:, 0], pairs[:, 1]]),
            target=np.concatenate([pairs[:, 1], pairs[:, 0]]),
            bandwidth_bytes_per_s=np.tile(bandwidth_bytes_per_s, 2),
            latency_s=np.full(2 * len(pairs), link.latency_s),
            capacity=np.tile(link.capacity * multiple, 2),
            overhead_s=np.full(2 * len(pairs), link.overhead_s),
            positions=positions,
        )

    @cached_property
    def servers(self) -> NDArray[np.int32]:
        """[N] the servers' node ids, ascending. A server's place in this array is its **rank**."""
        return np.flatnonzero(self.is_server).astype(np.int32)

    @cached_property
    def switches(self) -> NDArray[np.int32]:
        """The switches' node ids, ascending."""
        return np.flatnonzero(~self.is_server).astype(np.int32)

    @cached_property
    def rank(self) -> NDArray[np.int32]:
        """[V] each server's place in `servers`; −1 for switches."""
        rank = np.full(self.num_nodes, -1, np.int32)
        rank[self.servers] = np.arange(self.num_servers, dtype=np.int32)
        return rank

    @property
    def num_nodes(self) -> int:
        """V, the number of servers and switches."""
        return len(self.is_server)

    @property
    def num_servers(self) -> int:
        """N, the number of servers."""
        return len(self.servers)

    @property
    def num_links(self) -> int:
        """Number of full-duplex links: half the number of link directions."""
        return len(self.source) // 2

    @cached_property
    def first_link(self) -> NDArray[np.int64]:
        """[V+1] node v is left by link directions ``first_link[v]`` to ``first_link[v+1]−1``.

        Their targets ascend.
        """
        return np.searchsorted(self.source, np.arange(self.num_nodes + 1)).astype(np.int64)

    @cached_property
    def opposite(self) -> NDArray[np.int64]:
        """[L] the link direction from target to source of each link direction."""
        return self.find_links(self.target, self.source)

    def mirrored(self, *, timed: bool = True) -> "Topology":
        """The network whose links have the properties of their opposite directions.

        The network itself if both directions of each link are alike. A schedule reversed in time
        and direction loads this network's links as it loaded the original's.

        Args:
            timed: exchange bandwidths, latencies and overheads too, and not only capacities.
        """
        changed: dict[str, Any] = {}
        times = ("bandwidth_bytes_per_s", "latency_s", "overhead_s") if timed else ()
        for name in ("capacity", *times):
            of_links = getattr(self, name)
            if not np.array_equal(of_links, of_links[self.opposite]):
                changed[name] = of_links[self.opposite]
        return dataclasses.replace(self, **changed) if changed else self

    def find_links(self, source: ArrayLike, target: ArrayLike) -> NDArray[np.int64]:
        """Looks up link directions; −1 for those that do not exist.

        Args:
            source: nodes that the directions leave, any shape.
            target: nodes that they enter, the same shape.
        """
        nodes = np.int64(self.num_nodes)
        key = np.asarray(source, np.int64) * nodes + np.asarray(target, np.int64)
        keys = self.source.astype(np.int64) * nodes + self.target
        place = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
        return np.where(keys[place] == key, place, -1)

    def links_along(self, nodes: NDArray, offsets: NDArray) -> NDArray[np.int64]:
        """Link directions of ragged routes, one route after the other; −1 for missing links.

        Args:
            nodes: the routes' nodes, one route after the other, both ends included.
            offsets: [M+1] where each route starts; its links start at ``offsets[m] − m``.
        """
        if len(nodes) >= MANY_STEPS:
            from gradweave.topology.links_kernel import links_along

            return links_along(self.first_link, self.target, nodes, offsets)
        starts = np.delete(np.arange(len(nodes)), offsets[1:] - 1)
        return self.find_links(nodes[starts], nodes[starts + 1])

    def nodes_along(
        self, links: NDArray[np.int64], first: NDArray[np.int64]
    ) -> tuple[NDArray, NDArray[np.int64]]:
        """Nodes of ragged routes with at least one link each; the inverse of `links_along`.

        Args:
            links: the routes' link directions, one route after the other.
            first: [M+1] where each route's links start.

        Returns:
            The nodes, both ends of each route included, and [M+1] where each route starts.
        """
        offsets = first + np.arange(len(first))
        nodes = np.empty(offsets[-1], self.target.dtype)
        starts = np.zeros(len(nodes), bool)
        starts[offsets[:-1]] = True
        nodes[starts] = self.source[links[first[:-1]]]
        nodes[~starts] = self.target[links]
        return nodes, offsets

    def node_name(self, node: int) -> str:
        """The node as a person would name it: ``server 3``, or ``switch leaf-1`` of that label."""
        return f"{'server' if self.is_server[node] else 'switch'} {self.id_name(node)}"

    def id_name(self, node: int) -> str:
        """The node's label, or its id without a label; both if other nodes have that label."""
        label = self.label(node)
        if label and self.labels[node] in self._shared_labels:
            return f"{label} (node {node})"
        return label or str(node)

    @cached_property
    def _shared_labels(self) -> frozenset[str]:
        """Labels of more than one node."""
        return frozenset(label for label, times in Counter(self.labels).items() if times > 1)

    def label(self, node: int) -> str:
        """The node's label in one line; empty without a label."""
        return printable(self.labels[node]) if self.labels else ""

    def link_name(self, link: int) -> str:
        """The link direction as a person would name it: ``3→12``, ``gpu3→leaf-1``."""
        return self.pair_name(int(self.source[link]), int(self.target[link]))

    def pair_name(self, source: int, target: int) -> str:
        """Two nodes, joined or not, as a person would name a link; see `id_name`."""
        return f"{self.id_name(source)}→{self.id_name(target)}"

    def same_network(self, other: "Topology") -> bool:
        """Whether both have the same nodes and links; names and drawings may differ."""
        return all(np.array_equal(getattr(self, field), getattr(other, field)) for field in _DTYPES)

    def with_server_order(self, order: ArrayLike) -> "Topology":
        """The same network with its servers in another order.

        Args:
            order: [N] of the server that is the r-th in order of id afterwards, its place so far.

        >>> import gradweave as gw
        >>> star = dataclasses.replace(gw.topology.star(2), labels=("a", "b", "switch"))
        >>> star.with_server_order([1, 0]).labels
        ('b', 'a', 'switch')
        """
        moved = self.servers[np.asarray(order)]
        ids, nodes = np.arange(self.num_nodes), np.arange(self.num_nodes)
        ids[moved], nodes[self.servers] = self.servers, moved
        return dataclasses.replace(
            self,
            name=f"{self.name}, servers reordered",
            source=ids[self.source],
            target=ids[self.target],
            labels=tuple(self.labels[node] for node in nodes) if self.labels else (),
            positions=None if self.positions is None else self.positions[nodes],
        )

    def __repr__(self) -> str:
        return (
            f"Topology({self.name!r}: {counted(self.num_servers, 'server')}, "
            f"{counted(len(self.switches), 'switch', 'switches')}, "
            f"{counted(self.num_links, 'link')})"
        )


def components(nodes: int, source: Integers, target: Integers) -> NDArray[np.int64]:
    """[V] the first node of each node's component.

    Args:
        nodes: V.
        source: [L] node that each link direction leaves.
        target: [L] node that it enters; both directions of a link must be given.
    """
    # By hooking and pointer jumping: few passes even where a search would be as deep as a long
    # ring.
    component = np.arange(nodes)
    while True:
        ends = component[source], component[target]
        if np.array_equal(*ends):
            return component
        np.minimum.at(component, *ends)
        while not np.array_equal(component, following := component[component]):
            component = following


def _column(field: str, values: Any, dtype: type) -> NDArray:
    """A copy of a field's values, of the type that it is stored in."""
    array = np.array(values)
    if array.ndim != 1:
        raise TopologyError(
            f"{field}: expected a one-dimensional array, got {array.ndim} dimensions"
        )
    if array.size and not np.can_cast(array.dtype, dtype, casting="same_kind"):
        raise TopologyError(f"{field}: expected {np.dtype(dtype)} values, got {array.dtype}")
    if array.size and array.dtype.kind in "iu" and np.dtype(dtype).kind == "i":
        limits = np.iinfo(dtype)
        for value in (int(array.min()), int(array.max())):
            if not limits.min <= value <= limits.max:
                raise TopologyError(f"{field}: {value} does not fit in {limits.bits} bits")
    return array.astype(dtype)
