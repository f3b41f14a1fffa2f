"""Byte counters of this process's TCP connections, as kept by Linux."""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

_INFO = struct.Struct("=7xB112xQQ8xI12xQQQ")
"""Fields of ``struct tcp_info`` (include/uapi/linux/tcp.h): flags, bytes acknowledged, bytes
received, bytes not sent, rate of delivery, and microseconds in which data was in flight, and in
which the receiver had no room."""
_APP_LIMITED = 1
"""Flag of a rate of delivery that was limited by a lack of bytes to send."""
_INFO_BYTES = 232


class Connection(NamedTuple):
    """This process's end of a TCP connection."""

    local: str
    """Address and port of this end; the other end has them as `peer`."""
    peer: str
    sent_bytes: int
    """Bytes that the other end has acknowledged."""
    received_bytes: int
    waiting_bytes: int
    """Bytes queued here for sending."""
    busy_s: float
    """Time in which bytes were being sent or were queued."""
    blocked_s: float = 0.0
    """The part of `busy_s` in which the other end had no room for more bytes."""
    delivered_bytes_per_s: float = 0.0
    """Rate of delivery over the last round trip; 0 if there were not enough bytes to send."""


def connections() -> list[Connection]:
    """All TCP connections of this process; empty on systems other than Linux."""
    if socket.getdefaulttimeout() is not None:
        return []  # Python would apply that default timeout to every socket examined here
    return [found for file in _sockets() if (found := _connection(file)) is not None]


def received_bytes(port: int | None) -> int:
    """Bytes received from hosts on which this process is connected to a port.

    Connections to other ports of these hosts count as well.

    Args:
        port: the port; if None, the result is 0.
    """
    ends = connections() if port is not None else []
    hosts = {end.peer.rpartition(":")[0] for end in ends if end.peer.endswith(f":{port}")}
    return sum(end.received_bytes for end in ends if end.peer.rpartition(":")[0] in hosts)


def _sockets() -> Iterator[int]:
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    yield int(name)


def _connection(file: int) -> Connection | None:
    """The counters of a file descriptor, or None if it is not a TCP connection."""
    try:
        with socket.socket(fileno=os.dup(file)) as copy:
            local, peer = copy.getsockname(), copy.getpeername()
            if copy.type != socket.SOCK_STREAM or len(local) < 2:
                return None
            info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:  # another kind of file, or one that was closed meanwhile
        return None
    if len(info) < _INFO.size:
        return None
    flags, sent, received, waiting, rate, busy_us, blocked_us = _INFO.unpack_from(info)
    known = 0.0 if flags & _APP_LIMITED else float(rate)
    times = busy_us / 1e6, blocked_us / 1e6
    return Connection(_name(local), _name(peer), sent, received, waiting, *times, known)


def _name(address: tuple) -> str:
    return f"{address[0].removeprefix('::ffff:')}:{address[1]}"
