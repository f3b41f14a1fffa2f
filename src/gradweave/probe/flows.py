"""One process's part of a measurement: pings, and flows in slots."""

import dataclasses
import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradweave.probe.traffic import PARTS, rate_of
from gradweave.probe.transport import Message, PeerError, Transport

PINGS = 12
"""Maximum round trips per pair."""
FEWEST_PINGS, ENOUGH_PINGS_S = 4, 0.1
"""Minimum round trips per pair, and the seconds after which no further round trips are made: if one
takes long, disturbances are small in comparison."""
STREAMED = (8, 64)
"""Numbers of consecutive one-byte messages: few and many, whose difference excludes latency."""
NEAR_TRIP_S = 1e-3
"""Maximum round trip with which each message of a stream is requested after the previous one has
arrived, like messages that take turns on a link. Farther away, where a request takes a round trip,
all are requested in advance. That leaves only a part of the overhead; near peers reveal the larger
part."""
_STREAMS = 3
"""Repetitions of each stream between near peers, of which the shortest counts; others run once."""
WINDOW_S = 0.03
"""A flow keeps as much data in flight as it sends in this time plus a round trip. With more, the
receiver's requests would wait too long behind data of the opposite direction, or for a busy
processor."""
MOST_POSTED = 64
"""Maximum number of chunks that a receiver requests in advance."""
CHUNK_S = 0.008
"""Seconds per chunk: several form a window, and many a slot of a flow with a fair share."""
LEAST_CHUNK, MOST_CHUNK = 256, 1 << 22
"""Minimum and maximum bytes of a chunk, on slow and fast links."""
_GROWTH = 4
"""Growth of the first transfer, which is repeated if it ended too soon."""
_LONG_ENOUGH_S = 0.02
"""Minimum duration of a first transfer, in addition to two round trips, to derive a rate."""
_PATIENCE_S = 10.0
"""Time after the end of a slot for data in flight."""
_FIRST_BYTES = 1 << 16
_MOST_BYTES = 1 << 26
"""Sizes of the smallest and the largest first transfer."""
_FIRST_WINDOW_BYTES = 14_000
"""Bytes that TCP sends before the first acknowledgement; each round trip doubles them."""


def ping_rounds(
    transport: Transport, partners: Sequence[int], timeout_s: float
) -> dict[str, list[float]]:
    """Measures round trips to each partner in turn, in seconds; the smaller rank starts them.

    Meanwhile only single bytes are in flight, so no message has to wait behind data.

    Raises:
        PeerError: a partner went away or was silent.
    """
    found: dict[str, list[float]] = {}
    for peer in partners:
        if transport.rank < peer:
            found[str(peer)] = _pings(transport, peer, timeout_s)
        else:
            _answer(transport, peer, timeout_s)
    return found


def guess_rounds(
    transport: Transport, partners: Sequence[Sequence[float]], timeout_s: float
) -> dict[str, Any]:
    """Meets each partner in turn for a first guess of rates.

    Args:
        transport: the connection to the other processes.
        partners: each partner, with the seconds of a round trip to it.
        timeout_s: how long a partner may be silent.

    Returns:
        By partner, as JSON: ``bytes_per_s``, a first guess for a transfer from it; ``gap_s``, the
        time per additional message without data, or None at the sender and for far partners.

    Raises:
        PeerError: a partner went away or was silent.
    """
    found: dict[str, Any] = {}
    for place, trip_s in partners:
        peer = int(place)
        guess = _grown_rate(transport, peer, trip_s, timeout_s)
        near = trip_s < NEAR_TRIP_S
        leads = transport.rank < peer
        gap = _streamed(transport, peer, leads, near, timeout_s) if near else None
        found[str(peer)] = {"bytes_per_s": guess, "gap_s": gap}
    return found


def far_streams(
    transport: Transport, partners: Sequence[int], timeout_s: float
) -> dict[str, float | None]:
    """``gap_s`` of far partners; see `guess_rounds`."""
    return {
        str(peer): _streamed(transport, peer, transport.rank < peer, False, timeout_s)
        for peer in partners
    }


