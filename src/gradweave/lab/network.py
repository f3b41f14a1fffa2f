"""An emulated network: one network namespace per node, one pair of virtual interfaces per link."""

import contextlib
import ctypes
import os
import re
import signal
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyroute2 import IPRoute, netns
from pyroute2.netlink.exceptions import NetlinkError

from gradweave.errors import OptionError, RunError
from gradweave.lab.delays import (
    LEAST_DELAY_LINE_S,
    LEAST_NETEM_S,
    NETEM_PACKETS,
    DelayLine,
    Delays,
    delayed_links,
    has_netem,
)
from gradweave.lab.forwarding import Paths, Route
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_bandwidth

PREFIX = "gradweave-"
"""Prefix of namespaces' names, followed by the id of the creating process and the node's id."""
HEADER_BYTES = 14 + 20 + 32
"""Header bytes per packet: Ethernet, IPv4, and TCP with time stamps."""
MOST_CHANNELS = 16
_TABLE = 1000
"""The first routing table for exceptions of a source."""
_NAME = re.compile(rf"{PREFIX}(\d+)-\d+")
_WINDOW_BYTES = 1 << 18
"""Minimum receive buffer of a connection."""
_SEND_BUFFER_BYTES = 1 << 22
"""Minimum send buffer of a connection, which is Linux's default maximum."""
_FIRST_PACKETS = 10
"""Packets that TCP sends before the first acknowledgement on a route without latency."""
_QUEUE_PACKETS = 10_000
"""Maximum packets waiting in a device; TAP devices lose the rest."""
_MOST_BYTES_PER_S = 4e9
_TIMER_S = 2e-6
"""Resolution of tbf's parameters, whole microseconds: the bucket must hold at least a packet."""


