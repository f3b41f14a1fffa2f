"""Measures what an emulated network's links really do, before anything is run on them."""

import contextlib
import dataclasses
import select
import socket
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import InputWarning, OptionError, RunError
from gradweave.lab.delays import LEAST_DELAY_LINE_S, Delays
from gradweave.lab.network import HEADER_BYTES, EmulatedNetwork, namespace_files
from gradweave.processes.cleared import cleared_folder
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_bandwidth, format_seconds

TOLERANCE = 0.1
"""Maximum relative error of a round trip or a throughput without a warning."""
REFUSED = 0.25
"""Relative error from which a link, loaded alone, is refused."""
SLACK_S = 0.5e-3
"""Additional tolerance of a round trip, since a busy machine wakes a process late."""
_SHORT_S = 0.01
"""Lateness is relative to at least this round trip: shorter ones cannot be kept as precisely."""
MOST_LINKS = 128
"""Maximum number of link directions measured; with more, an evenly spaced subset is measured."""
_MOST_ALONE = 8
"""Maximum number of link directions measured alone, chosen from those that fell short."""
_PINGS = 5
_GAP_S = 1e-3
"""Time between two one-byte messages: without it, they would wait for one another here."""
_TRIES = 3
_PORT = 5000
_LEAST_S = 0.4
_LEAST_PACKETS = 24
_MOST_S = 10.0
"""The throughput is measured for `_LEAST_S`, or for as long as the slowest link takes for
`_LEAST_PACKETS`, but at most for `_MOST_S`."""
_GROWTH_TRIPS = 8
"""Round trips in which TCP's window grows to the capacity of a link."""
_PATIENCE_S = 10.0
_TICK_S = 0.005
_QUEUED_S = 2.0
"""Maximum queue before a link, in seconds of its bandwidth."""
_CHUNK = memoryview(bytes(1 << 16))


