"""Networks with links of several rates; capacity 1 is the greatest common unit of all rates."""

import dataclasses
import math
import re
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import TopologyError
from gradweave.topology.capacity import capacities_from_rates
from gradweave.topology.topology import Link, Topology


@dataclasses.dataclass(frozen=True)
class LinkGroup:
    """The links of one rate in a network of several rates."""

    pairs: NDArray[np.integer]
    """[K, 2] the nodes that each link joins."""
    rate: Fraction
    """Their bandwidth in multiples of that of the network's `Link`."""


def rated_topology(
    name: str,
    groups: Sequence[LinkGroup],
    *,
    servers: int,
    switches: int,
    link: Link,
    positions: NDArray | None = None,
) -> Topology:
    """Makes a network from links of several rates.

    Args:
        name: the network's name.
        groups: the links, rate by rate.
        servers: number of servers; they are nodes 0 … servers−1.
        switches: number of switches; they follow the servers.
        link: bandwidth of rate 1; latency of every link; capacity of a link whose rate is the
            greatest common unit of all rates.
        positions: [V, 2] where to draw the nodes.

    Raises:
        TopologyError: the rates have no useful common unit.
    """
    capacities = capacities_from_rates(name, [group.rate for group in groups])
    counts = [len(group.pairs) for group in groups]
    bandwidth = link.bandwidth_bytes_per_s
    exact = Fraction(bandwidth) if math.isfinite(bandwidth) else Fraction(-1)  # rejected below
    bandwidths = [float(exact * group.rate) for group in groups]
    return Topology.from_links(
        name,
        servers=servers,
        switches=switches,
        links=np.concatenate([group.pairs for group in groups]),
        link=link,
        capacity=np.repeat(np.array(capacities, np.int64), counts),
        bandwidth_bytes_per_s=np.repeat(bandwidths, counts),
        positions=positions,
    )


def exact_rate(family: str, parameter: str, value: float | Fraction | str) -> Fraction:
    """Reads a positive ratio: 3, 1.5, "1.5", "3/2" or "3:2"; a float as it prints, in decimals.

    Raises:
        TopologyError: naming the parameter.

    >>> exact_rate("leaf_spine", "oversubscription", 1.1)
    Fraction(11, 10)
    """
    text = str(value).replace(":", "/")
    number = re.fullmatch(r"[0-9]{1,6}(?:\.[0-9]{1,18}|/0*[1-9][0-9]{0,5})?", text)
    rate = Fraction(text) if number and not isinstance(value, bool) else Fraction(0)
    if rate <= 0:
        raise TopologyError(
            f"{family}: {parameter} must be a positive number such as 3, 1.5 or 3/2, "
            f"got {value!r:.40}"
        )
    return rate