class EmulatedNetwork:
    """A topology as namespaces on this machine; needs root, and leaves nothing behind.

    Each node is a namespace, each link a pair of virtual Ethernet interfaces. A token bucket at
    each end limits the link direction to its bandwidth and lets through one packet at a time; the
    rest waits in a lossless queue. netem adds latencies. If the kernel lacks it, a process delays
    each packet instead, for latencies above 0.2 ms, and the link is a pair of TAP devices. From the
    start, TCP may have as much data in flight as its route holds. The model leaves out loss, slow
    start, and the limits of switches.

    Args:
        topology: the network, with the bandwidths to emulate.
        mtu: maximum bytes per packet, without the Ethernet header.
        log: file for the standard error of the process that delays packets.

    Raises:
        OptionError: the caller is not root, or the kernel lacks a feature.
    """

    def __init__(self, topology: Topology, *, mtu: int = 9000, log: Path | None = None) -> None:
        if os.geteuid() != 0:
            raise OptionError("a lab makes network namespaces, which needs root; run it with sudo")
        if topology.num_nodes >= 1 << 16:
            raise OptionError(f"a lab has at most 65535 nodes, {topology.name} has more")
        fastest = float(topology.bandwidth_bytes_per_s.max())
        if fastest > _MOST_BYTES_PER_S:
            raise OptionError(
                f"a lab emulates links of at most {format_bandwidth(_MOST_BYTES_PER_S)}, and one "
                f"machine carries far less in total; the fastest here has "
                f"{format_bandwidth(fastest)}: ask for a lower bandwidth"
            )
        self.topology = topology
        self.mtu = mtu
        self.delays: Delays = "none"
        """The source of latencies, once the network exists."""
        self.window_bytes = 0
        """Maximum bytes in flight of a connection."""
        self._log = log
        self._delayed = np.zeros(len(topology.source), bool)
        self._delay_line: DelayLine | None = None
        self._namespaces: list[IPRoute] = []
        self._addresses = 0  # number of channels with addresses
        self._routes: list[tuple[int, dict]] = []
        self._rules: list[tuple[int, dict]] = []

    def name(self, node: int) -> str:
        """The namespace of a node."""
        return f"{PREFIX}{os.getpid()}-{node}"

    def address(self, channel: int, server: int) -> str:
        """The address of a server on a channel."""
        rank = int(self.topology.rank[server])
        return f"10.{64 + channel}.{rank >> 8}.{rank & 255}"

    def gateway(self, node: int) -> str:
        """The address of a node as a neighbour on a link, to which no other link leads."""
        return _gateway(node)

    def interface(self, channel: int) -> str:
        """The interface that has a server's address on a channel."""
        return f"channel{channel}"

    def __enter__(self) -> "EmulatedNetwork":
        clear_leftovers()
        try:
            self._make()
        except BaseException as error:
            self._destroy()
            if isinstance(error, (NetlinkError, OSError)):
                raise OptionError(
                    f"this machine's kernel did not let the lab make its network: {error}"
                ) from error
            raise
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._destroy()

    def check(self) -> None:
        """Raises an error if the network is no longer complete.

        Raises:
            RunError: the process that delays packets was lost.
        """
        if self._delay_line is not None:
            self._delay_line.check()

    def _make(self) -> None:
        topology = self.topology
        for node in range(topology.num_nodes):
            _create(self.name(node))
            with self.inside(node):
                self._namespaces.append(IPRoute())
                self._configure(node)
            self._up(node, "lo")
            self._add_address(node, "lo", _gateway(node))
        self._choose_delays()
        links = list(zip(topology.source.tolist(), topology.target.tolist(), strict=True))
        for link, (source, target) in enumerate(links):
            if source < target:
                self._link(source, target, made=self.delays == "delay line" and self._delayed[link])
        for link in range(len(links)):
            self._limit(link, float(self.topology.bandwidth_bytes_per_s[link]))
        self._allow(links)
        for link in range(len(links)):
            self._neighbour(link)

    def _configure(self, node: int) -> None:
        """Sets the parameters of the namespace that this thread is in."""
        _set("net/ipv4/conf/all/rp_filter", 0)
        _set("net/ipv4/conf/default/rp_filter", 0)
        _set("net/ipv4/ip_forward", int(not self.topology.is_server[node]))
        _set("net/ipv6/conf/all/disable_ipv6", 1, optional=True)
        # No packet is lost here, so the simplest congestion control is the best.
        _set("net/ipv4/tcp_congestion_control", "reno", optional=True)
        _set("net/ipv4/tcp_slow_start_after_idle", 0)
        _set("net/ipv4/tcp_no_metrics_save", 1)
        # Short queues, like those of network cards that report their fill level: a message's
        # announcement must not wait behind a tenth of a second of data.
        _set("net/ipv4/tcp_limit_output_bytes", 2 * self.mtu)
        # A message counts as sent once only a little of it waits in this machine. Otherwise the
        # next message, to another server, would share the link with it.
        _set("net/ipv4/tcp_notsent_lowat", 4 * self.mtu)

    def _choose_delays(self) -> None:
        """Chooses the source of latencies, and starts the process that adds them if necessary."""
        topology = self.topology
        netem = has_netem(self._namespaces[0])
        least_s = LEAST_NETEM_S if netem else LEAST_DELAY_LINE_S
        self._delayed = delayed_links(topology, least_s)
        if not self._delayed.any():
            return
        self.delays = "netem" if netem else "delay line"
        if netem:
            return
        links = [
            {
                "ends": [(self.name(a), _to(b)), (self.name(b), _to(a))],
                "latency_s": [
                    float(topology.latency_s[link]),
                    float(topology.latency_s[topology.opposite[link]]),
                ],
            }
            for link in np.flatnonzero(self._delayed & (topology.source < topology.target)).tolist()
            for a, b in [(int(topology.source[link]), int(topology.target[link]))]
        ]
        self._delay_line = DelayLine(links, self.mtu, self._log)

    def _link(self, a: int, b: int, *, made: bool) -> None:
        """Sets up a link; `made`: the delay line has created its two ends."""
        if not made:
            peer = {"ifname": _to(a), "net_ns_fd": self.name(b)}
            self._namespaces[a].link("add", ifname=_to(b), kind="veth", peer=peer)
        for node, other in ((a, b), (b, a)):
            self._namespaces[node].link(
                "set",
                index=self._index(node, _to(other)),
                mtu=self.mtu,
                gso_max_segs=1,
                txqlen=_QUEUE_PACKETS,
                state="up",
            )

    def limit(self, link: int, bytes_per_s: float) -> None:
        """Changes the bandwidth of a link direction while messages are in flight.

        Args:
            link: its number in the topology.
            bytes_per_s: the new bandwidth.
        """
        self._limit(link, bytes_per_s, "change")

    def _limit(self, link: int, bytes_per_s: float, verb: str = "add") -> None:
        topology = self.topology
        source, target = int(topology.source[link]), int(topology.target[link])
        node, index = self._namespaces[source], self._index(source, _to(target))
        rate = int(bytes_per_s)
        packet = self.mtu + 14
        # With less than two packets, the bucket never holds a large segment, and cuts it up.
        burst = int(packet + 100 + _TIMER_S * rate)
        node.tc(verb, "tbf", index, 0x10000, rate=rate, burst=burst, limit=1 << 26)
        if verb == "change":
            return
        if self.delays == "netem" and self._delayed[link]:
            # Delayed before the bucket instead of after it: with a constant latency, the effect is
            # equal.
            delay_us = int(float(topology.latency_s[link]) * 1e6)
            node.tc(
                *("add", "netem", index, 0x20000),
                parent=0x10001,
                delay=delay_us,
                limit=NETEM_PACKETS,
            )

    def _neighbour(self, link: int) -> None:
        """Sets the hardware address of a link's target at its source, which then never asks."""
        source, target = int(self.topology.source[link]), int(self.topology.target[link])
        peer = self._interface(target, _to(source))
        self._namespaces[source].neigh(
            "add",
            dst=_gateway(target),
            lladdr=peer.get_attr("IFLA_ADDRESS"),
            ifindex=self._index(source, _to(target)),
            state=0x80,  # permanent
        )
        self._namespaces[source].route(
            "add",
            dst=f"{_gateway(target)}/32",
            oif=self._index(source, _to(target)),
            prefsrc=_gateway(source),
            scope="link",
            metrics={"initcwnd": self._packets((source, target))},
        )

    def _allow(self, routes: Iterable[Route]) -> None:
        """Allows connections as much data in flight as the longest, fastest route holds."""
        most = max(map(self._bytes_under_way, routes), default=0)
        # Linux counts the memory of packets, up to twice their data.
        self.window_bytes = _WINDOW_BYTES + 2 * most
        for node in range(self.topology.num_nodes):
            with self.inside(node):
                _set("net/ipv4/tcp_rmem", f"4096 {self.window_bytes >> 1} {self.window_bytes}")
                most_sent = max(_SEND_BUFFER_BYTES, self.window_bytes)
                _set("net/ipv4/tcp_wmem", f"4096 16384 {most_sent}")

    def _bytes_under_way(self, route: Route) -> int:
        """Bytes that a route and its way back hold: bandwidth times round-trip time."""
        topology = self.topology
        there = topology.find_links(route[:-1], route[1:])
        back = topology.opposite[there]
        round_trip_s = float((topology.latency_s[there] + topology.latency_s[back]).sum())
        return int(round_trip_s * float(topology.bandwidth_bytes_per_s[there].min()))

    def _packets(self, route: Route) -> int:
        """Packets that TCP may send on a route before the first acknowledgement."""
        return _FIRST_PACKETS + self._bytes_under_way(route) // self.mtu

    def _up(self, node: int, interface: str) -> None:
        self._namespaces[node].link("set", index=self._index(node, interface), state="up")

    def _index(self, node: int, interface: str) -> int:
        return self._interface(node, interface)["index"]

    def _interface(self, node: int, interface: str) -> Any:
        (link,) = self._namespaces[node].link("get", ifname=interface)
        return link

    def route(self, paths: Paths) -> None:
        """Replaces the forwarding tables."""
        if paths.channels > MOST_CHANNELS:
            raise OptionError(
                f"the schedule uses {paths.channels} routes between two servers; a lab has "
                f"addresses for {MOST_CHANNELS}"
            )
        self._forget_routes()
        for channel in range(self._addresses, paths.channels):
            self._add_addresses(channel)
        self._addresses = max(self._addresses, paths.channels)
        self._allow(paths.routes.values())
        for node, hops in paths.tables().items():
            for hop in hops:
                where = {
                    "dst": f"{self.address(hop.channel, hop.target)}/32",
                    "oif": self._index(node, _to(hop.next)),
                    "gateway": _gateway(hop.next),
                    "flags": 4,  # onlink: the neighbour's address is in no network
                }
                if self.topology.is_server[node]:
                    where["prefsrc"] = self.address(hop.channel, node)
                    if (route := paths.routes.get((hop.channel, node, hop.target))) is not None:
                        where["metrics"] = {"initcwnd": self._packets(route)}
                if hop.source is not None:
                    where["table"] = _TABLE + len(self._rules)
                    self._add_rule(node, hop.channel, hop.source, hop.target, where["table"])
                self._namespaces[node].route("add", **where)
                self._routes.append((node, where))

    def _add_rule(self, node: int, channel: int, source: int, target: int, table: int) -> None:
        rule = {
            "src": self.address(channel, source),
            "src_len": 32,
            "dst": self.address(channel, target),
            "dst_len": 32,
            "table": table,
            "priority": 100,
        }
        self._namespaces[node].rule("add", **rule)
        self._rules.append((node, rule))

    def _forget_routes(self) -> None:
        for node, where in self._routes:
            self._namespaces[node].route("del", **where)
        for node, rule in self._rules:
            self._namespaces[node].rule("del", **rule)
        self._routes, self._rules = [], []

    def _add_addresses(self, channel: int) -> None:
        """Gives each server an address that belongs to no link, so that all links lead to it."""
        name = self.interface(channel)
        for server in self.topology.servers.tolist():
            node = self._namespaces[server]
            node.link("add", ifname=name, kind="veth", peer={"ifname": f"{name}-end"})
            self._up(server, name)
            self._up(server, f"{name}-end")
            self._add_address(server, name, self.address(channel, server))

    def _add_address(self, node: int, interface: str, address: str) -> None:
        index = self._index(node, interface)
        self._namespaces[node].addr("add", index=index, address=address, prefixlen=32)

    def forward(self, servers: frozenset[int] | None) -> None:
        """Allows only these servers to forward for others; None: all of them."""
        for server in self.topology.servers.tolist():
            with self.inside(server):
                _set("net/ipv4/ip_forward", int(servers is None or server in servers))

    def sent_bytes(self) -> NDArray[np.int64]:
        """[L] bytes that the kernel counted at each link direction's sender, headers included."""
        counts = []
        ends = zip(self.topology.source.tolist(), self.topology.target.tolist(), strict=True)
        for source, target in ends:
            link = self._interface(source, _to(target))
            counts.append(link.get_attr("IFLA_STATS64")["tx_bytes"])
        return np.array(counts, np.int64)

    @contextlib.contextmanager
    def inside(self, node: int) -> Iterator[None]:
        """Moves this thread into a node's namespace for the duration of the block."""
        netns.pushns(self.name(node))
        try:
            yield
        finally:
            netns.popns()

    def _destroy(self) -> None:
        # A second Ctrl-C, or an impatient launcher, must not leave half of it behind.
        with _signals_ignored():
            for namespace in self._namespaces:
                namespace.close()
            self._namespaces = []
            if self._delay_line is not None:
                self._delay_line.close()
                self._delay_line = None
            for node in range(self.topology.num_nodes):
                with contextlib.suppress(OSError):
                    netns.remove(self.name(node))