@dataclasses.dataclass(frozen=True, eq=False)
class Emulation:
    """Requested and measured figures of an emulated network, for M measured link directions."""

    delays: Delays
    """The source of latencies."""
    window_bytes: int
    """Receive buffer of a connection over one link: at least twice the capacity of the longest
    link."""
    of_links: int
    """L, the total number of link directions."""
    links: NDArray[np.int64]
    """[M] the measured link directions."""
    asked_round_trip_s: NDArray[np.float64]
    """[M] sum of the latencies of both directions."""
    round_trip_s: NDArray[np.float64]
    """[M] median over some one-byte messages, with nothing else on the links."""
    asked_bytes_per_s: NDArray[np.float64]
    """[M] rate of data over TCP at the link's bandwidth, with minimum headers."""
    together_bytes_per_s: NDArray[np.float64]
    """[M] rate of data over TCP while all M directions are loaded."""
    alone_bytes_per_s: NDArray[np.float64]
    """[M] the same for a direction loaded alone; NaN if it was not measured, since it was not among
    the directions that fell shortest under the common load."""

    @property
    def throughput(self) -> NDArray[np.float64]:
        """[M] data rate of an unimpeded direction, relative to the request.

        This is the rate under the common load if it is near the request, and otherwise the rate of
        the direction alone; NaN if that was not measured.
        """
        together = self.together_bytes_per_s / self.asked_bytes_per_s
        alone = self.alone_bytes_per_s / self.asked_bytes_per_s
        return np.where(together >= 1 - TOLERANCE, together, np.maximum(alone, together))

    @property
    def together(self) -> float:
        """Data rate of all directions loaded simultaneously, relative to the request."""
        return float(self.together_bytes_per_s.sum() / self.asked_bytes_per_s.sum())

    @property
    def lateness(self) -> NDArray[np.float64]:
        """[M] relative error of round trips beyond the slack.

        It is relative to 10 ms if the request is shorter. If the request is nearly zero, the error
        is never large enough for a refusal: then only a busy machine delays the packets.
        """
        asked = self.asked_round_trip_s
        beyond = np.maximum(np.abs(self.round_trip_s - asked) - SLACK_S, 0.0)
        lateness = beyond / np.maximum(asked, _SHORT_S)
        return np.where(asked < 2 * LEAST_DELAY_LINE_S, np.minimum(lateness, REFUSED), lateness)

    def check(self, topology: Topology) -> None:
        """Refuses what this machine cannot emulate, and warns of what it hardly can.

        Args:
            topology: the network, for names.

        Raises:
            OptionError: a link alone is off by more than `REFUSED`.
        """
        off = np.fmax(self.lateness, 1 - self.throughput)
        worst = int(off.argmax())
        says = self._says(worst, topology)
        if off[worst] > REFUSED:
            raise OptionError(f"{says}: this machine cannot carry it; ask for a lower bandwidth")
        if off[worst] > TOLERANCE:
            warnings.warn(f"{says}; {self._why_off(worst)}", InputWarning, stacklevel=2)
        if self.together < 1 - TOLERANCE:
            warnings.warn(
                f"all links loaded at once carry {self.together:.0%} of what was asked for, "
                f"{format_bandwidth(float(self.asked_bytes_per_s.sum()))}: a schedule with such a "
                "load measures this machine; ask for a lower bandwidth",
                InputWarning,
                stacklevel=2,
            )

    def _why_off(self, place: int) -> str:
        """The probable cause if a link is somewhat off."""
        asked = float(self.asked_round_trip_s[place])
        if self.delays != "delay line" or asked < 2 * LEAST_DELAY_LINE_S:
            return "is the machine busy?"
        return (
            "this kernel has no netem, so a process of the lab delays packets, less precisely: "
            "load the module sch_netem, or ask for longer latencies or a lower bandwidth"
        )

    def _says(self, place: int, topology: Topology) -> str:
        rate = self.throughput[place] * self.asked_bytes_per_s[place]
        carried = "" if np.isnan(rate) else f" and {format_bandwidth(float(rate))}"
        return (
            f"{topology.link_name(int(self.links[place]))} was asked for round trips of "
            f"{format_seconds(float(self.asked_round_trip_s[place]))} and "
            f"{format_bandwidth(float(self.asked_bytes_per_s[place]))} of data, and has "
            f"{format_seconds(float(self.round_trip_s[place]))}{carried}"
        )


@contextlib.contextmanager
def measured_network(
    topology: Topology, progress: Callable[[str], None] = lambda _: None, *, attempts: int = 1
) -> Iterator[tuple[EmulatedNetwork, Emulation, Path]]:
    """An emulated network for the duration of the block, with measured links and a folder.

    Args:
        topology: the network, with the bandwidths and latencies to emulate.
        progress: called with the current step.
        attempts: how often links are measured at most, until they do what is requested.

    Raises:
        OptionError: the caller is not root, the kernel lacks a feature, or every measurement is far
            from the request.
    """
    progress(f"making a network of {topology.num_nodes} namespaces")
    with (
        cleared_folder("gradweave-lab-", mounts=namespace_files()) as folder,
        EmulatedNetwork(topology, log=folder / "delays") as network,
    ):
        yield network, _checked(network, progress, attempts), folder


def _checked(network: EmulatedNetwork, progress: Callable[[str], None], attempts: int) -> Emulation:
    for _ in range(attempts - 1):
        emulation = measure_links(network, progress)
        with contextlib.suppress(OptionError):
            emulation.check(network.topology)
            return emulation
    emulation = measure_links(network, progress)
    emulation.check(network.topology)
    return emulation


