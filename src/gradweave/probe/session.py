"""A complete measurement: the first process asks, all answer, and a topology results."""

import dataclasses
import itertools
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError, RunError
from gradweave.probe.explore import explore, slots_ahead
from gradweave.probe.file import Record
from gradweave.probe.flows import (
    Window,
    chunk_bytes,
    far_streams,
    grown_seconds,
    guess_rounds,
    ping_rounds,
    run_slots,
    window,
)
from gradweave.probe.infer import Latencies, Measured, inferred
from gradweave.probe.traffic import PARTS, Flow, Rate, Slot, tournament
from gradweave.probe.transport import PeerError, Transport, receive_object, send_object
from gradweave.processes.clock_offset import ROUNDS, ahead_s
from gradweave.processes.launchers import numbered

SLOT_S = 0.2
"""Seconds for which flows are measured, in addition to the growth of their windows."""
TIMEOUT_S = 20.0
"""How long a server may be silent beyond the duration of its task."""
_BETWEEN_S = 0.03
"""Time between the expected arrival of a slot's last bytes and the next slot."""
_LEAD_S = 0.15
"""Time for a plan to reach all servers, in addition to the longest round trip."""
_FEW = 3
"""With fewer arrivals than this, a flow is measured again in smaller chunks."""
_REPEATS = 2
"""Maximum number of such repetitions, each longer than the last."""
_ADDED = 1.5
"""Factor on the duration if only sums of flows count: more of them share a link, and take longer to
become even."""
_AT_ONCE = 12
"""Slots that follow one another by the clock before all servers synchronise."""
_UNEVEN = 2.0
"""A flow's maximum multiple of an even share of its server's link, when other flows are slower."""
_MOST_FASTER = 2.0
"""A flow's maximum speed-up over its rate among other flows."""
_MANY_TRIPS = 5
"""Approximate round trips per slot, in addition to its duration."""
_MEETING_TRIPS = 16
"""Approximate round trips for a pair's pings and first guess, if round trips are long."""
_MEETINGS = {"pings": ping_rounds, "guesses": guess_rounds, "streams": far_streams}
"""The functions in which each server meets its partners one after the other."""


@dataclasses.dataclass(frozen=True)
class Terms:
    """How to measure."""

    slot_s: float = SLOT_S
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        if not 0.01 <= self.slot_s <= 60:
            raise OptionError(f"slot: expected 0.01 to 60 s, got {self.slot_s:g}")
        if not 0 < self.timeout_s < float("inf"):
            raise OptionError(f"timeout: expected a number above 0, got {self.timeout_s:g}")


def follow(transport: Transport, patience_s: float) -> None:
    """Carries out the requests of the first process, until it ends the measurement.

    Raises:
        RunError: the first process went away, or reported that another process did.
    """
    while True:
        try:
            asked = receive_object(transport, 0, patience_s)
        except PeerError as error:
            raise RunError(f"lost server 0, which leads the measurement: {error.how}") from error
        if asked["do"] == "end":
            if asked["why"]:
                raise RunError(asked["why"])
            return
        send_object(transport, _part(transport, asked), 0, patience_s)


def _part(transport: Transport, asked: dict[str, Any]) -> Any:
    """This process's part of a request."""
    if asked["do"] == "hello":
        return {"host": socket.gethostname()}
    if asked["do"] == "clock":
        return {"now": time.monotonic()}
    try:
        if meet := _MEETINGS.get(asked["do"]):
            return meet(transport, asked["partners"], asked["timeout_s"])
        return run_slots(transport, asked["slots"])
    except PeerError as error:
        return {"error": error.how, "peer": error.rank}


def lead(
    transport: Transport,
    record: Record,
    name: str,
    terms: Terms,
    tell: Callable[[str], None],
    say: Callable[[str], None],
) -> Measured:
    """Measures the network between the processes; called by the first of them.

    Args:
        transport: the connection to the other processes, which `follow`.
        record: keeps the measurements.
        name: name of the network.
        terms: how to measure.
        tell: called with the current step.
        say: called with a line for the user, with the expected duration.

    Raises:
        RunError: a server went away or was silent; the message names it, and the file with the
            measurements so far.
    """
    leader = _Leader(transport, record, terms, tell)
    try:
        measured = leader.measure(name, say)
    except PeerError as error:
        why = (
            f"lost server {error.rank}{leader.host_of(error.rank)}: {error.how}; the measurements "
            f"until then are in {record.path}, start again without it"
        )
        leader.end(why)
        raise RunError(why) from error
    leader.end("")
    return measured


