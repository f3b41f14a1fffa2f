"""Adds latencies to an emulated network, by the kernel or by a process that delays packets."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from gradweave.errors import OptionError, RunError
from gradweave.processes.children import Children, how_ended
from gradweave.topology.topology import Topology

Delays = Literal["none", "netem", "delay line"]
"""The source of latencies: none, if none are requested; the kernel; or a process."""
LEAST_NETEM_S = 20e-6
"""netem adds only latencies above this: those of the machine itself are larger."""
LEAST_DELAY_LINE_S = 200e-6
"""A delay line adds only latencies above this: it takes about half of this time itself."""
NETEM_PACKETS = 1 << 20
"""Maximum packets in netem; its default would lose packets of long, fast links."""
_READY_S = 30.0


def has_netem(namespace: IPRoute) -> bool:
    """Whether the kernel has netem; this is tried on a namespace's loopback device."""
    try:
        namespace.tc("add", "netem", 1, 0x10000, delay=1)
    except NetlinkError:
        return False
    namespace.tc("del", index=1, handle=0x10000)
    return True


def delayed_links(topology: Topology, least_s: float) -> NDArray[np.bool_]:
    """[L] whether a latency is added to a link in either direction.

    Args:
        topology: the network.
        least_s: only latencies above this are added.
    """
    delayed = topology.latency_s > least_s
    return delayed | delayed[topology.opposite]


class DelayLine:
    """The process that delays packets, and its devices; both are gone after `close`.

    Args:
        links: for each link, its two ends as (namespace, interface), and the latency from each end
            in seconds.
        mtu: maximum bytes per packet, without the Ethernet header.
        log: file for the process's standard error; if None, it shares that of this process.

    Raises:
        OptionError: the process could not create its devices.
        RunError: the process ended, or did not start.
    """

    def __init__(self, links: Sequence[dict[str, Any]], mtu: int, log: Path | None) -> None:
        start = ([sys.executable, "-m", "gradweave.lab.delay_line"], os.environ)
        self._children = Children([start], log)
        try:
            self._children.send(0, {"links": links, "mtu": mtu})
            received = self._children.receive(_READY_S)
            if received is None:
                raise RunError(f"the lab's delay line did not start within {_READY_S:g} s")
            _, answer = received
            if answer is None:
                self.check()
            elif "error" in answer:
                raise OptionError(
                    "this kernel has no netem, and the lab could not delay packets itself with TAP "
                    f"devices: {answer['error']}; ask for a latency of 0"
                )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "DelayLine":
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def process(self) -> int:
        """Id of the process."""
        return self._children.processes[0].pid

    def check(self) -> None:
        """Raises an error if the process has ended.

        Raises:
            RunError: the process has ended.
        """
        status = self._children.processes[0].poll()
        if status is not None:
            raise RunError(f"the lab's delay line and its links are lost: {how_ended(status)}")

    def close(self) -> None:
        """Ends the process, which removes its devices."""
        self._children.__exit__()
