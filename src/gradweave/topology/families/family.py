"""Shared by the generators of families: checks of parameters, and canonical names."""

import operator
from typing import SupportsIndex

from gradweave.errors import TopologyError
from gradweave.topology.topology import MAX_NODES, Link
from gradweave.topology.units import exact_bandwidth, exact_latency

MAX_LINKS = 1 << 23
"""Largest number of links that a generator makes: about a gigabyte of memory while it is built."""


def integer(
    family: str, parameter: str, value: SupportsIndex, least: int, most: int = MAX_NODES
) -> int:
    """Checks one whole-number parameter.

    Args:
        family: the family's name, for the message.
        parameter: the parameter's name, for the message.
        value: to check.
        least: smallest value accepted.
        most: largest value accepted.

    Raises:
        TopologyError: naming the parameter.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TopologyError(
            f"{family}: {parameter} must be an integer, got {value!r:.40}"
        ) from None
    if not least <= number <= most:
        bound = f"at least {least}" if number < least else f"at most {most}"
        got = str(number) if abs(number) < 10**18 else "a larger number still"
        raise TopologyError(f"{family}: {parameter} must be {bound}, got {got}")
    return number


def check_size(name: str, nodes: int, links: int) -> None:
    """Rejects a network that is too large, before anything is built.

    Raises:
        TopologyError: with the size requested and the largest accepted.
    """
    for kind, count, most in (("nodes", nodes, MAX_NODES), ("links", links, MAX_LINKS)):
        if count > most:
            raise TopologyError(f"{name}: {count:,} {kind}; at most {most:,} are supported")


def spec_name(body: str, link: Link | None, default: Link | None = None) -> str:
    """The canonical specification of a network: family, parameters, then non-default properties.

    Args:
        body: family and parameters, such as ``bcube:n=3,k=1``; without a colon if there are no
            parameters.
        link: properties of its links.
        default: properties that the specification leaves out; `Link()` if not given.

    >>> spec_name("ring:n=8", Link(bandwidth_bytes_per_s=1.25e9, capacity=2))
    'ring:n=8,bandwidth=10Gbit/s,capacity=2'
    >>> spec_name("dgx1v", Link(latency_s=2e-6))
    'dgx1v:latency=2us'
    """
    default = default or Link()
    link = link or default
    parts = []
    if link.bandwidth_bytes_per_s != default.bandwidth_bytes_per_s:
        parts.append(f"bandwidth={exact_bandwidth(link.bandwidth_bytes_per_s)}")
    if link.latency_s != default.latency_s:
        parts.append(f"latency={exact_latency(link.latency_s)}")
    if link.capacity != default.capacity:
        parts.append(f"capacity={link.capacity}")
    if link.overhead_s != default.overhead_s:
        parts.append(f"overhead={exact_latency(link.overhead_s)}")
    return body + ("," if ":" in body else ":") * bool(parts) + ",".join(parts)