def _pings(transport: Transport, peer: int, timeout_s: float) -> list[float]:
    """Round trips, fewer if they are long; the last message tells the peer that it is the last."""
    trips: list[float] = []
    while True:
        enough = len(trips) + 1 >= FEWEST_PINGS and sum(trips) > ENOUGH_PINGS_S
        last = enough or len(trips) + 1 == PINGS
        byte = np.array([last], np.uint8)
        begun = time.monotonic()
        transport.send(byte, peer, "data").wait(timeout_s)
        transport.receive(byte, peer, "data").wait(timeout_s)
        trips.append(time.monotonic() - begun)
        if last:
            return trips


def _answer(transport: Transport, peer: int, timeout_s: float) -> None:
    """The peer's part of `_pings`."""
    byte = np.zeros(1, np.uint8)
    while not byte[0]:
        transport.receive(byte, peer, "data").wait(timeout_s)
        transport.send(byte, peer, "data").wait(timeout_s)


def _grown_rate(transport: Transport, peer: int, trip_s: float, timeout_s: float) -> float:
    """Bytes per second from a peer, by a transfer that takes long compared with a round trip.

    Both send simultaneously, more and more until enough has arrived at both. Near peers then repeat
    the last transfer, and the faster one counts: a busy processor may be late by as much as such a
    transfer takes.
    """
    size = _FIRST_BYTES
    took, enough = _exchanged(transport, peer, size, trip_s, timeout_s)
    while not enough:
        size *= _GROWTH
        took, enough = _exchanged(transport, peer, size, trip_s, timeout_s)
    if trip_s < NEAR_TRIP_S:
        took = min(took, _exchanged(transport, peer, size, trip_s, timeout_s)[0])
    return size / took


def _exchanged(
    transport: Transport, peer: int, size: int, trip_s: float, timeout_s: float
) -> tuple[float, bool]:
    """Sends that many bytes and receives as many.

    Returns:
        Seconds until they arrived, without latency, and whether that was enough at both ends.
    """
    into = np.empty(size, np.uint8)
    begun = time.monotonic()
    arriving = transport.receive(into, peer, "data")
    leaving = transport.send(np.zeros(size, np.uint8), peer, "data")
    arriving.wait(timeout_s)
    took = max(time.monotonic() - begun - trip_s / 2, 1e-6)
    leaving.wait(timeout_s)
    enough = took > _LONG_ENOUGH_S + 2 * trip_s or size >= _MOST_BYTES
    sending = transport.send(np.array([enough], np.uint8), peer, "data")
    heard = np.zeros(1, np.uint8)
    transport.receive(heard, peer, "data").wait(timeout_s)
    sending.wait(timeout_s)
    return took, enough and bool(heard[0])


def _streamed(
    transport: Transport, peer: int, leads: bool, near: bool, timeout_s: float
) -> float | None:
    """Seconds per additional one-byte message at its receiver, or None at the sender."""
    few, many = (
        min(
            _stream(transport, peer, leads, near, count, timeout_s)
            for _ in range(_STREAMS if near else 1)
        )
        for count in STREAMED
    )
    return None if leads else max(many - few, 0.0) / (STREAMED[1] - STREAMED[0])


def _stream(
    transport: Transport, peer: int, leads: bool, near: bool, count: int, timeout_s: float
) -> float:
    """Seconds from before the first message starts until the last is complete."""
    bytes_ = np.zeros((count, 1), np.uint8)
    begun = time.monotonic()
    if leads:
        for byte in bytes_:
            transport.send(byte, peer, "data").wait(timeout_s)
    else:
        ahead = 1 if near else count
        posted = [transport.receive(byte, peer, "data") for byte in bytes_[:ahead]]
        for byte in bytes_[ahead:]:
            posted.pop(0).wait(timeout_s)
            posted.append(transport.receive(byte, peer, "data"))
        for message in posted:
            message.wait(timeout_s)
    took = time.monotonic() - begun
    last = transport.receive if leads else transport.send  # aligns both ends for the next stream
    last(bytes_[0], peer, "data").wait(timeout_s)
    return took


