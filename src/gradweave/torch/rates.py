"""Compares the rates of this rank's messages with what they were under the same plans."""

import dataclasses
import statistics
from collections.abc import Hashable, Mapping, Sequence

from gradweave.execute.torch_distributed.sockets import Connection

WINDOW_S = 1.0
LEAST_BYTES, LEAST_BUSY_S = 1 << 17, 0.01
"""A window ends after `WINDOW_S` if the connection was always busy, or once at least `LEAST_BYTES`
have left in at least `LEAST_BUSY_S`: fewer bytes may only have filled a queue on the way."""
REFERENCES = 5
"""Windows whose rates are the reference."""
MOSTLY = 0.5
"""Fraction of the time from which a connection counts as always busy."""
LASTING = 2
"""Windows in a row that must differ: one late message slows a single window."""
LOW, HIGH = 0.75, 1.33
"""Ratios to the reference between which a rate counts as unchanged. With a jitter of 20 % that
changes from second to second, a rate stays within them."""


Rates = tuple[float, float | None]
"""Bytes per second of busy time; and the median rate of delivery, None if there was no sample."""


@dataclasses.dataclass
class _Window:
    """The bytes sent to one rank since the window began."""

    begin_s: float
    bytes: int = 0
    busy_s: float = 0.0
    """Time in which bytes were being sent or were queued, and the receiver had room for them."""
    delivered: list[float] = dataclasses.field(default_factory=list)
    """Rates of delivery in bytes per second, sampled from the connection in use."""

    def add(self, was: Connection, now: Connection) -> None:
        """Adds what a connection has sent between two samples."""
        self.bytes += now.sent_bytes - was.sent_bytes
        busy_s = now.busy_s - was.busy_s - (now.blocked_s - was.blocked_s)
        self.busy_s += max(busy_s, 0.0)

    def ended(self, now_s: float) -> bool:
        """Whether the window has enough bytes for a rate."""
        if now_s - self.begin_s < WINDOW_S:
            return False
        enough = self.bytes >= LEAST_BYTES and self.busy_s >= LEAST_BUSY_S
        return (enough and bool(self.delivered)) or self.always_busy(now_s)

    def always_busy(self, now_s: float) -> bool:
        """Whether bytes were under way for most of the time."""
        return self.busy_s >= MOSTLY * (now_s - self.begin_s)

    def rates(self) -> Rates:
        """Both measures of the rate."""
        delivered = statistics.median(self.delivered) if self.delivered else None
        return max(self.bytes, 1) / self.busy_s, delivered


class SentRates:
    """The rates of one rank's messages.

    TCP counts the time in which it has bytes to send. So a rate shows neither the time that ranks
    compute nor that a relayed message is late, only how fast bytes pass.
    """

    def __init__(self) -> None:
        self._references: dict[Hashable, dict[int, list[Rates]]] = {}
        self._key: Hashable = None
        self._ends: dict[tuple[str, str], Connection] = {}
        self._windows: dict[int, _Window] = {}
        self._ratios: dict[int, list[float]] = {}

    def use(self, key: Hashable) -> None:
        """Starts new windows.

        Args:
            key: identifies the running plans; rates are compared under the same key only.
        """
        self._key, self._ends, self._windows, self._ratios = key, {}, {}, {}

    def sample(self, now_s: float, ends: Sequence[Connection], owner: Mapping[str, int]) -> None:
        """Adds the bytes sent since the last sample.

        Args:
            now_s: the time.
            ends: this rank's connections.
            owner: the rank that has each address.
        """
        most: dict[int, tuple[int, float]] = {}
        for end in ends:
            rank, was = owner.get(end.peer), self._ends.get((end.local, end.peer))
            if rank is None or was is None:
                continue
            self._windows.setdefault(rank, _Window(now_s)).add(was, end)
            count = end.sent_bytes - was.sent_bytes
            most[rank] = max(most.get(rank, (0, 0.0)), (count, end.delivered_bytes_per_s))
        self._ends = {(end.local, end.peer): end for end in ends}
        for rank, (count, rate) in most.items():
            window = self._windows[rank]
            if count and rate:
                window.delivered.append(rate)
            if window.ended(now_s):
                self._end(rank, window)
                self._windows[rank] = _Window(now_s)

    def _end(self, rank: int, window: _Window) -> None:
        references = self._references.setdefault(self._key, {}).setdefault(rank, [])
        if len(references) < REFERENCES:
            references.append(window.rates())
        else:
            ratio = _ratio(window.rates(), references)
            self._ratios[rank] = [*self._ratios.get(rank, []), ratio][-LASTING:]

    def ratios(self) -> dict[int, float]:
        """The last rates of messages to other ranks, in proportion to what they were; by rank."""
        # Only the last window: an earlier one may lie partly before the change.
        return {rank: ratios[-1] for rank, ratios in self._lasting().items()}

    @property
    def slower(self) -> bool:
        """Whether messages to some rank have been slower than they were for some windows."""
        return any(max(ratios) < LOW for ratios in self._lasting().values())

    @property
    def faster(self) -> bool:
        """Whether messages to some rank have been faster than they were for some windows."""
        return any(min(ratios) > HIGH for ratios in self._lasting().values())

    def _lasting(self) -> dict[int, list[float]]:
        """The ratios of the last `LASTING` windows, by rank."""
        return {rank: each for rank, each in self._ratios.items() if len(each) == LASTING}


def _ratio(rates: Rates, references: Sequence[Rates]) -> float:
    """A rate in proportion to its references: the measure that has changed less counts.

    Bytes per busy time fall if messages become rarer, since the time until the last
    acknowledgement, which may be delayed by 40 ms, counts as busy. Rates of delivery leave that
    out, but single samples may be far too high.
    """
    by_busy_time = _against(rates[0], [each[0] for each in references])
    delivered = [each[1] for each in references if each[1] is not None]
    if rates[1] is None or not delivered:
        return by_busy_time
    by_delivery = _against(rates[1], delivered)
    if (by_busy_time < 1) != (by_delivery < 1):
        return 1.0
    nearer_to_1 = max if by_busy_time < 1 else min
    return nearer_to_1(by_busy_time, by_delivery)


def _against(rate: float, usual: Sequence[float]) -> float:
    """A rate in proportion to the nearest usual rate or, if it has changed, to their median.

    On busy processors, rates of small messages vary between half and twice the median.
    """
    ratio = rate / min(max(rate, min(usual)), max(usual))
    return ratio if LOW <= ratio <= HIGH else rate / statistics.median(usual)
