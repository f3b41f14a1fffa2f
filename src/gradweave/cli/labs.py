"""Requirements of every lab: root, packages, and options of links."""

import os

from gradweave.cli.console import warn
from gradweave.common.lazy import require
from gradweave.errors import OptionError
from gradweave.topology.units import (
    ambiguous_bandwidth,
    ambiguous_time,
    parse_bandwidth,
    parse_latency,
)


def lab_bandwidth(text: str) -> float:
    """The bandwidth given by --bandwidth, with a warning if the value is ambiguous."""
    bandwidth = parse_bandwidth(text)
    if doubt := ambiguous_bandwidth(text):
        warn(f"--bandwidth: {doubt}")
    return bandwidth


def lab_latency(text: str) -> float:
    """The latency given by --latency, with a warning if the value is ambiguous."""
    latency = parse_latency(text)
    if doubt := ambiguous_time("latency", text):
        warn(f"--latency: {doubt}")
    return latency


def require_lab() -> None:
    """Refuses, before any work, if a package or root is missing."""
    require("a lab", "pyroute2", "torch", extra="lab")
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        raise OptionError("a lab makes network namespaces, which needs root; run it with sudo")
