"""One process's part of a measurement: pings its peers, and sends and receives in slots."""

import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradweave.probe.traffic import PARTS, rate_of
from gradweave.probe.transport import Message, PeerError, Transport

PINGS = 12
"""Round trips of a pair."""
STREAMED = (8, 64)
"""Messages of one byte that follow one another: few and many, whose difference has no latency."""
NEAR_TRIP_S = 1e-3
"""Round trip up to which each message of a stream is asked for when the one before has come, as
those that take turns on a link are. Farther away, where asking takes a round trip, all are asked
for beforehand: what is left is a part of the overhead, whose larger part near peers tell."""
_STREAMS = 3
"""Times that each is tried; the shortest counts."""
POSTED, MOST_POSTED = 3, 64
"""Chunks that a near receiver asks for beforehand, so that none waits for it; a far one at most."""
LEAST_CHUNK, MOST_CHUNK = 1024, 1 << 22
_GROWTH = 4
_LONG_ENOUGH_S = 0.02
_PATIENCE_S = 10.0
"""After the end of a slot, for what is under way."""
_FIRST_BYTES = 1 << 14
_MOST_BYTES = 1 << 26
_GROWN_TRIPS = 8
"""Round trips in which a connection's window grows to what its route holds."""


def ping_rounds(transport: Transport, partners: Sequence[int], timeout_s: float) -> dict[str, Any]:
    """Meets each partner in turn; the smaller rank of two leads.

    Returns:
        By partner, as JSON: ``trips_s`` of the leader; ``gap_s`` for each further message without
        data; ``near``, whether the partner is near enough to tell all of that; and ``bytes_per_s``
        of a transfer to it, a first guess.

    Raises:
        PeerError: a partner went away or was silent.
    """
    found: dict[str, Any] = {}
    for peer in partners:
        leads = transport.rank < peer
        trips = _pings(transport, peer, leads, timeout_s)
        if leads:
            guess = _grow(transport, peer, min(trips), timeout_s)
            _echo_growth(transport, peer, timeout_s)
        else:
            _echo_growth(transport, peer, timeout_s)
            guess = _grow(transport, peer, 0.0, timeout_s)
        near = _agreed(transport, peer, leads, min(trips) < NEAR_TRIP_S, timeout_s)
        gap = _streamed(transport, peer, leads, near, timeout_s)
        found[str(peer)] = {"trips_s": trips, "gap_s": gap, "near": near, "bytes_per_s": guess}
    return found


def _agreed(transport: Transport, peer: int, leads: bool, mine: bool, timeout_s: float) -> bool:
    """What the leader says, told to its peer."""
    said = np.array([mine], np.uint8)
    tell = transport.send if leads else transport.receive
    tell(said, peer, "data").wait(timeout_s)
    return bool(said[0])


def _pings(transport: Transport, peer: int, leads: bool, timeout_s: float) -> list[float]:
    byte = np.zeros(1, np.uint8)
    trips = []
    for _ in range(PINGS):
        begun = time.monotonic()
        if leads:
            transport.send(byte, peer, "data").wait(timeout_s)
        transport.receive(byte, peer, "data").wait(timeout_s)
        if leads:
            trips.append(time.monotonic() - begun)
        else:
            transport.send(byte, peer, "data").wait(timeout_s)
    return trips if leads else [0.0]


def _grow(transport: Transport, peer: int, trip_s: float, timeout_s: float) -> float:
    """Bytes per second of a transfer that takes long beside a round trip."""
    size, byte = _FIRST_BYTES, np.zeros(1, np.uint8)
    while True:
        head = np.array([size], np.int64).view(np.uint8)
        transport.send(head, peer, "data").wait(timeout_s)
        begun = time.monotonic()
        transport.send(np.zeros(size, np.uint8), peer, "data").wait(timeout_s)
        transport.receive(byte, peer, "data").wait(timeout_s)
        took = max(time.monotonic() - begun - trip_s, 1e-6)
        if took > _LONG_ENOUGH_S + 2 * trip_s or size >= _MOST_BYTES:
            transport.send(np.zeros(8, np.uint8), peer, "data").wait(timeout_s)
            return size / took
        size *= _GROWTH