def _create(namespace: str) -> None:
    """Creates a namespace like pyroute2 does, but without a fork: JAX may be running threads."""
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(netns.CLONE_NEWNET) < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), namespace)
        netns.attach(namespace, threading.get_native_id())
    finally:
        netns.setns(here)
        os.close(here)


def namespace_files() -> str:
    """Pattern of the files that name this process's namespaces."""
    return f"{netns.NETNS_RUN_DIR}/{PREFIX}{os.getpid()}-*"


def clear_leftovers() -> list[str]:
    """Removes the namespaces of labs whose process was killed, found by their names.

    Returns:
        The names of the removed namespaces.
    """
    gone = []
    for name in netns.listnetns():
        match = _NAME.fullmatch(name)
        if match and not _alive(int(match[1])):
            with contextlib.suppress(OSError):
                netns.remove(name)
                gone.append(name)
    return gone


def _alive(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


def _to(node: int) -> str:
    """The interface that leads to a node."""
    return f"to{node}"


def _gateway(node: int) -> str:
    """The address of a node for its neighbours, used only on the links between them."""
    return f"10.63.{node >> 8}.{node & 255}"


def _set(key: str, value: int | str, *, optional: bool = False) -> None:
    try:
        Path("/proc/sys", key).write_text(str(value))
    except OSError as error:
        if not optional:
            raise RunError(f"cannot set {key} to {value}: {error}") from error


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    """Ignores Ctrl-C and SIGTERM, which only the main thread gets."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    try:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
