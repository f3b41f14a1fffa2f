"""The ``topology`` object of the schedule file: a network as plain lists."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import FileError
from gradweave.topology.formats.attributes import reject_misspelt
from gradweave.topology.topology import LINK_COLUMNS, Link, Topology

_REQUIRED = tuple(column for column in LINK_COLUMNS if column != "overhead_s")


def topology_to_object(topology: Topology) -> dict[str, Any]:
    """Writes a network as a dictionary of plain lists, ready for JSON.

    Args:
        topology: the network; its drawing positions are left out.

    Returns:
        ``name``, ``servers``, ``switches``, ``links`` (columns; without ``overhead_s`` if it is the
        default everywhere) and, if the nodes have any, ``labels``.

    Source: docs/reference/schedule-file.md.
    """
    labels = {"labels": list(topology.labels)} if topology.labels else {}
    usual = bool((topology.overhead_s == Link().overhead_s).all())
    columns = _REQUIRED if usual else LINK_COLUMNS
    return {
        "name": topology.name,
        "servers": topology.servers.tolist(),
        "switches": topology.switches.tolist(),
        "links": {column: getattr(topology, column).tolist() for column in columns},
        **labels,
    }


def topology_from_object(data: Mapping[str, Any]) -> Topology:
    """Reads a network from a dictionary such as `topology_to_object` writes.

    Args:
        data: the decoded object, not trusted.

    Raises:
        FileError: a field is missing, has the wrong type or does not fit the others; the message
            names it.
        TopologyError: the fields are well-formed, but such a network cannot exist.

    >>> import gradweave as gw
    >>> net = gw.topology.ring(4)
    >>> topology_from_object(topology_to_object(net)).same_network(net)
    True
    """
    if not isinstance(data, Mapping):
        raise FileError(f"topology: expected an object, got {_kind(data)}")
    reject_misspelt(data, ("name", "servers", "switches", "links", "labels"))
    name = _field(data, "name", str)
    servers = _numbers("servers", _field(data, "servers", list), whole=True)
    switches = _numbers("switches", _field(data, "switches", list), whole=True)
    links = _field(data, "links", Mapping)
    given = LINK_COLUMNS if "overhead_s" in links else _REQUIRED
    columns: dict[str, Any] = {
        column: _numbers(
            f"links.{column}",
            _field(links, column, list, "links."),
            whole=column in ("source", "target", "capacity"),
        )
        for column in given
    }
    return Topology(name=name, is_server=_kinds(servers, switches), labels=_labels(data), **columns)


def _kinds(servers: NDArray, switches: NDArray) -> NDArray[np.bool_]:
    """[V] which nodes are servers; every id from 0 to V−1 must be listed once."""
    nodes = len(servers) + len(switches)
    ids = np.concatenate([servers, switches]) if nodes else np.zeros(0, np.int64)
    outside = ids[(ids < 0) | (ids >= nodes)]
    if outside.size:
        raise FileError(
            f"topology.servers, topology.switches: the ids of these {nodes} nodes must be "
            f"0 to {nodes - 1}; got {int(outside[0])}"
        )
    ids = ids.astype(np.int64)
    counts = np.bincount(ids, minlength=nodes)
    if (counts > 1).any():
        raise FileError(
            f"topology.servers, topology.switches: {int(np.argmax(counts > 1))} is listed twice"
        )
    is_server = np.zeros(nodes, np.bool_)
    is_server[servers.astype(np.int64)] = True
    return is_server


def _labels(data: Mapping[str, Any]) -> tuple[str, ...]:
    if "labels" not in data:
        return ()
    labels = _field(data, "labels", list)
    for place, label in enumerate(labels):
        if not isinstance(label, str):
            raise FileError(f"topology.labels[{place}]: expected a string, got {_kind(label)}")
    return tuple(labels)


def _field(data: Mapping[str, Any], name: str, kind: type, inside: str = "") -> Any:
    path = f"topology.{inside}{name}"
    if name not in data:
        raise FileError(f"{path}: missing")
    if not isinstance(data[name], kind):
        expected = {str: "a string", list: "a list", Mapping: "an object"}[kind]
        raise FileError(f"{path}: expected {expected}, got {_kind(data[name])}")
    return data[name]


def _numbers(path: str, values: list[Any], *, whole: bool) -> NDArray:
    """A flat array of 64-bit numbers, integers where `whole`."""
    if not values:
        return np.zeros(0, np.int64)
    try:
        array = np.array(values)
    except (ValueError, OverflowError):  # ragged lists, integers beyond any type
        array = np.array([None])
    if array.ndim != 1 or array.dtype.kind not in ("iu" if whole else "iuf"):
        place = next((i for i, v in enumerate(values) if not _is_number(v, whole)), 0)
        expected = "an integer" if whole else "a number"
        raise FileError(
            f"topology.{path}[{place}]: expected {expected}, got {_kind(values[place])}"
        )
    return array


def _is_number(value: object, whole: bool) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return _fits_64_bits(value)
    return isinstance(value, float) and not whole


def _fits_64_bits(value: int) -> bool:
    return -(2**63) <= value < 2**63


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and not _fits_64_bits(value):
        return "an integer of more than 64 bits"
    return {str: "a string", list: "a list", dict: "an object"}.get(type(value)) or (
        f"the number {value}" if isinstance(value, int | float) else type(value).__name__
    )
