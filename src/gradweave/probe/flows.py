"""One process's part of a measurement: pings its peers, and sends and receives in slots."""

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
"""Round trips of a pair, at most."""
FEWEST_PINGS, ENOUGH_PINGS_S = 4, 0.1
"""Round trips of a pair at least, and the seconds after which no more are made: where one takes
long, what disturbs it is little beside it."""
STREAMED = (8, 64)
"""Messages of one byte that follow one another: few and many, whose difference has no latency."""
NEAR_TRIP_S = 1e-3
"""Round trip up to which each message of a stream is asked for when the one before has come, as
those that take turns on a link are. Farther away, where asking takes a round trip, all are asked
for beforehand: what is left is a part of the overhead, whose larger part near peers tell."""
_STREAMS = 3
"""Times that each is tried between near peers, of which the shortest counts; between others once.
"""
WINDOW_S = 0.03
"""What a flow has under way, in seconds at its rate, beside a round trip: what asks for more of it
waits behind the data of the other direction, and for a busy processor."""
MOST_POSTED = 64
"""Chunks that a receiver asks for beforehand, at most."""
CHUNK_S = 0.008
"""How long a chunk takes: several make a window, and many a slot of a flow of a fair share."""
LEAST_CHUNK, MOST_CHUNK = 256, 1 << 22
"""Bytes of a chunk on however slow or fast a link."""
_GROWTH = 4
"""By how much a first transfer that was over too soon is repeated larger."""
_LONG_ENOUGH_S = 0.02
"""How long a first transfer takes, beside two round trips, for its rate to be taken."""
_PATIENCE_S = 10.0
"""After the end of a slot, for what is under way."""
_FIRST_BYTES = 1 << 16
_MOST_BYTES = 1 << 26
"""Of the smallest and the largest of these transfers."""
_FIRST_WINDOW_BYTES = 14_000
"""What TCP sends before the first acknowledgement; each round trip doubles it."""


def ping_rounds(
    transport: Transport, partners: Sequence[int], timeout_s: float
) -> dict[str, list[float]]:
    """Round trips to each partner, met in turn, in seconds; the smaller rank of two makes them.

    Nothing larger than a byte is under way meanwhile, for which they would have to wait.

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
    """Meets each partner in turn.

    Args:
        transport: to the others.
        partners: each with the seconds of a round trip to it.
        timeout_s: how long a partner may be silent.

    Returns:
        By partner, as JSON: ``bytes_per_s`` of a transfer from it, a first guess; ``gap_s`` for
        each further message without data, None at who sends them and where the partner is far.

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
    """``gap_s`` as `guess_rounds` has it, of partners that are far."""
    return {
        str(peer): _streamed(transport, peer, transport.rank < peer, False, timeout_s)
        for peer in partners
    }


def _pings(transport: Transport, peer: int, timeout_s: float) -> list[float]:
    """Round trips, the last of which tells the peer so: fewer where they are long."""
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
    """The other side of `_pings`."""
    byte = np.zeros(1, np.uint8)
    while not byte[0]:
        transport.receive(byte, peer, "data").wait(timeout_s)
        transport.send(byte, peer, "data").wait(timeout_s)


def _grown_rate(transport: Transport, peer: int, trip_s: float, timeout_s: float) -> float:
    """Bytes per second from a peer, by a transfer that takes long beside a round trip.

    Both send at once, more and more until at both enough has come. Near peers then do so once more,
    of which the faster counts: a busy processor is late by as much as such a transfer takes.
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
    """Sends so many bytes and receives as many.

    Returns:
        How long they took to arrive, without latency, and whether that was enough at both.
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
    """Seconds that one more message of one byte takes at its receiver; None at who sends them."""
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
            ``grown_s``, from when on arrivals count; and ``flows`` as [source, target, chunk,
            chunks asked for beforehand].

    Returns:
        Of each flow that this process received: slot, source, rate, parts, and number of arrivals;
        or, of the first that failed, ``error`` and ``peer``, after which no more slots are run.
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
        """Sends until the slot ends, and then as many last bytes as the receiver waits for."""
        chunk, last = np.zeros(self._chunk, np.uint8), np.ones(1, np.uint8)
        under_way: list[Message] = []
        count = 0
        while time.monotonic() < self._end or count < PARTS:  # who is late catches up
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
    """What a flow has under way: chunks that its receiver asks for beforehand."""

    chunk_bytes: int
    posted: int

    @property
    def total_bytes(self) -> int:
        """Under way at most."""
        return self.chunk_bytes * self.posted

    def in_chunks_of(self, size: int) -> "Window":
        """As many bytes in smaller chunks, of no more than `MOST_POSTED`."""
        size = max(size, LEAST_CHUNK, -(-self.total_bytes // MOST_POSTED))
        return Window(size, -(-self.total_bytes // size))


def chunk_bytes(bytes_per_s: float) -> int:
    """A chunk of a flow of this rate."""
    return min(max(int(bytes_per_s * CHUNK_S), LEAST_CHUNK), MOST_CHUNK)


def window(bytes_per_s: float, trip_s: float) -> Window:
    """The window of a flow of this rate, so that it is not what limits the flow."""
    chunk = chunk_bytes(bytes_per_s)
    under_way = bytes_per_s * (WINDOW_S + trip_s)
    return Window(chunk, min(max(math.ceil(under_way / chunk), 2), MOST_POSTED))


def grown_seconds(window: Window, trip_s: float) -> float:
    """How long a connection's own window grows to that of a flow."""
    return (1 + math.log2(max(window.total_bytes / _FIRST_WINDOW_BYTES, 1))) * trip_s
