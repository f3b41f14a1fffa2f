"""A process that delays each packet of a link by the link's latency, if the kernel cannot.

It opens a TAP device in each of a link's two namespaces, and writes packets from one device to the
other later. The devices live as long as the process.
"""

import ctypes
import fcntl
import os
import queue
import select
import struct
import time
from collections.abc import Iterable, Sequence
from typing import Any

from pyroute2 import netns

from gradweave.lab.delay_queue import DelayQueue
from gradweave.processes.ending import end_at_once
from gradweave.processes.parent import Parent

_TUNSETIFF = 0x400454CA
_TAP_OF_BARE_PACKETS = 0x0002 | 0x1000
_ETHERNET_BYTES = 14
_BATCH = 64
"""Packets read from a device before other devices have their turn."""
_HASTE = -20
"""Niceness of the process: a late packet distorts the latency."""
_SET_TIMER_SLACK = 29

Way = tuple[int, int, float]
"""A link direction: descriptors of the devices at its source and target, and its latency."""


def tap(namespace: str, interface: str) -> int:
    """Opens a new TAP device in a namespace; closing the descriptor removes the device."""
    netns.pushns(namespace)
    try:
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        request = struct.pack("16sH22x", interface.encode(), _TAP_OF_BARE_PACKETS)
        fcntl.ioctl(descriptor, _TUNSETIFF, request)
        return descriptor
    finally:
        netns.popns()


def carry(ways: Iterable[Way], mtu: int) -> None:
    """Carries packets forever.

    Each packet costs a read, a write and the queue's O(log n). Between packets, the process waits
    in `select`, whose timeout has microseconds while that of epoll has milliseconds.

    Args:
        ways: link directions.
        mtu: maximum bytes per packet, without the Ethernet header.
    """
    by_source = {source: (target, latency_s) for source, target, latency_s in ways}
    waiting: DelayQueue[tuple[int, bytes]] = DelayQueue()
    epoll = select.epoll()
    for source in by_source:
        epoll.register(source, select.EPOLLIN)
    while True:
        _wait(epoll, waiting.next_s)
        for source, _ in epoll.poll(0):
            target, latency_s = by_source[source]
            due_s = time.monotonic() + latency_s
            for packet in _packets(source, mtu + _ETHERNET_BYTES):
                waiting.push(due_s, (target, packet))
        for target, packet in waiting.due(time.monotonic()):
            try:
                os.write(target, packet)
            except OSError:
                continue  # the device is down and loses packets, like any network card


def _wait(epoll: select.epoll, until_s: float | None) -> None:
    left = None if until_s is None else max(until_s - time.monotonic(), 0.0)
    select.select([epoll], [], [], left)


def _packets(source: int, largest: int) -> Iterable[bytes]:
    for _ in range(_BATCH):
        try:
            yield os.read(source, largest)
        except BlockingIOError:
            return


def _open(links: Sequence[dict[str, Any]]) -> list[Way]:
    ways: list[Way] = []
    for link in links:
        a, b = (tap(*end) for end in link["ends"])
        there_s, back_s = link["latency_s"]
        ways += [(a, b, there_s), (b, a, back_s)]
    return ways


def main() -> None:
    """Creates devices for the links named by the parent, reports that, and carries packets."""
    parent, tasks = Parent(), queue.SimpleQueue[dict[str, Any]]()
    parent.listen(tasks.put)
    task = tasks.get()
    try:
        ways = _open(task["links"])
        os.setpriority(os.PRIO_PROCESS, 0, _HASTE)
        ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, 1)  # ns; Linux usually takes 50 µs
    except OSError as error:
        message = str(error)
        end_at_once(1, lambda: parent.send(error=message))
    parent.send(ready=len(ways))
    carry(ways, task["mtu"])


if __name__ == "__main__":
    main()
