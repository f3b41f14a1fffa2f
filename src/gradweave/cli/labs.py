"""The emulated network of a lab: its requirements, and the options of its links."""

import os
from typing import TYPE_CHECKING

from gradweave.cli.console import warn
from gradweave.common.lazy import require
from gradweave.errors import OptionError
from gradweave.topology.units import (
    ambiguous_bandwidth,
    ambiguous_time,
    parse_bandwidth,
    parse_latency,
)

if TYPE_CHECKING:
    from gradweave.topology.topology import Topology


def require_lab() -> None:
    """Refuses, before any work, if a package or root is missing."""
    require("a lab", "pyroute2", "torch", extra="lab")
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        raise OptionError("a lab makes network namespaces, which needs root; run it with sudo")


def emulated(topology: "Topology", bandwidth: str, latency: str | None) -> "Topology":
    """The network that is emulated, with a warning of ambiguous values.

    Args:
        topology: the network.
        bandwidth: of the slowest link, as ``--bandwidth`` states it.
        latency: of every link, as ``--latency`` states it; each link's own if None.

    Raises:
        OptionError: a package or root is missing.
    """
    require_lab()
    from gradweave.lab import measure

    bandwidth_bytes_per_s = parse_bandwidth(bandwidth)
    if doubt := ambiguous_bandwidth(bandwidth):
        warn(f"--bandwidth: {doubt}")
    latency_s = None if latency is None else parse_latency(latency)
    if latency is not None and (doubt := ambiguous_time("latency", latency)):
        warn(f"--latency: {doubt}")
    return measure.emulated(
        topology, bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=latency_s
    )
