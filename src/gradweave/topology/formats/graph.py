"""Networks as networkx graphs, and back."""

import functools
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradweave.common.wording import listed
from gradweave.errors import InputWarning, SpecError, TopologyError
from gradweave.topology.capacity import capacities_from_bandwidths
from gradweave.topology.formats.attributes import (
    KIND_KEYS,
    SPEED_KEYS,
    check_attributes,
    closest,
    shown,
)
from gradweave.topology.formats.link_speeds import link_speed
from gradweave.topology.topology import LINK_COLUMNS, LINK_PROPERTIES, Link, Topology
from gradweave.topology.units import (
    ambiguous_bandwidth,
    ambiguous_time,
    format_bandwidth,
    parse_bandwidth,
    parse_latency,
    parse_overhead,
)

if TYPE_CHECKING:
    import networkx as nx


_KINDS = ("server", "switch")
_SWITCH = re.compile(
    r"(tor|leaf|spine|(nv)?switch|sw|agg(regation)?|router|hub|fabric)[-_. ]?[0-9]*([-_.][0-9]+)*"
)
"""Names that switches usually have, and servers hardly ever."""


def to_networkx(topology: Topology) -> "nx.DiGraph":
    """Converts a network to a networkx graph, with one edge per link direction.

    Args:
        topology: the network.

    Returns:
        A directed graph whose nodes are 0 … V−1 with the attributes ``kind`` (``server`` or
        ``switch``) and, where the network has them, ``label``, ``x`` and ``y``; its edges have
        ``bandwidth_bytes_per_s``, ``latency_s``, ``capacity`` and ``overhead_s``. The graph's
        ``name`` is the network's.

    >>> import gradweave as gw
    >>> sorted(gw.topology.to_networkx(gw.topology.star(3)).successors(3))
    [0, 1, 2]
    """
    import networkx as nx

    graph = nx.DiGraph(name=topology.name)
    for node, is_server in enumerate(topology.is_server.tolist()):
        graph.add_node(node, kind="server" if is_server else "switch")
    for node, label in enumerate(topology.labels):
        graph.nodes[node]["label"] = label
    if topology.positions is not None:
        for node, (x, y) in enumerate(topology.positions.tolist()):
            graph.nodes[node].update(x=x, y=y)
    columns = [getattr(topology, column).tolist() for column in LINK_COLUMNS]
    for source, target, *properties in zip(*columns, strict=True):
        graph.add_edge(source, target, **dict(zip(LINK_PROPERTIES, properties, strict=True)))
    return graph


def from_networkx(
    graph: "nx.Graph", name: str | None = None, *, round_capacities: bool = True
) -> Topology:
    """Reads a network from a networkx graph of any kind.

    An undirected edge is a link with the same properties in both directions, a directed edge is one
    direction. Parallel edges become one link with their bandwidths and capacities added and the
    larger latency and overhead. Nodes are numbered from 0: those named by integers in ascending
    order, others in the graph's order.

    Args:
        graph: its nodes may have ``kind`` (or ``type``, ``role``), ``server`` or ``switch``,
            servers if they have none, or free text as ``type`` or ``role``; its edges ``bandwidth``
            (``"10Gbit/s"`` or bytes/s) or ``bandwidth_bytes_per_s``, ``latency`` (``"5us"`` or s)
            or ``latency_s``, ``overhead`` or ``overhead_s`` likewise, ``capacity``, and speeds as
            in the Internet Topology Zoo (`link_speed`). Defaults are those of `Link`; if no edge
            has a capacity, capacities are the bandwidths divided by their greatest common unit.
            Other attributes are ignored with a warning.
        name: the network's name; the graph's if not given.
        round_capacities: whether bandwidths without a useful common unit, such as measured ones,
            get small capacities nearly in proportion to them, with a warning.

    Raises:
        TopologyError: naming the invalid node or link, or the misspelt attribute.

    >>> import networkx as nx
    >>> from_networkx(nx.petersen_graph(), name="petersen")
    Topology('petersen': 10 servers, 0 switches, 15 links)
    """
    name = name or str(graph.graph.get("name") or "network")
    check_attributes(graph, name)
    nodes = _ordered(graph.nodes)
    index = {node: place for place, node in enumerate(nodes)}
    attributes: list[Mapping[str, Any]] = [graph.nodes[node] for node in nodes]
    kinds = [_kind(n, a) for n, a in zip(nodes, attributes, strict=True)]
    _warn_of_unknown_kinds(nodes, attributes, kinds, name)
    _warn_of_likely_switches(nodes, attributes, kinds, name)
    return Topology(
        name=name,
        is_server=np.array([kind != "switch" for kind in kinds], np.bool_),
        labels=_labels(nodes, attributes),
        positions=_positions(attributes),
        **_links(graph, index, name, round_capacities),
    )