def run_slots(transport: Transport, slots: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sends and receives in the slots that this process has a part in, each at its time.

    Args:
        transport: the connection to the other processes.
        slots: for each slot: ``at``, its start by this process's clock; ``seconds``, its duration;
            ``grown_s``, the time from which arrivals count; and ``flows`` as [source, target,
            chunk, chunks requested in advance].

    Returns:
        For each flow that this process received: slot, source, rate, parts, and number of arrivals.
        After a failed flow, which has ``error`` and ``peer`` instead, no further slots are run.
    """
    results: list[dict[str, Any]] = []
    for number, slot in enumerate(slots):
        mine = [flow for flow in slot["flows"] if transport.rank in flow[:2]]
        if not mine:
            continue
        time.sleep(max(slot["at"] - time.monotonic(), 0.0))
        jobs = [_Job(transport, number, slot, flow) for flow in mine]
        for job in jobs:
            job.thread.start()
        for job in jobs:
            job.thread.join()
        results += [job.result for job in jobs if job.result is not None]
        if any("error" in result for result in results):
            break
    return results


class _Job:
    """One flow of a slot, sent or received by a thread."""

    def __init__(
        self, transport: Transport, slot: int, terms: dict[str, Any], flow: Sequence[int]
    ) -> None:
        self._transport, self._terms = transport, terms
        self._slot = slot
        source, target, self._chunk, self._posted = flow
        sends = transport.rank == source
        self._peer = target if sends else source
        self.result: dict[str, Any] | None = None
        self._end = terms["at"] + terms["seconds"]
        self._longest = terms["seconds"] + _PATIENCE_S
        self.thread = threading.Thread(target=self._run, args=(sends,), daemon=True)

    def _run(self, sends: bool) -> None:
        try:
            if sends:
                self._send()
            else:
                self._receive()
        except PeerError as error:
            self.result = {"slot": self._slot, "peer": error.rank, "error": error.how}

    def _send(self) -> None:
        """Sends until the slot ends, and then as many last bytes as the receiver waits for."""
        chunk, last = np.zeros(self._chunk, np.uint8), np.ones(1, np.uint8)
        under_way: list[Message] = []
        count = 0
        while time.monotonic() < self._end or count < PARTS:  # a late sender catches up
            count += 1
            under_way.append(self._transport.send(chunk, self._peer, "data"))
            if len(under_way) >= self._posted:
                under_way.pop(0).wait(self._longest)
        under_way += [self._transport.send(last, self._peer, "data") for _ in range(self._posted)]
        for message in under_way:
            message.wait(self._longest)

    def _receive(self) -> None:
        buffers = [np.empty(self._chunk, np.uint8) for _ in range(self._posted)]

        def post(turn: int) -> Message:
            return self._transport.receive(buffers[turn % self._posted], self._peer, "data")

        posted = [post(turn) for turn in range(self._posted)]
        arrivals: list[float] = []
        ended, turn = 0, 0
        while ended < self._posted:
            posted.pop(0).wait(self._longest)
            if buffers[turn % self._posted][0]:
                ended += 1
            else:
                arrivals.append(time.monotonic())
                posted.append(post(turn))
            turn += 1
        begin = self._terms["at"] + self._terms["grown_s"]
        rate, count = rate_of(arrivals, self._chunk, begin, self._end)
        self.result = {
            "slot": self._slot,
            "peer": self._peer,
            "bytes_per_s": None if np.isnan(rate.bytes_per_s) else rate.bytes_per_s,
            "parts": [] if np.isnan(rate.bytes_per_s) else list(rate.parts),
            "arrivals": count,
        }


@dataclasses.dataclass(frozen=True)
class Window:
    """The data in flight of a flow: chunks that its receiver requests in advance."""

    chunk_bytes: int
    posted: int

    @property
    def total_bytes(self) -> int:
        """Maximum bytes in flight."""
        return self.chunk_bytes * self.posted

    def in_chunks_of(self, size: int) -> "Window":
        """The same number of bytes in smaller chunks, at most `MOST_POSTED` of them."""
        size = max(size, LEAST_CHUNK, -(-self.total_bytes // MOST_POSTED))
        return Window(size, -(-self.total_bytes // size))


def chunk_bytes(bytes_per_s: float) -> int:
    """Bytes per chunk for a flow of this rate."""
    return min(max(int(bytes_per_s * CHUNK_S), LEAST_CHUNK), MOST_CHUNK)


def window(bytes_per_s: float, trip_s: float) -> Window:
    """A window for a flow of this rate that does not limit the flow."""
    chunk = chunk_bytes(bytes_per_s)
    under_way = bytes_per_s * (WINDOW_S + trip_s)
    return Window(chunk, min(max(math.ceil(under_way / chunk), 2), MOST_POSTED))


def grown_seconds(window: Window, trip_s: float) -> float:
    """How long TCP's window takes to grow to that of a flow."""
    return (1 + math.log2(max(window.total_bytes / _FIRST_WINDOW_BYTES, 1))) * trip_s
