"""What a process of a measurement makes of times, on a clock that only messages move on."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from gradweave.probe import flows
from gradweave.probe.flows import (
    ENOUGH_PINGS_S,
    FEWEST_PINGS,
    NEAR_TRIP_S,
    PINGS,
    STREAMED,
    far_streams,
    grown_seconds,
    guess_rounds,
    ping_rounds,
    run_slots,
    window,
)
from gradweave.probe.traffic import rate_of
from gradweave.probe.transport import Message, PeerError

SECOND = 2.0**-10
"""Times in multiples of it are exact in floats."""


@dataclass
class Wire:
    """A transport to a peer that answers at once, and the clock, which messages move on.

    What arrives takes `trip_s` / 2 and its bytes at `bytes_per_s`; each message besides `gap_s`.
    Sending takes no time, and a wait for an answer to what was sent before a whole round trip.
    """

    rank: int = 0
    size: int = 2
    library: str = "none"
    trip_s: float = 0.0
    bytes_per_s: float = np.inf
    gap_s: float = 0.0
    late_s: deque[float] = field(default_factory=deque)
    """What the next arrivals take longer."""
    heard: deque[int] = field(default_factory=deque)
    """What is in the next messages that arrive; 1 if nothing is left here."""
    now_s: float = 0.0
    sent: list[tuple[int, int, int]] = field(default_factory=list)
    """Peer, bytes and content of what was sent."""
    slept: list[float] = field(default_factory=list)
    under_way: int = 0
    """Messages that nobody waited for, as yet."""

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds

    def send(self, data, peer, channel):
        assert channel == "data"
        self.sent.append((peer, len(data), int(data[0])))
        return self._message(lambda: None)

    def receive(self, into, peer, channel):
        assert channel == "data"

        def arrive() -> None:
            into[:] = self.heard.popleft() if self.heard else 1
            self.now_s += self.gap_s + (self.late_s.popleft() if self.late_s else 0.0)
            self.now_s += self.trip_s / 2 + len(into) / self.bytes_per_s

        return self._message(arrive)

    def _message(self, pass_: Callable[[], None]) -> Message:
        self.under_way += 1

        class One:
            def wait(_, timeout_s: float) -> None:
                assert timeout_s > 0
                self.under_way -= 1
                pass_()

        return One()


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    made = Wire()
    monkeypatch.setattr(flows, "time", made)
    yield made
    assert made.under_way == 0


@pytest.mark.parametrize(
    ("trip_s", "count"),
    [(SECOND, PINGS), (32 * SECOND, 5), (36 * SECOND, FEWEST_PINGS), (0.5, FEWEST_PINGS)],
)
def test_fewer_round_trips_where_they_are_long(wire: Wire, trip_s: float, count: int):
    """Four, and more until there are a tenth of a second of them: 3·36/1024 s are enough."""
    assert 3 * 32 * SECOND < ENOUGH_PINGS_S < 3 * 36 * SECOND
    wire.trip_s, wire.bytes_per_s = 2 * trip_s, np.inf  # our byte arrives in no time here
    assert ping_rounds(wire, [1], 1.0) == {"1": [trip_s] * count}
    assert [last for *_, last in wire.sent] == [0] * (count - 1) + [1]


def test_the_larger_rank_answers_until_the_last(wire: Wire):
    wire.rank = 2
    wire.heard.extend([0, 0, 1])
    assert ping_rounds(wire, [0, 3], 1.0) == {"3": [0.0] * PINGS}
    assert [one for one in wire.sent if one[0] == 0] == [(0, 1, 0), (0, 1, 0), (0, 1, 1)]


def test_a_rate_is_of_a_transfer_without_its_latency(wire: Wire):
    wire.bytes_per_s = float(1 << 20)
    # 2^16 bytes take a 16th of a second, more than the 0.02 and two round trips.
    assert flows._exchanged(wire, 1, 1 << 16, 0.0, 1.0) == (1 / 16, True)
    wire.trip_s = 16 * SECOND
    assert flows._exchanged(wire, 1, 1 << 16, wire.trip_s, 1.0) == (1 / 16, True)
    wire.trip_s = 22 * SECOND
    took, enough = flows._exchanged(wire, 1, 1 << 16, wire.trip_s, 1.0)
    assert took == pytest.approx(1 / 16) and not enough  # 1/16 < 0.02 + 2·22/1024
    wire.trip_s = 0.0
    wire.heard.extend([0, 0])
    assert flows._exchanged(wire, 1, 1 << 16, 0.0, 1.0) == (1 / 16, False)  # not at the peer
    wire.bytes_per_s = np.inf
    took, enough = flows._exchanged(wire, 1, 1 << 26, 0.0, 1.0)
    assert (took, enough) == (1e-6, True)  # the most there is
    assert [size for _, size, _ in wire.sent[::2]] == [1 << 16] * 4 + [1 << 26]
    assert [said for *_, said in wire.sent[1::2]] == [1, 1, 0, 1, 1]


def test_a_guess_grows_until_it_takes_long_and_near_peers_try_twice(wire: Wire):
    wire.bytes_per_s = float(1 << 23)
    # 2^16 bytes take 1/128 s, 2^18 take 1/32 s; the second try may be the faster one, or slower.
    wire.late_s.extend([0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
    assert flows._grown_rate(wire, 1, 0.0, 1.0) == (1 << 18) / (1 / 32)
    assert [size for _, size, _ in wire.sent if size > 1] == [1 << 16, 1 << 18, 1 << 18]
    wire.sent.clear()
    wire.late_s.extend([0.0, 0.0, 0.0, 0.0, 1.0, 0.0])
    assert flows._grown_rate(wire, 1, 0.0, 1.0) == (1 << 18) / (1 / 32)
    wire.sent.clear()
    wire.late_s.clear()
    assert flows._grown_rate(wire, 1, NEAR_TRIP_S, 1.0) == pytest.approx(1 << 23, rel=0.02)
    assert [size for _, size, _ in wire.sent if size > 1] == [1 << 16, 1 << 18]


def test_what_one_more_message_takes(wire: Wire):
    """Without the latency, which few and many have alike."""
    wire.rank, wire.gap_s = 1, 4 * SECOND
    assert flows._streamed(wire, 0, False, True, 1.0) == 4 * SECOND
    few, many = STREAMED
    assert wire.now_s == 3 * (few + many) * wire.gap_s
    assert [peer for peer, *_ in wire.sent] == [0] * 6  # each stream's end is said
    assert far_streams(wire, [0], 1.0) == {"0": 4 * SECOND}
    assert len(wire.sent) == 6 + 2
    wire.late_s.append(1.0)  # the first of three, of which the shortest counts
    assert flows._streamed(wire, 0, False, True, 1.0) == 4 * SECOND
    wire.gap_s = 0.0
    wire.late_s.extend([1.0] * 3 * few)
    assert flows._streamed(wire, 0, False, True, 1.0) == 0.0  # many were faster than few


def test_who_leads_a_stream_sends_it(wire: Wire):
    few, many = STREAMED
    assert far_streams(wire, [1], 1.0) == {"1": None}
    assert wire.sent == [(1, 1, 0)] * (few + many)
    wire.sent.clear()
    assert flows._streamed(wire, 1, True, True, 1.0) is None
    assert len(wire.sent) == 3 * (few + many)


def test_guesses_by_partner(wire: Wire):
    wire.rank, wire.size, wire.bytes_per_s = 1, 4, float(1 << 20)
    near = NEAR_TRIP_S / 2
    found = guess_rounds(wire, [[0, near], [2, near], [3, NEAR_TRIP_S]], 1.0)
    assert list(found) == ["0", "2", "3"]
    gaps = [one["gap_s"] for one in found.values()]
    assert gaps == [pytest.approx(1 / (1 << 20)), None, None]
    for one in found.values():
        assert one["bytes_per_s"] == pytest.approx(1 << 20, rel=0.01)


def test_a_rate_is_of_arrivals_within_the_slot_if_there_are_three():
    """Bytes come evenly from one arrival to the next."""
    rate, count = rate_of([0.0, 1.25, 1.5, 1.75, 5.0], 100, begin=1.0, end=2.0)
    assert count == 3
    began, ended = 0.8, 3 + 0.25 / 3.25
    assert rate.bytes_per_s == pytest.approx(100 * (ended - began))
    at = [began, 1 + (1 / 12) / 0.25, 2 + (2 / 12) / 0.25, ended]
    assert rate.parts == pytest.approx(tuple(300 * np.diff(at)))
    rate, count = rate_of([0.0, 1.25, 1.75, 5.0], 100, begin=1.0, end=2.0)
    assert count == 2 and rate.bytes_per_s == pytest.approx(100 * 3 / 5)
    for bounds in ((1.25, 2.0), (1.0, 1.75)):  # which themselves belong to it
        assert rate_of([1.25, 1.5, 1.75], 100, *bounds)[1] == 3
    # From the first arrival on, up to the last.
    rate, _ = rate_of([1.25, 1.5, 1.75], 100, begin=1.0, end=2.0)
    assert rate.bytes_per_s == pytest.approx(100 * 2 / 0.5)
    for none in ([1.0, 1.0], [1.0]):
        rate, count = rate_of(none, 100, 0.0, 2.0)
        assert np.isnan(rate.bytes_per_s) and np.isnan(rate.parts).all() and len(rate.parts) == 3
        assert count == len(none)


def test_windows_by_hand():
    """Chunks of 8 ms; what is under way for 30 ms and a round trip; from 2 to 64 chunks."""
    for rate, trip_s, chunk, posted in [
        (1e6, 0.0, 8000, 4),
        (1e6, 0.05, 8000, 10),
        (1e6, 0.0021, 8000, 5),
        (1e3, 0.0, 256, 2),
        (1e10, 0.0, 1 << 22, 64),
        (1e6, 1.0, 8000, 64),
    ]:
        one = window(rate, trip_s)
        assert (one.chunk_bytes, one.posted) == (chunk, posted)
        assert one.total_bytes == chunk * posted
    finer = window(1e6, 0.05).in_chunks_of(3000)
    assert (finer.chunk_bytes, finer.posted) == (3000, 27)
    assert window(1e6, 0.05).in_chunks_of(1).chunk_bytes == 1250  # 64 of them
    assert window(1e3, 0.0).in_chunks_of(1).chunk_bytes == 256
    assert flows.Window(10_001, 7).in_chunks_of(1) == flows.Window(1094, 64)
    # 14,000 bytes come at once; each round trip doubles them, up to 16 times as many in four.
    assert grown_seconds(flows.Window(14_000, 16), 0.5) == 5 * 0.5
    assert grown_seconds(flows.Window(7_000, 1), 0.5) == 0.5


def flow_of(wire: Wire, source: int, target: int, at: float, seconds: float):
    slot = {"at": at, "seconds": seconds, "grown_s": 0.25, "flows": [[source, target, 64, 2]]}
    return run_slots(wire, [{"at": 0.0, "seconds": 1.0, "flows": [[5, 6, 1, 1]]}, slot])


def test_a_receiver_counts_what_comes_until_the_last_bytes(wire: Wire):
    """Two messages are asked for at a time: two last ones end it, whatever comes between."""
    wire.rank, wire.gap_s = 1, 0.125
    wire.heard.extend([0] * 9 + [1] + [0] + [1])
    found = flow_of(wire, 0, 1, at=4.0, seconds=1.0)
    assert wire.slept == [4.0]
    (result,) = found
    # Arrivals at 4.125, 4.25, …: from 4.25 on to 5.0 there are seven, 64 bytes each in 0.125 s.
    assert (result["slot"], result["peer"], result["arrivals"]) == (1, 0, 7)
    assert result["bytes_per_s"] == pytest.approx(64 * 8)
    assert result["parts"] == pytest.approx([64 * 8] * 3)


def test_a_receiver_of_nothing_says_so(wire: Wire):
    wire.rank = 1
    (result,) = flow_of(wire, 0, 1, at=0.0, seconds=1.0)
    assert result == {"slot": 1, "peer": 0, "bytes_per_s": None, "parts": [], "arrivals": 0}


def test_a_sender_sends_while_the_slot_lasts_and_then_the_last_bytes(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
):
    def send(data, peer, channel):
        wire.sent.append((peer, len(data), int(data[0])))

        def pass_() -> None:
            wire.now_s += 0.125

        return wire._message(pass_)

    monkeypatch.setattr(wire, "send", send)
    assert flow_of(wire, 0, 1, at=0.0, seconds=1.0) == []
    # Two are under way: one more than the eight for which a second has room.
    assert wire.sent == [(1, 64, 0)] * 9 + [(1, 1, 1)] * 2
    wire.sent.clear()
    wire.now_s = 9.0  # too late: three nevertheless, as fewer tell nothing
    flow_of(wire, 0, 1, at=0.0, seconds=1.0)
    assert wire.sent == [(1, 64, 0)] * 3 + [(1, 1, 1)] * 2 and wire.slept[-1] == 0.0


def test_a_peer_that_is_lost_ends_the_slots(wire: Wire, monkeypatch: pytest.MonkeyPatch):
    def receive(into, peer, channel):
        raise PeerError(peer, "gone")

    wire.rank = 1
    monkeypatch.setattr(wire, "receive", receive)
    terms = {"at": 0.0, "seconds": 1.0, "grown_s": 0.0}
    slots = [terms | {"flows": [[0, 1, 64, 2]]}, terms | {"flows": [[2, 1, 64, 2]]}]
    assert run_slots(wire, slots) == [{"slot": 0, "peer": 0, "error": "gone"}]