def _echo_growth(transport: Transport, peer: int, timeout_s: float) -> None:
    """The other side of `_grow`."""
    head, byte = np.zeros(8, np.uint8), np.zeros(1, np.uint8)
    while True:
        transport.receive(head, peer, "data").wait(timeout_s)
        if not (size := int(head.view(np.int64)[0])):
            return
        transport.receive(np.empty(size, np.uint8), peer, "data").wait(timeout_s)
        transport.send(byte, peer, "data").wait(timeout_s)


def _streamed(transport: Transport, peer: int, leads: bool, near: bool, timeout_s: float) -> float:
    """Seconds that one more message of one byte takes at its receiver; 0 at who sends them."""
    few, many = (
        min(_stream(transport, peer, leads, near, count, timeout_s) for _ in range(_STREAMS))
        for count in STREAMED
    )
    return 0.0 if leads else max(many - few, 0.0) / (STREAMED[1] - STREAMED[0])


def _stream(
    transport: Transport, peer: int, leads: bool, near: bool, count: int, timeout_s: float
) -> float:
    """Seconds from before the first message is started until the last is complete."""
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
    last = transport.receive if leads else transport.send  # the next stream starts at both ends
    last(bytes_[0], peer, "data").wait(timeout_s)
    return took


def run_slots(transport: Transport, slots: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sends and receives in the slots that this process has a part in, each at its time.

    Args:
        transport: to the others.
        slots: of each ``at``, the time by this process's clock; ``seconds`` that it lasts;
            ``trip_s``, the longest round trip in it; and ``flows`` as [source, target, chunk,
            chunks asked for beforehand].

    Returns:
        Of each flow that this process received: slot, source, rate, parts, number of arrivals, and
        the times between which they were; or, of the first that failed, ``error`` and ``peer``,
        after which no more slots are run.
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
    """A flow of a slot, sent or received by a thread of its own."""

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
        """Sends until the slot ends, and then as many last chunks as the receiver waits for."""
        chunk, last = np.zeros(self._chunk, np.uint8), np.ones(self._chunk, np.uint8)
        end = max(self._end, time.monotonic() + self._terms["seconds"] / 2)
        under_way: list[Message] = []
        while time.monotonic() < end:
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
            arrivals.append(time.monotonic())
            if buffers[turn % self._posted][0]:
                ended += 1
            elif not ended:
                posted.append(post(turn))
            turn += 1
        grown = min(
            _GROWN_TRIPS * self._terms["trip_s"] + 0.1 * self._terms["seconds"],
            0.6 * self._terms["seconds"],
        )
        begin = self._terms["at"] + grown
        rate, count = rate_of(arrivals, self._chunk, begin, self._end)
        self.result = {
            "slot": self._slot,
            "peer": self._peer,
            "bytes_per_s": None if np.isnan(rate.bytes_per_s) else rate.bytes_per_s,
            "parts": [] if np.isnan(rate.bytes_per_s) else list(rate.parts),
            "arrivals": count,
            "from": arrivals[0],
            "to": arrivals[-1],
        }


def slot_seconds(wanted_s: float, trip_s: float) -> float:
    """How long a slot lasts: as wanted, once connections' windows have grown."""
    return wanted_s + _GROWN_TRIPS * trip_s


def chunk_bytes(bytes_per_s: float, seconds: float) -> int:
    """Size of a flow's chunks, such that enough of them tell its rate."""
    size = int(bytes_per_s * seconds / (8 * PARTS))
    return min(max(size, LEAST_CHUNK), MOST_CHUNK)


def chunks_ahead(bytes_per_s: float, chunk: int, trip_s: float) -> int:
    """How many chunks a receiver asks for beforehand: what arrives in two round trips, and some."""
    return min(POSTED + math.ceil(2 * bytes_per_s * trip_s / chunk), MOST_POSTED)
