"""An emulated network: a network namespace a node, a pair of virtual interfaces a link."""

import contextlib
import ctypes
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyroute2 import IPRoute, netns
from pyroute2.netlink.exceptions import NetlinkError

from gradweave.errors import OptionError, RunError
from gradweave.lab.paths import Paths
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_bandwidth

PREFIX = "gradweave-"
"""A namespace's name is this, the id of the process that makes it, and the node's id."""
HEADER_BYTES = 14 + 20 + 32
"""Of each packet: Ethernet, IPv4, and TCP with time stamps."""
MOST_CHANNELS = 16
_TABLE = 1000
"""First routing table of exceptions for a source."""
_NAME = re.compile(rf"{PREFIX}(\d+)-\d+")
_WINDOW_BYTES = 1 << 18
_MOST_BYTES_PER_S = 4e9
_LEAST_LATENCY_S = 20e-6
"""Latencies up to this are not added: those of the machine are larger."""


class EmulatedNetwork:
    """A topology as namespaces on this machine; needs root, and leaves nothing behind.

    Each node is a namespace, each link a pair of virtual Ethernet interfaces. Each end sends no
    faster than the link direction's bandwidth, by a token bucket that lets through one packet at
    once; the rest waits in a queue that loses nothing. Latencies above 20 µs are added
    where the kernel has netem. The model leaves out loss, and the limits of switches.

    Args:
        topology: the network, with the bandwidths to emulate.
        mtu: bytes of a packet, without the Ethernet header.

    Raises:
        OptionError: not root, or the kernel lacks what is needed.
    """

    def __init__(self, topology: Topology, *, mtu: int = 9000) -> None:
        if os.geteuid() != 0:
            raise OptionError("a lab makes network namespaces, which needs root; run it with sudo")
        if topology.num_nodes >= 1 << 16:
            raise OptionError(f"a lab has at most 65535 nodes, {topology.name} more")
        fastest = float(topology.bandwidth_bytes_per_s.max())
        if fastest > _MOST_BYTES_PER_S:
            raise OptionError(
                f"a lab emulates links of at most {format_bandwidth(_MOST_BYTES_PER_S)}, and one "
                f"machine carries far less in all; the fastest here has "
                f"{format_bandwidth(fastest)}: ask for a lower bandwidth"
            )
        self.topology = topology
        self._mtu = mtu
        self._namespaces: list[IPRoute] = []
        self._addresses = 0  # channels that have addresses
        self._routes: list[tuple[int, dict]] = []
        self._rules: list[tuple[int, dict]] = []

    def name(self, node: int) -> str:
        """Namespace of a node."""
        return f"{PREFIX}{os.getpid()}-{node}"

    def address(self, channel: int, server: int) -> str:
        """Address of a server on a channel."""
        rank = int(self.topology.rank[server])
        return f"10.{64 + channel}.{rank >> 8}.{rank & 255}"

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

    def _make(self) -> None:
        topology = self.topology
        for node in range(topology.num_nodes):
            _create(self.name(node))
            with self._inside(node):
                self._namespaces.append(IPRoute())
                _set("net/ipv4/conf/all/rp_filter", 0)
                _set("net/ipv4/conf/default/rp_filter", 0)
                _set("net/ipv4/ip_forward", int(not topology.is_server[node]))
                _set("net/ipv6/conf/all/disable_ipv6", 1, optional=True)
                # No packet is lost here, so the simplest congestion control is the best.
                _set("net/ipv4/tcp_congestion_control", "reno", optional=True)
                _set("net/ipv4/tcp_slow_start_after_idle", 0)
                _set("net/ipv4/tcp_no_metrics_save", 1)
                # Short queues, as those of network cards that report how much they hold: a
                # message's announcement must not wait behind a tenth of a second of data.
                _set("net/ipv4/tcp_limit_output_bytes", 2 * self._mtu)
                _set("net/ipv4/tcp_rmem", f"4096 65536 {_WINDOW_BYTES}")
        for node in range(topology.num_nodes):
            self._up(node, "lo")
        for source, target in zip(topology.source.tolist(), topology.target.tolist(), strict=True):
            if source < target:
                self._link(source, target)
        for link in range(len(topology.source)):
            self._limit(link)
        for link in range(len(topology.source)):
            self._neighbour(link)

    def _link(self, a: int, b: int) -> None:
        self._namespaces[a].link(
            "add",
            ifname=_to(b),
            kind="veth",
            mtu=self._mtu,
            gso_max_segs=1,
            peer={"ifname": _to(a), "net_ns_fd": self.name(b), "mtu": self._mtu},
        )
        self._namespaces[b].link("set", index=self._index(b, _to(a)), gso_max_segs=1)
        self._namespaces[a].link("set", index=self._index(a, _to(b)), gso_max_segs=1)
        self._up(a, _to(b))
        self._up(b, _to(a))

    def _limit(self, link: int) -> None:
        topology = self.topology
        source, target = int(topology.source[link]), int(topology.target[link])
        node, index = self._namespaces[source], self._index(source, _to(target))
        rate = int(topology.bandwidth_bytes_per_s[link])
        packet = self._mtu + 14
        # With less than two packets the bucket never holds a large segment, and cuts it up.
        node.tc("add", "tbf", index, 0x10000, rate=rate, burst=packet + 100, limit=1 << 26)
        latency = float(topology.latency_s[link])
        if latency > _LEAST_LATENCY_S:
            try:
                node.tc("add", "netem", index, 0x20000, parent=0x10001, delay=int(latency * 1e6))
            except NetlinkError as error:
                raise OptionError(
                    f"link {source}→{target} has a latency of {latency:g} s, and this kernel has "
                    "no netem to emulate it; load sch_netem, or ask for a latency of 0"
                ) from error

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
        for node, hops in paths.tables().items():
            for hop in hops:
                where = {
                    "dst": f"{self.address(hop.channel, hop.target)}/32",
                    "oif": self._index(node, _to(hop.next)),
                    "gateway": _gateway(hop.next),
                    "flags": 4,  # onlink: the neighbour's address is in none of the networks
                }
                if self.topology.is_server[node]:
                    where["prefsrc"] = self.address(hop.channel, node)
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
            node.addr(
                "add",
                index=self._index(server, name),
                address=self.address(channel, server),
                prefixlen=32,
            )

    def forward(self, servers: frozenset[int] | None) -> None:
        """Lets these servers alone forward for others; None: all of them."""
        for server in self.topology.servers.tolist():
            with self._inside(server):
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
    def _inside(self, node: int) -> Iterator[None]:
        """Puts this thread in a node's namespace."""
        netns.pushns(self.name(node))
        try:
            yield
        finally:
            netns.popns()

    def _destroy(self) -> None:
        # A second Ctrl-C must not leave half of it behind.
        with _interrupts_ignored():
            for namespace in self._namespaces:
                namespace.close()
            self._namespaces = []
            for node in range(self.topology.num_nodes):
                with contextlib.suppress(OSError):
                    netns.remove(self.name(node))


def _create(namespace: str) -> None:
    """Makes a namespace as pyroute2 does, but without a fork: JAX may be running threads."""
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


def clear_leftovers() -> list[str]:
    """Removes the namespaces of labs whose process was killed, by their names.

    Returns:
        Their names.
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
    """Interface that leads to a node."""
    return f"to{node}"


def _gateway(node: int) -> str:
    """Address by which neighbours name a node; no packet is ever sent to it."""
    return f"10.63.{node >> 8}.{node & 255}"


def _set(key: str, value: int | str, *, optional: bool = False) -> None:
    try:
        Path("/proc/sys", key).write_text(str(value))
    except OSError as error:
        if not optional:
            raise RunError(f"cannot set {key} to {value}: {error}") from error


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignores Ctrl-C, which only the main thread gets."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