def measure_links(
    network: EmulatedNetwork, progress: Callable[[str], None] = lambda _: None
) -> Emulation:
    """Measures round trips and throughput of an emulated network's links, by TCP over each link.

    All link directions send simultaneously; those that fall short are then measured alone.

    Args:
        network: the network, with nothing running on it.
        progress: called with the current step.

    Raises:
        RunError: a link carries nothing.
    """
    topology = network.topology
    count = len(topology.source)
    links = np.unique(np.linspace(0, count - 1, min(count, MOST_LINKS)).round().astype(np.int64))
    latency_s = topology.latency_s[links] + topology.latency_s[topology.opposite[links]]
    data = 1 - HEADER_BYTES / (network.mtu + 14)
    asked = np.asarray(topology.bandwidth_bytes_per_s[links] * data, np.float64)
    progress(f"measuring {len(links)} link directions")
    window_bytes = network.window_bytes
    with _connected(network, links.tolist()) as flows:
        round_trip_s = _round_trips(flows)
        queued = np.minimum(window_bytes // 2, np.maximum(_QUEUED_S * asked, 2 * network.mtu))
        limits = [int(limit) for limit in latency_s * asked + queued]
        transfer = _Transfer(
            flows,
            limits,
            growth_s=_GROWTH_TRIPS * float(latency_s.max()) + 0.1,
            seconds=_duration(float(asked.min()), network.mtu),
            patience_s=float((limits / asked).max()),
        )
        together = np.array(transfer.rates(range(len(flows))))
        alone = np.full(len(flows), np.nan)
        short = np.flatnonzero(together < (1 - TOLERANCE) * asked)
        for place in short[np.argsort((together / asked)[short])][:_MOST_ALONE].tolist():
            progress(f"measuring {topology.link_name(int(links[place]))} alone")
            alone[place] = transfer.best_rate(place, (1 - TOLERANCE) * float(asked[place]))
    return Emulation(
        delays=network.delays,
        window_bytes=window_bytes,
        of_links=count,
        links=links,
        asked_round_trip_s=latency_s,
        round_trip_s=round_trip_s,
        asked_bytes_per_s=asked,
        together_bytes_per_s=together,
        alone_bytes_per_s=alone,
    )


def _duration(slowest_bytes_per_s: float, mtu: int) -> float:
    """Seconds in which every link carries enough packets to measure its rate."""
    return min(max(_LEAST_S, _LEAST_PACKETS * mtu / slowest_bytes_per_s), _MOST_S)


Flow = tuple[socket.socket, socket.socket]
"""The sender's and the receiver's end of a connection over one link."""


@contextlib.contextmanager
def _connected(network: EmulatedNetwork, links: Sequence[int]) -> Iterator[list[Flow]]:
    """Opens a connection over each link direction, between the addresses of its two ends."""
    topology = network.topology
    with contextlib.ExitStack() as stack:
        listeners: dict[int, socket.socket] = {}
        for node in {int(topology.target[link]) for link in links}:
            with network.inside(node):
                listeners[node] = stack.enter_context(socket.socket())
            # Otherwise the port stays in use for a minute if this end of a connection closes first.
            listeners[node].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listeners[node].bind((network.gateway(node), _PORT))
            listeners[node].listen(len(links))
            listeners[node].settimeout(_PATIENCE_S)
        senders = []
        for link in links:
            source, target = int(topology.source[link]), int(topology.target[link])
            with network.inside(source):
                sender = stack.enter_context(socket.socket())
            sender.setblocking(False)
            sender.bind((network.gateway(source), 0))
            sender.connect_ex((network.gateway(target), _PORT))
            senders.append(sender)
        accepted = {}
        for link in links:
            try:
                connection, peer = listeners[int(topology.target[link])].accept()
            except TimeoutError as error:
                raise RunError(
                    f"{topology.link_name(link)} or another link to its end carries nothing"
                ) from error
            accepted[peer] = stack.enter_context(connection)
        flows = [(sender, accepted[sender.getsockname()]) for sender in senders]
        for end in (end for flow in flows for end in flow):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield flows


def _round_trips(flows: Sequence[Flow]) -> NDArray[np.float64]:
    """[M] median seconds between sending a byte and receiving its echo."""
    took: list[list[float]] = [[] for _ in flows]
    ends = {end.fileno(): (place, end) for place, flow in enumerate(flows) for end in flow}
    with select.epoll() as epoll:
        for end in ends:
            epoll.register(end, select.EPOLLIN)
        for _ in range(_PINGS):
            started: list[float] = []
            left, until = len(flows), time.monotonic() + _PATIENCE_S
            while left:
                if unsent := len(started) < len(flows):
                    sender, _ = flows[len(started)]
                    started.append(time.monotonic())
                    sender.send(b".")
                for descriptor, _ in epoll.poll(_GAP_S if unsent else _PATIENCE_S):
                    place, end = ends[descriptor]
                    end.recv(1)
                    if end is flows[place][1]:
                        end.send(b".")
                    else:
                        took[place].append(time.monotonic() - started[place])
                        left -= 1
                if time.monotonic() > until:
                    raise RunError(f"a message of one byte did not come back in {_PATIENCE_S:g} s")
    return np.array([statistics.median(times) for times in took])


class _Transfer:
    """Sends data over connections for long enough to measure their rates.

    Args:
        flows: the connections.
        limits: for each connection, the maximum bytes in flight. It bounds how long data still
            arrives after the measurement.
        growth_s: time for the connections' windows to grow, not counted.
        seconds: measured time.
        patience_s: time in which all data in flight arrives.
    """

    def __init__(
        self,
        flows: Sequence[Flow],
        limits: Sequence[int],
        *,
        growth_s: float,
        seconds: float,
        patience_s: float,
    ) -> None:
        self._flows, self._limits = flows, limits
        self._growth_s, self._seconds = growth_s, seconds
        self._under_way = [0] * len(flows)
        self._patience_s = _PATIENCE_S + patience_s
        self._into = bytearray(1 << 18)

    def rates(self, places: Sequence[int]) -> list[float]:
        """Bytes per second that arrive over some of the connections simultaneously."""
        first: dict[int, float] = {}
        last: dict[int, float] = {}
        arrived = dict.fromkeys(places, 0)
        begin = time.monotonic() + self._growth_s
        end = begin + self._seconds
        for place, now, received in self._move(places, end):
            if now < begin:
                continue
            if place in first:
                arrived[place] += received
            first.setdefault(place, now)
            last[place] = now
        return [
            arrived[place] / (last[place] - first[place]) if arrived[place] else 0.0
            for place in places
        ]

    def best_rate(self, place: int, enough: float) -> float:
        """Bytes per second over one connection: the best of several tries, until it is enough."""
        best = 0.0
        for _ in range(_TRIES):
            best = max(best, *self.rates([place]))
            if best >= enough:
                break
        return best

    def _move(self, places: Sequence[int], end: float) -> Iterator[tuple[int, float, int]]:
        """Sends until a time, then receives the rest; yields place, time and bytes."""
        by_receiver = {self._flows[place][1].fileno(): place for place in places}
        with select.epoll() as epoll:
            for receiver in by_receiver:
                epoll.register(receiver, select.EPOLLIN)
            starved = set(places)
            while (now := time.monotonic()) < end:
                for place in starved:
                    self._send(place)
                ready = [by_receiver[descriptor] for descriptor, _ in epoll.poll(_TICK_S)]
                now = time.monotonic()
                for place in ready:
                    yield place, now, self._receive(place)
                starved = set(ready) if ready else set(places)
            until = now + self._patience_s
            while any(self._under_way[place] for place in places):
                for descriptor, _ in epoll.poll(_TICK_S):
                    self._receive(by_receiver[descriptor])
                if time.monotonic() > until:
                    raise RunError(f"a link's data did not arrive in {self._patience_s:.3g} s")

    def _send(self, place: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while (room := self._limits[place] - self._under_way[place]) > 0:
                self._under_way[place] += self._flows[place][0].send(_CHUNK[:room])

    def _receive(self, place: int) -> int:
        with contextlib.suppress(BlockingIOError):
            received = self._flows[place][1].recv_into(self._into)
            self._under_way[place] -= received
            return received
        return 0
