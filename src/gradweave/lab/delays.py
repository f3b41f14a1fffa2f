"""How an emulated network gets its latencies: by the kernel, or by a process that holds packets."""

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
"""What adds latencies: nothing, as none is asked for; the kernel; or a process."""
LEAST_NETEM_S = 20e-6
"""Latencies up to this are not added by netem: those of the machine are larger."""
LEAST_DELAY_LINE_S = 200e-6
"""Latencies up to this are not added by a delay line, which itself takes about half of it."""
NETEM_PACKETS = 1 << 20
"""Most that netem holds, where its default would lose packets of long, fast links."""
_READY_S = 30.0


def has_netem(namespace: IPRoute) -> bool:
    """Whether the kernel has netem, by trying it on a namespace's loopback."""
    try:
        namespace.tc("add", "netem", 1, 0x10000, delay=1)
    except NetlinkError:
        return False
    namespace.tc("del", index=1, handle=0x10000)
    return True


def delayed_links(topology: Topology, least_s: float) -> NDArray[np.bool_]:
    """[L] whether a latency is added to a link, in this direction or the other.

    Args:
        topology: the network.
        least_s: latency up to which none is added.
    """
    delayed = topology.latency_s > least_s
    return delayed | delayed[topology.opposite]


class DelayLine:
    """The process that delays packets, and the devices that it has made; gone after `close`.

    Args:
        links: of each, the two ends as (namespace, interface) and the latency from either, in
            seconds.
        mtu: bytes of a packet, without the Ethernet header.
        log: file for the process' standard error; None: that of this process.

    Raises:
        OptionError: it could not make its devices.
        RunError: it ended, or did not start.
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
                    "this kernel has no netem, and the lab could not delay packets itself by TAP "
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
        """Its id."""
        return self._children.processes[0].pid

    def check(self) -> None:
        """Raises an error where the process has ended.

        Raises:
            RunError: it has.
        """
        status = self._children.processes[0].poll()
        if status is not None:
            raise RunError(f"the lab's delay line is lost, and its links: {how_ended(status)}")

    def close(self) -> None:
        """Ends the process, and with it its devices."""
        self._children.__exit__()
