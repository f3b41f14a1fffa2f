"""What this process's TCP connections have carried, as Linux counts it."""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

_INFO = struct.Struct("=120xQQ8xI20xQ")
"""Of ``struct tcp_info`` (include/uapi/linux/tcp.h): bytes acknowledged, bytes received, bytes not
sent, and microseconds in which something was under way."""
_INFO_BYTES = 232


class Connection(NamedTuple):
    """One of this process's ends."""

    local: str
    """Address and port here; the other end has them as `peer`."""
    peer: str
    sent_bytes: int
    """That the other end has acknowledged."""
    received_bytes: int
    waiting_bytes: int
    """That wait here to be sent."""
    busy_s: float
    """In which bytes were sent, or waited to be."""


def connections() -> list[Connection]:
    """All of them; none where this is not Linux."""
    if socket.getdefaulttimeout() is not None:
        return []  # Python would set every socket that it looks at to that
    return [found for file in _sockets() if (found := _connection(file)) is not None]


def received_bytes(port: int | None) -> int:
    """What has come from the hosts to one of whose ports this process is connected.

    Args:
        port: theirs; None: 0 bytes.
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
    """What is known of a file, if it is a TCP connection."""
    try:
        with socket.socket(fileno=os.dup(file)) as copy:
            local, peer = copy.getsockname(), copy.getpeername()
            if copy.type != socket.SOCK_STREAM or len(local) < 2:
                return None
            info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except OSError:  # it is another kind of file, or closed
        return None
    if len(info) < _INFO.size:
        return None
    sent, received, waiting, busy_us = _INFO.unpack_from(info)
    return Connection(_name(local), _name(peer), sent, received, waiting, busy_us / 1e6)


def _name(address: tuple) -> str:
    return f"{address[0].removeprefix('::ffff:')}:{address[1]}"