class _Leader:
    def __init__(
        self, transport: Transport, record: Record, terms: Terms, tell: Callable[[str], None]
    ) -> None:
        self._transport, self._record, self._terms = transport, record, terms
        self._tell = tell
        self._others = range(1, transport.size)
        self._hosts: list[str] = []
        self._asked_at: dict[int, tuple[float, float]] = {}
        self._offset = np.zeros(transport.size)
        self._trip_s = np.zeros((transport.size, transport.size))
        self._sends, self._receives = np.zeros((2, transport.size))
        self._seen: dict[Flow, list[float]] = {}

    def host_of(self, rank: int) -> str:
        """The host of a rank in brackets, if it is known."""
        return f" ({self._hosts[rank]})" if self._hosts else ""

    def measure(self, name: str, say: Callable[[str], None]) -> Measured:
        """Carries out the whole measurement."""
        self._tell("meeting all servers")
        answers = self._ask({rank: {"do": "hello"} for rank in range(self._transport.size)})
        self._hosts = [answers[rank]["host"] for rank in range(self._transport.size)]
        self._compare_clocks()
        say(self._expected())
        latencies = self._latencies()
        findings = explore(self._transport.size, self._rates, self._tell)
        return inferred(findings, latencies, numbered(self._hosts), name)

    def end(self, why: str) -> None:
        """Tells all other servers to end; lost servers do not hear it."""
        for rank in self._others:
            threading.Thread(target=self._dismiss, args=(rank, why), daemon=True).start()
        time.sleep(_LEAD_S + 2 * float(self._trip_s.max()))

    def _dismiss(self, rank: int, why: str) -> None:
        try:
            send_object(self._transport, {"do": "end", "why": why}, rank, 1.0)
        except PeerError:
            pass

    def _expected(self) -> str:
        """The expected duration, from the round trips to the first server."""
        size, trip_s = self._transport.size, 2 * float(self._trip_s.max())
        each = 1.1 * self._terms.slot_s + _MANY_TRIPS * trip_s + 4 * _BETWEEN_S
        least = slots_ahead(size) * each + size * _MEETING_TRIPS * trip_s
        most = least + size * (size - 1) * each
        return (
            f"measuring {size} servers takes about {max(least, 1):.0f} s, and up to "
            f"{max(most, 1):.0f} s if every pair has a private link; nothing else should "
            "use the network meanwhile"
        )

    def _ask(self, tasks: dict[int, dict[str, Any]], seconds: float = 0.0) -> dict[int, Any]:
        """Gives servers their tasks, does this process's task, and returns all answers.

        Args:
            tasks: tasks by rank.
            seconds: expected duration of the tasks.

        Raises:
            PeerError: a server did not answer in time, or other servers lost it.
        """
        answers: dict[int, Any] = {}
        errors: dict[int, PeerError] = {}
        patience_s = seconds + self._terms.timeout_s

        def ask(rank: int) -> None:
            try:
                begun = time.monotonic()
                send_object(self._transport, tasks[rank], rank, patience_s)
                answer = receive_object(self._transport, rank, 2 * patience_s)
                self._asked_at[rank] = begun, time.monotonic()
                answers[rank] = answer
            except PeerError as error:
                errors[rank] = error

        others = [rank for rank in tasks if rank]
        asking = {rank: threading.Thread(target=ask, args=(rank,), daemon=True) for rank in others}
        for thread in asking.values():
            thread.start()
        if 0 in tasks:
            answers[0] = _part(self._transport, tasks[0])
        until = time.monotonic() + patience_s
        for thread in asking.values():
            thread.join(max(until - time.monotonic(), 0.0))
        return self._complete(answers, errors, set(asking), patience_s)

    def _complete(
        self,
        answers: dict[int, Any],
        errors: dict[int, PeerError],
        asked: set[int],
        patience_s: float,
    ) -> dict[int, Any]:
        """The answers, if all have arrived and none of them reports a lost server."""
        if errors:
            raise next(iter(errors.values()))
        if silent := sorted(asked - answers.keys()):
            raise PeerError(silent[0], f"silent for {patience_s:.3g} s")
        lost = [answer for answer in answers.values() if isinstance(answer, dict)]
        for answer in lost:
            if "error" in answer:
                raise PeerError(answer["peer"], answer["error"])
        return answers

    def _compare_clocks(self) -> None:
        """Compares each server's clock with this one, in the quickest of several round trips."""
        self._tell("comparing clocks")
        asked: dict[int, list[tuple[float, float, float]]] = {rank: [] for rank in self._others}
        for _ in range(ROUNDS):
            answers = self._ask({rank: {"do": "clock"} for rank in self._others})
            for rank, answer in answers.items():
                asked[rank].append((*self._asked_at[rank], answer["now"]))
        for rank, some in asked.items():
            self._offset[rank], trip_s = ahead_s(some)
            self._trip_s[0, rank] = self._trip_s[rank, 0] = trip_s

    def _latencies(self) -> Latencies:
        """Half the round trips of all pairs, and first guesses of their rates."""
        size = self._transport.size
        rounds = tournament(size, 0)
        self._tell("round trips of all pairs")
        met = self._meet("pings", rounds)
        least, spread = np.zeros((size, size)), np.zeros((size, size))
        for a, b in itertools.combinations(range(size), 2):
            trips = np.array(met[a][str(b)])
            least[a, b] = least[b, a] = trips.min() / 2
            spread[a, b] = spread[b, a] = (np.median(trips) - trips.min()) / 2
        self._trip_s = 2 * least
        latencies = Latencies(least, spread, self._guesses(rounds))
        self._record.latencies(self._hosts, least, spread, latencies.overhead_s)
        return latencies

    def _guesses(self, rounds: Sequence[Sequence[tuple[int, int]]]) -> float:
        """Makes first guesses of all rates; returns the overhead of a message, in seconds."""
        self._tell("first guesses of bandwidths")
        met = self._meet("guesses", rounds, self._trip_s)
        gaps: list[float | None] = []
        for rank, answers in met.items():
            for peer, one in answers.items():
                self._saw((int(peer), rank), one["bytes_per_s"])
                gaps.append(one["gap_s"])
        if gaps.count(None) == len(gaps):  # no pair is near
            far = self._meet("streams", rounds[:1])
            gaps = [gap for answers in far.values() for gap in answers.values()]
        return statistics.median(gap for gap in gaps if gap is not None)

    def _meet(
        self,
        do: str,
        rounds: Sequence[Sequence[tuple[int, int]]],
        tell: NDArray[np.float64] | None = None,
    ) -> dict[int, Any]:
        """Makes each server meet its partners of some rounds, in order; returns all answers.

        Args:
            do: a name in `_MEETINGS`.
            rounds: pairs that meet.
            tell: [N, N] a number per pair that is sent to both; no number if not given.
        """
        partners: list[list[Any]] = [[] for _ in range(self._transport.size)]
        for a, b in itertools.chain(*rounds):
            partners[a].append(b if tell is None else [b, float(tell[a, b])])
            partners[b].append(a if tell is None else [a, float(tell[a, b])])
        timeout_s = self._terms.timeout_s
        tasks = {
            rank: {"do": do, "partners": some, "timeout_s": timeout_s}
            for rank, some in enumerate(partners)
        }
        return self._ask(tasks, seconds=timeout_s)

    def _rates(self, slots: Sequence[Slot], added: bool) -> list[list[Rate]]:
        """The rate of each flow of each slot; see `Measure`."""
        return [
            rates
            for first in range(0, len(slots), _AT_ONCE)
            for rates in self._some_rates(slots[first : first + _AT_ONCE], added)
        ]

    def _some_rates(self, slots: Sequence[Slot], added: bool) -> list[list[Rate]]:
        """The rates of slots that are requested together, repeated for flows with few arrivals."""
        windows = [self._windows(slot) for slot in slots]
        rates: list[list[Rate]] = [[] for _ in slots]
        left = list(range(len(slots)))
        length = _ADDED if added else 1.0
        for attempt in range(1 + _REPEATS):
            found = self._run(
                [slots[n] for n in left], [windows[n] for n in left], length + attempt
            )
            again = []
            for number, results in zip(left, found, strict=True):
                rates[number] = [_rate(result) for result in results]
                few = [_is_little(result, added) for result in results]
                if any(few):
                    again.append(number)
                    windows[number] = [
                        _finer(one, result) if little else one
                        for one, result, little in zip(windows[number], results, few, strict=True)
                    ]
            left = again
            if not left:
                break
        for slot, some in zip(slots, rates, strict=True):
            for (source, target), rate in zip(slot, some, strict=True):
                if np.isnan(rate.bytes_per_s):
                    raise PeerError(target, f"nothing arrived from server {source} in time")
                self._saw((source, target), rate.bytes_per_s)
        self._record.slots(slots, rates)
        return rates

    def _saw(self, flow: Flow, bytes_per_s: float) -> None:
        """Records a rate, from which later windows are chosen."""
        self._seen.setdefault(flow, []).append(bytes_per_s)
        source, target = flow
        self._sends[source] = max(self._sends[source], bytes_per_s)
        self._receives[target] = max(self._receives[target], bytes_per_s)

    def _typical(self, source: int, target: int) -> float:
        """Bytes per second of a flow among other flows."""
        first, *others = self._seen[source, target]
        return statistics.median(others) if others else first / 2  # so far only a guess

    def _windows(self, slot: Slot) -> list[Window]:
        """The flows' windows, from the share of their servers' links that each flow may get.

        The windows do not follow the flows' measured rates: flows that share a link get shares in
        proportion to their data in flight, so flows with larger windows would seem faster.
        """
        senders, receivers = Counter(a for a, _ in slot), Counter(b for _, b in slot)
        windows = []
        for a, b in slot:
            rate = min(
                self._sends[a] * min(_UNEVEN / senders[a], 1.0),
                self._receives[b] * min(_UNEVEN / receivers[b], 1.0),
                _MOST_FASTER * self._typical(a, b),
            )
            whole = window(rate, float(self._trip_s[a, b]))
            windows.append(whole.in_chunks_of(chunk_bytes(min(rate, self._typical(a, b)))))
        return windows

    def _drained_s(self, slot: Slot, windows: Sequence[Window]) -> float:
        """How long data in flight takes to arrive, at the rates of the flows so far."""
        return max(
            one.total_bytes / self._typical(*flow) for flow, one in zip(slot, windows, strict=True)
        )

    def _run(
        self, slots: Sequence[Slot], windows: Sequence[Sequence[Window]], longer: float
    ) -> list[list[dict[str, Any]]]:
        """Runs slots one after the other; returns the results of each slot's flows, in order."""
        begin = time.monotonic() + _LEAD_S + float(self._trip_s.max())
        terms, at = [], begin
        for slot, sizes in zip(slots, windows, strict=True):
            trips_s = [float(self._trip_s[flow]) for flow in slot]
            grown_s = max(map(grown_seconds, sizes, trips_s)) + 0.1 * self._terms.slot_s
            seconds = longer * self._terms.slot_s + grown_s
            flows = [
                [a, b, one.chunk_bytes, one.posted] for (a, b), one in zip(slot, sizes, strict=True)
            ]
            terms.append({"at": at, "seconds": seconds, "grown_s": grown_s, "flows": flows})
            at += seconds + max(trips_s) + self._drained_s(slot, sizes) + longer * _BETWEEN_S
        answers = self._ask(self._tasks(terms), seconds=at - time.monotonic())
        by_flow: dict[tuple[int, int, int], dict[str, Any]] = {}
        for rank, results in answers.items():
            for result in results:
                if "error" in result:
                    raise PeerError(result["peer"], result["error"])
                by_flow[result["slot"], result["peer"], rank] = result
        return [[by_flow[n, a, b] for a, b in slot] for n, slot in enumerate(slots)]

    def _tasks(self, terms: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """The task of each server, in times of its clock."""
        return {
            rank: {
                "do": "slots",
                "slots": [one | {"at": one["at"] + self._offset[rank]} for one in terms],
            }
            for rank in range(self._transport.size)
        }


def _rate(result: dict[str, Any]) -> Rate:
    if result["bytes_per_s"] is None:
        return Rate(float("nan"), (float("nan"),) * PARTS)
    return Rate(result["bytes_per_s"], tuple(result["parts"]))


def _is_little(result: dict[str, Any], added: bool) -> bool:
    """Whether too little of a flow arrived; if only sums of flows count, any rate will do."""
    return result["bytes_per_s"] is None if added else result["arrivals"] < _FEW


def _finer(window: Window, result: dict[str, Any]) -> Window:
    """The same window in smaller chunks, of which four times as many as needed would arrive."""
    size = window.chunk_bytes * max(result["arrivals"], 1) // (4 * _FEW)
    return window.in_chunks_of(size)


def now() -> str:
    """The time of a measurement, in the format of files."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def kept_beside(output: Path) -> Path:
    """The file that keeps a measurement until it is complete."""
    return output.with_name(f"{output.name}.measurements.json")
