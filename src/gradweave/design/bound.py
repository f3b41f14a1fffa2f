"""A lower bound on the time of an all-reduce over all networks of a number of servers and links."""

import dataclasses

from gradweave.errors import OptionError
from gradweave.topology.topology import Link
from gradweave.topology.units import as_size


@dataclasses.dataclass(frozen=True)
class EveryNetwork:
    """A lower bound for every network in which only servers are nodes, add and forward."""

    hops: int
    """Diameter that no network can undercut, by the Moore bound."""
    total_hops: int
    """Sum of the distances from a server to all others that no network can undercut."""
    latency_s: float
    """Time of a message without bytes over that many links."""
    bytes_s: float
    """Time of the bytes, if all links carry them in one message each, and that of its arrival."""

    @property
    def seconds(self) -> float:
        """The larger of both times: bytes cross links while others travel.

        Bandwidths, latencies and overheads must be those of `Link`, links full duplex.
        """
        return max(self.latency_s, self.bytes_s)


def every_network(
    servers: int, degree: int, gradient_bytes: float | str, link: Link
) -> EveryNetwork:
    """Bounds the time of an all-reduce on every network of that many servers and links.

    At most d·(d−1)^(h−1) servers are h links from a server. The minimum h for which all servers are
    reached bounds the diameter, and some contribution travels that far. Every byte takes 2N−2
    transfers or more (one-way gossip), so that the busiest of N·d link directions is busy for
    2·(N−1)/N·size / (d·bandwidth); its last message adds an overhead and a latency.

    Args:
        servers: N, at least 2.
        degree: d, most links of each server, at least 2 unless there are two servers.
        gradient_bytes: size of the whole gradient, such as ``"25MB"``.
        link: bandwidth, latency and overhead of each direction of every link.

    Raises:
        OptionError: no such network is connected.

    Source: Hoffman and Singleton, "On Moore graphs with diameters 2 and 3", 1960; Harary and
        Schwenk, "The communication problem on graphs and digraphs", 1974, for one-way gossip.

    >>> bound = every_network(16, 4, 100e6, Link())
    >>> bound.hops, bound.seconds
    (2, 0.003752)
    """
    if servers < 2 or degree < 1 or (degree == 1 and servers > 2):
        raise OptionError(
            f"design: no network connects {servers} servers with {degree} links each; expected 2 "
            "servers or more, and 2 links or more"
        )
    left, width, hops, total = servers - 1, degree, 0, 0
    while left > 0:
        hops += 1
        total += hops * min(left, width)
        left, width = left - width, width * (degree - 1)
    per_server = 2 * (servers - 1) / servers * as_size(gradient_bytes)
    return EveryNetwork(
        hops,
        total,
        hops * (link.latency_s + link.overhead_s),
        per_server / (degree * link.bandwidth_bytes_per_s) + link.latency_s + link.overhead_s,
    )