def integer_named(nodes: Iterable[Any]) -> bool:
    """Whether every node is named by an integer, in plain decimal digits."""
    return all(re.fullmatch(r"0|-?[1-9][0-9]{0,17}", str(node)) for node in nodes)


def _ordered(nodes: Iterable[Any]) -> list[Any]:
    nodes = list(nodes)
    return sorted(nodes, key=lambda node: int(str(node))) if integer_named(nodes) else nodes


def _kind(node: Any, attributes: Mapping[str, Any]) -> str | None:
    """``server`` or ``switch``, or None if the node has no kind.

    Other tools' files hold any text in ``type`` and ``role``, so there only a word that resembles
    one of the two is an error.
    """
    for key in KIND_KEYS:
        if key not in attributes:
            continue
        kind = str(attributes[key]).strip().lower()
        if kind in _KINDS:
            return kind
        if key == "kind" or closest(kind, _KINDS):
            raise TopologyError(
                f"node {shown(node)}: {key} must be server or switch, got {shown(attributes[key])}"
            )
    return None


def _warn_of_unknown_kinds(
    nodes: Sequence[Any],
    attributes: Sequence[Mapping[str, Any]],
    kinds: Sequence[str | None],
    name: str,
) -> None:
    """One warning that lists values of ``type`` and ``role`` that are not kinds."""
    unknown = {
        f"{key} {shown(each[key])}": shown(node)
        for node, each, kind in zip(nodes, attributes, kinds, strict=True)
        for key in KIND_KEYS
        if kind is None and key in each
    }
    if unknown:
        warnings.warn(
            f"{name}: nodes of {listed(list(unknown), 4)} are taken for servers; where they only "
            "forward, write kind: switch",
            InputWarning,
            stacklevel=4,
        )


def _warn_of_likely_switches(
    nodes: Sequence[Any],
    attributes: Sequence[Mapping[str, Any]],
    kinds: Sequence[str | None],
    name: str,
) -> None:
    """One warning that names nodes that have no kind, and the name of a switch."""
    likely = [
        str(node)
        for node, each, kind in zip(nodes, attributes, kinds, strict=True)
        if kind is None
        and any(
            isinstance(word, str) and _SWITCH.fullmatch(word.strip().lower())
            for word in (node, each.get("label"), each.get("name"))
        )
    ]
    if not likely:
        return
    which, are, a_server, they, only = (
        ("node", "is", "a server", "it", "forwards")
        if len(likely) == 1
        else ("nodes", "are", "servers", "they", "forward")
    )
    named = listed([shown(node) for node in likely], 4)
    warnings.warn(
        f"{name}: {which} {named} {are} taken for {a_server}, "
        f"since no kind is given; if {they} only {only}, write kind: switch (in CSV and edge lists "
        f"a line '# switches: {likely[0]:.40}')",
        InputWarning,
        stacklevel=4,
    )


def _labels(nodes: list[Any], attributes: list[Mapping[str, Any]]) -> tuple[str, ...]:
    for key in ("label", "name"):
        if all(isinstance(each.get(key), str) for each in attributes):
            labels = tuple(each[key] for each in attributes)
            break
    else:
        labels = tuple(map(str, nodes))
    return () if labels == tuple(map(str, range(len(nodes)))) else labels


def _positions(attributes: list[Mapping[str, Any]]) -> NDArray[np.float64] | None:
    places = [(each.get("x"), each.get("y")) for each in attributes]
    if not all(isinstance(value, int | float) for place in places for value in place):
        return None
    positions = np.array(places, np.float64).reshape(-1, 2)
    return positions if np.isfinite(positions).all() else None


def _links(
    graph: "nx.Graph", index: Mapping[Any, int], name: str, round_capacities: bool
) -> dict[str, Any]:
    """The link columns, parallel edges merged."""
    default = Link()
    properties = [
        _properties(f"link {shown(source)}→{shown(target)}", data)
        for source, target, data in graph.edges(data=True)
    ]
    _warn_of_missing_units(graph, name)
    ends = np.array([(index[a], index[b]) for a, b in graph.edges()], np.int64).reshape(-1, 2)
    _warn_of_missing_speeds(graph, [p[0] for p in properties], name)
    bandwidth = _column([p[0] for p in properties], default.bandwidth_bytes_per_s, np.float64)
    latency = _column([p[1] for p in properties], default.latency_s, np.float64)
    if all(p[2] is None for p in properties):
        capacity = capacities_from_bandwidths(bandwidth, name, rounded=round_capacities)
    else:
        capacity = _column([p[2] for p in properties], default.capacity, np.int64)
    overhead = _column([p[3] for p in properties], default.overhead_s, np.float64)
    columns = (bandwidth, latency, capacity, overhead)
    if not graph.is_directed():
        ends = np.concatenate([ends, ends[:, ::-1]])
        columns = tuple(np.tile(column, 2) for column in columns)
    return _merged(ends, *columns)


