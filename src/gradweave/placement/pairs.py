"""Latency and bandwidth between each two devices, along the network's routes."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError, TopologyError
from gradweave.topology.routes import server_routes
from gradweave.topology.topology import Topology

MAX_DEVICES = 2048
"""Maximum number of devices; tables have its square in entries."""


@dataclasses.dataclass(frozen=True, eq=False)
class Pairs:
    """Latency and bandwidth of a message between two devices, alone on its route. Read-only."""

    latency_s: NDArray[np.float64]
    """[N, N] seconds; 0 on the diagonal."""
    bandwidth_bytes_per_s: NDArray[np.float64]
    """[N, N] bytes per second; infinite on the diagonal."""

    def __post_init__(self) -> None:
        latency = np.array(self.latency_s, np.float64)
        bandwidth = np.array(self.bandwidth_bytes_per_s, np.float64)
        if (
            latency.ndim != 2
            or latency.shape != latency.T.shape
            or bandwidth.shape != latency.shape
        ):
            raise OptionError(
                "pairs: expected two square tables of one size, got "
                f"{latency.shape} and {bandwidth.shape}"
            )
        np.fill_diagonal(latency, 0.0)
        np.fill_diagonal(bandwidth, np.inf)
        off = ~np.eye(len(latency), dtype=bool)
        _check("latency_s", latency, np.isfinite(latency) & (latency >= 0) | ~off, "0 or more")
        _check("bandwidth_bytes_per_s", bandwidth, (bandwidth > 0) | ~off, "above 0")
        for name, table in (("latency_s", latency), ("bandwidth_bytes_per_s", bandwidth)):
            table.flags.writeable = False
            object.__setattr__(self, name, table)

    @property
    def there_and_back_s(self) -> NDArray[np.float64]:
        """[N, N] latencies of both directions added."""
        return self.latency_s + self.latency_s.T

    @property
    def there_and_back_s_per_byte(self) -> NDArray[np.float64]:
        """[N, N] seconds per byte in both directions added."""
        per_byte = 1.0 / self.bandwidth_bytes_per_s
        return per_byte + per_byte.T

    def __len__(self) -> int:
        return len(self.latency_s)


def _check(name: str, table: NDArray, valid: NDArray[np.bool_], expected: str) -> None:
    if not valid.all():
        source, target = np.argwhere(~valid)[0].tolist()
        raise OptionError(
            f"pairs: {name}: expected a finite number, {expected}, from device {source} to "
            f"{target}, got {table[source, target]}"
        )


def pairs_of(topology: Topology) -> Pairs:
    """The pairs of a network's servers, in order of id, along its shortest routes.

    Routes have the fewest links, pass through switches only if possible, and break ties like
    `gradweave.topology.shortest_route`.

    Raises:
        TopologyError: the network has more than `MAX_DEVICES` servers.
    """
    count = topology.num_servers
    if count > MAX_DEVICES:
        raise TopologyError(f"placement: expected at most {MAX_DEVICES} devices, got {count}")
    source, target, nodes, offsets = server_routes(topology)
    links = topology.links_along(nodes, offsets)
    first = (offsets - np.arange(len(offsets)))[:-1]
    latency, bandwidth = np.zeros((count, count)), np.full((count, count), np.inf)
    latency[source, target] = np.add.reduceat(topology.latency_s[links], first)
    bandwidth[source, target] = np.minimum.reduceat(topology.bandwidth_bytes_per_s[links], first)
    return Pairs(latency, bandwidth)