def _column(values: Iterable[float | None], default: float, dtype: type) -> NDArray:
    return np.array([default if value is None else value for value in values], dtype)


def _warn_of_missing_speeds(
    graph: "nx.Graph", bandwidths: Sequence[float | None], name: str
) -> None:
    """One warning if a file states speeds as in the Topology Zoo, but not for all links."""
    edges = list(graph.edges(data=True))
    missing = [e for e, bandwidth in zip(edges, bandwidths, strict=True) if bandwidth is None]
    if missing and any(data.keys() & set(SPEED_KEYS) for *_, data in edges):
        source, target, _ = missing[0]
        speed = format_bandwidth(Link().bandwidth_bytes_per_s)
        warnings.warn(
            f"{name}: no speed can be read of {len(missing)} of {len(edges)} links, such as "
            f"{shown(source)}→{shown(target)}: taken for {speed}; write bandwidth",
            InputWarning,
            stacklevel=4,
        )


def _warn_of_missing_units(graph: "nx.Graph", name: str) -> None:
    """One warning per property, which names the first link."""
    doubts: dict[str, Callable[[object], str | None]] = {
        "bandwidth": ambiguous_bandwidth,
        "latency": functools.partial(ambiguous_time, "latency"),
        "overhead": functools.partial(ambiguous_time, "overhead"),
    }
    for key, doubted in doubts.items():
        warned = [
            f"link {shown(source)}→{shown(target)}: {doubt}"
            for source, target, value in graph.edges(data=key)
            if (doubt := doubted(value))
        ]
        if warned:
            others = f" ({len(warned)} such links)" if len(warned) > 1 else ""
            warnings.warn(f"{name}: {warned[0]}{others}", InputWarning, stacklevel=4)


def _merged(
    ends: NDArray, bandwidth: NDArray, latency: NDArray, capacity: NDArray, overhead: NDArray
) -> dict[str, NDArray]:
    """One entry per link direction: bandwidths and capacities added, the larger of the rest."""
    ends, place = np.unique(ends, axis=0, return_inverse=True)
    place = place.reshape(-1)

    def of_parallel(combine: np.ufunc, values: NDArray) -> NDArray:
        result = np.zeros(len(ends), values.dtype)
        combine.at(result, place, values)
        return result

    return dict(
        zip(
            LINK_COLUMNS,
            (
                ends[:, 0],
                ends[:, 1],
                of_parallel(np.add, bandwidth),
                of_parallel(np.maximum, latency),
                of_parallel(np.add, capacity),
                of_parallel(np.maximum, overhead),
            ),
            strict=True,
        )
    )


def _properties(
    where: str, data: Mapping[str, Any]
) -> tuple[float | None, float | None, int | None, float | None]:
    """Bandwidth, latency, capacity and overhead of an edge, or None for those that are missing."""
    bandwidth = _property(where, data, "bandwidth", "bandwidth_bytes_per_s", parse_bandwidth)
    if bandwidth is None:
        try:
            bandwidth = link_speed(data)
        except SpecError as error:
            raise TopologyError(f"{where}: {error}") from None
    latency = _property(where, data, "latency", "latency_s", parse_latency)
    overhead = _property(where, data, "overhead", "overhead_s", parse_overhead)
    return bandwidth, latency, _capacity(where, data), overhead


def _property(
    where: str, data: Mapping[str, Any], key: str, key_with_unit: str, parse: Callable[[Any], float]
) -> float | None:
    if key in data and key_with_unit in data:
        raise TopologyError(f"{where}: has both {key} and {key_with_unit}; give one")
    value = data.get(key, data.get(key_with_unit))
    if value is None:
        return None
    try:
        return parse(value)
    except SpecError as error:
        raise TopologyError(f"{where}: {error}") from None


def _capacity(where: str, data: Mapping[str, Any]) -> int | None:
    value = data.get("capacity")
    if value is None:
        return None
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    # At most nine digits: fits the column even when many parallel links are added up.
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", text):
        raise TopologyError(f"{where}: capacity must be a positive integer, got {shown(value)}")
    return int(text)
