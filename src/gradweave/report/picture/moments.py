"""The state of a schedule at one moment, by rounds or by seconds."""

import dataclasses
import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import compress, pairwise
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.scale import has_equal_links
from gradweave.common.wording import counted
from gradweave.errors import OptionError
from gradweave.report.picture.geometry import DENSE_RADIUS, Geometry, Way
from gradweave.report.picture.holdings import Holdings
from gradweave.schedules.schedule import COPY, Schedule
from gradweave.simulator.seconds import event_seconds, round_seconds
from gradweave.topology.units import format_seconds, format_size

Clock = Literal["rounds", "seconds"]
"""The clock of a film: all rounds take equally long, or transfers take their predicted time."""
CLOCKS: tuple[Clock, ...] = ("rounds", "seconds")

WHOLE_S = 20.0
"""Duration of a film of the whole schedule; by rounds it is shorter if there are few."""
ROUND_S = 1.2
"""Maximum duration of a round in a film: long enough for eyes to follow a disc."""
MAX_TRACKS = 6_000
"""Maximum number of transfers that are drawn at a time, as on the page."""
RESTING = 0.36
"""Fraction of their way at which transfers are drawn in a still picture, as labels of their
tracks."""
_STILL = 0.82
"""Fraction of a round's time in which its transfers move; then their pieces have arrived."""


@dataclasses.dataclass(frozen=True)
class Moving:
    """A transfer in progress."""

    transfer: int
    way: Way
    share: float


@dataclasses.dataclass(frozen=True, eq=False)
class Moment:
    """The active transfers, and the contributions held by nodes."""

    heading: str
    caption: str
    moving: Sequence[Moving]
    stroke: float
    """Width of tracks, small enough to keep adjacent tracks apart."""
    held: NDArray[np.float32]
    """[V, P] contributions."""
    done: float
    """Fraction of the whole schedule that is over."""


class Play(Protocol):
    """A schedule in motion."""

    def moments(self, shares: Sequence[float]) -> Iterator[Moment]:
        """The moments at some fractions of the whole, in ascending order."""
        ...


def clock_of(schedule: Schedule) -> Clock:
    """The default clock of a schedule: seconds if rounds do not determine the time.

    That is the case if links differ in bandwidth, pieces in size, or seconds were the objective.
    """
    seconds = schedule.scheduler.options.get("objective") == "seconds"
    alike = has_equal_links(schedule.topology) and schedule.shares is None
    return "rounds" if alike and not seconds else "seconds"


def whole_s(schedule: Schedule, clock: Clock) -> float:
    """Duration of a film of the whole schedule."""
    return WHOLE_S if clock == "seconds" else min(ROUND_S * schedule.rounds, WHOLE_S)


def played(geometry: Geometry, schedule: Schedule, clock: Clock, gradient_bytes: float) -> Play:
    """The schedule, moving by a clock."""
    kind = ByRounds if clock == "rounds" else BySeconds
    return kind(geometry, schedule, gradient_bytes)


class ByRounds:
    """Round after round, all equally long."""

    def __init__(self, geometry: Geometry, schedule: Schedule, gradient_bytes: float) -> None:
        self._geometry, self._schedule = geometry, schedule
        self._bytes = gradient_bytes
        self._takes = round_seconds(schedule, gradient_bytes)

    def still(self, number: int) -> Moment:
        """A round's transfers at rest, after they have arrived.

        Raises:
            OptionError: there is no such round.
        """
        self.check(number)
        holdings = Holdings(self._schedule)
        holdings.arrive(np.arange(self._schedule.round_offsets[number + 1]))
        return self._moment(number, self._ways(number), RESTING, holdings)

    def check(self, number: int) -> None:
        """Rejects a round that does not exist.

        Raises:
            OptionError: names the existing rounds.
        """
        rounds = self._schedule.rounds
        if not 0 <= number < rounds:
            there = f"expected 0 to {rounds - 1}" if rounds else "the schedule has none"
            raise OptionError(f"round: {there}, got {number}")

    def moments(self, shares: Sequence[float]) -> Iterator[Moment]:
        """See `Play`."""
        schedule = self._schedule
        holdings, arrived, drawn = Holdings(schedule), 0, -1
        ways: tuple[list[Way], float] = ([], 1.0)
        for share in shares:
            at = share * schedule.rounds
            number = min(int(at), schedule.rounds - 1)
            if number != drawn:
                ways, drawn = self._ways(number), number
            progress = min(1.0, (at - number) / _STILL)
            due = int(schedule.round_offsets[number + (progress >= 1.0)])
            if due > arrived:
                holdings.arrive(np.arange(arrived, due))
                arrived = due
            yield self._moment(number, ways, _eased(progress), holdings)

    def one(self, number: int, shares: Sequence[float]) -> Iterator[Moment]:
        """The moments of one round only, at fractions of it.

        Raises:
            OptionError: there is no such round.
        """
        self.check(number)
        rounds = self._schedule.rounds
        return self.moments([(number + min(share, 1 - 1e-9)) / rounds for share in shares])

    def _moment(
        self, number: int, ways: tuple[list[Way], float], progress: float, holdings: Holdings
    ) -> Moment:
        first = int(self._schedule.round_offsets[number])
        return Moment(
            heading=f"Round {number} of 0–{self._schedule.rounds - 1} · {self._stage(number)}",
            caption=self._caption(number),
            moving=[Moving(first + i, way, progress) for i, way in enumerate(ways[0])],
            stroke=ways[1],
            held=holdings.held,
            done=(number + progress) / self._schedule.rounds,
        )

    def _ways(self, number: int) -> tuple[list[Way], float]:
        first, end = self._schedule.round_offsets[number : number + 2].tolist()
        routes = [self._schedule.route(t) for t in range(first, min(end, first + MAX_TRACKS))]
        return ways_of_round(self._geometry, routes)

    def _stage(self, number: int) -> str:
        first, end = self._schedule.round_offsets[number : number + 2]
        return stages_of(self._schedule, np.arange(first, end))

    def _caption(self, number: int) -> str:
        first, end = self._schedule.round_offsets[number : number + 2].tolist()
        left = end - first - MAX_TRACKS
        missing = f", {left:,} not drawn" if left > 0 else ""
        takes = spoken_seconds(float(self._takes[number]))
        return (
            f"{counted(end - first, 'transfer')}{missing}; of {format_size(self._bytes)}: {takes}"
        )


class BySeconds:
    """By seconds: transfers start and end as in the event model."""

    def __init__(self, geometry: Geometry, schedule: Schedule, gradient_bytes: float) -> None:
        self._geometry, self._schedule = geometry, schedule
        self._bytes = gradient_bytes
        self._begin, self._end = event_seconds(schedule, gradient_bytes)
        self._total = float(self._end.max(initial=0.0)) or 1.0

    @cached_property
    def _lanes(self) -> "_LanesInTime":
        return _LanesInTime(self._geometry, self._schedule, self._begin, self._end)

    def moments(self, shares: Sequence[float]) -> Iterator[Moment]:
        """See `Play`."""
        by_end = np.argsort(self._end, kind="stable")
        ends = self._end[by_end]
        holdings, arrived = Holdings(self._schedule), 0
        ways: dict[int, Way] = {}
        for share in shares:
            now = share * self._total
            due = len(ends) if share >= 1 else int(np.searchsorted(ends, now, side="right"))
            if due > arrived:
                holdings.arrive(np.sort(by_end[arrived:due]))
                arrived = due
            active = np.flatnonzero((self._begin <= now) & (now < self._end)).tolist()
            drawn = active[:MAX_TRACKS]
            ways = {t: ways.get(t) or self._lanes.way(t) for t in drawn}
            yield self._moment(now, active, ways, holdings)

    def _moment(
        self, now: float, active: list[int], ways: dict[int, Way], holdings: Holdings
    ) -> Moment:
        begin, end = self._begin, self._end
        missing = f", {len(active) - len(ways):,} not drawn" if len(active) > len(ways) else ""
        stage = stages_of(self._schedule, np.array(active, np.int64)) if active else ""
        return Moment(
            heading=f"{spoken_seconds(now)} of {spoken_seconds(self._total)}"
            + (f" · {stage}" if stage else ""),
            caption=f"{counted(len(active), 'transfer')} under way{missing}; "
            f"{'gradient of ' if self._schedule.demand is None else ''}{format_size(self._bytes)}",
            moving=[
                Moving(t, way, float((now - begin[t]) / (end[t] - begin[t])))
                for t, way in ways.items()
            ],
            stroke=self._lanes.stroke,
            held=holdings.held,
            done=now / self._total,
        )


def spoken_seconds(seconds: float) -> str:
    """Seconds in a suitable unit, as the page writes them."""
    return format_seconds(seconds, 3).replace("us", "µs")


def stages_of(schedule: Schedule, transfers: NDArray) -> str:
    """The stages of some transfers in words; ``idle`` without transfers."""
    if not len(transfers):
        return "idle"
    copies = schedule.op[transfers] == COPY
    stages = ("sums", "copies")
    if schedule.demand is None:
        one = schedule.pieces == 1  # the whole gradient goes to one root and back
        stages = ("reduce", "broadcast") if one else ("reduce-scatter", "all-gather")
    there = bool((~copies).any()), bool(copies.any())
    return " + ".join(compress(stages, there))


def ways_of_round(geometry: Geometry, routes: Sequence[tuple[int, ...]]) -> tuple[list[Way], float]:
    """Ways of transfers that move together, each in a separate lane, and the width of tracks."""
    load = Counter(geometry.link(*hop) for route in routes for hop in pairwise(route))
    lanes, stroke = _bar_lanes(geometry, routes)
    taken: Counter[int] = Counter()
    ways = []
    for route, on_bars in zip(routes, lanes, strict=True):
        offsets = []
        for hop in pairwise(route):
            link = geometry.link(*hop)
            offsets.append(lane_offset(geometry, taken[link], load[link]))
            taken[link] += 1
        ways.append(Way(geometry.way(route, offsets, on_bars)))
    return ways, stroke


def lane_offset(geometry: Geometry, lane: int, lanes: int) -> float:
    """Distance to the right of a link's centre line at which one of its parallel lines is drawn."""
    if lanes <= 1:
        return geometry.side
    apart = 0.4 if geometry.radius < DENSE_RADIUS else 2.0
    room = min(geometry.stroke + apart, geometry.radius * 0.85 / lanes)
    first = max(geometry.side * 0.4, min(geometry.side, geometry.radius * 0.9 - lanes * room))
    return first + lane * room


def _bar_lanes(
    geometry: Geometry, routes: Sequence[tuple[int, ...]]
) -> tuple[list[list[float]], float]:
    """For each route its distance from the centre line of each bar, and the width of tracks.

    Routes that overlap on a bar have different lanes: in order of their starts, each takes the
    first free lane.
    """
    offsets = [[0.0] * len(route) for route in routes]
    on_bar: dict[int, list[tuple[float, float, int, int]]] = {}
    for index, route in enumerate(routes):
        for i in range(1, len(route) - 1):
            if geometry.bar[route[i]]:
                begin, end = geometry.span_on_bar(*route[i - 1 : i + 2])
                on_bar.setdefault(route[i], []).append((begin, end, index, i))
    stroke = geometry.stroke
    for bar, spans in on_bar.items():
        free: list[float] = []
        lanes = []
        for begin, end, index, i in sorted(spans):
            clear = begin - geometry.radius * 0.5
            lane = next((lane for lane, until in enumerate(free) if until < clear), len(free))
            free[lane : lane + 1] = [end]
            lanes.append((index, i, lane))
        apart = min(geometry.stroke * 1.9 + 0.6, float(geometry.room[bar]) / len(free))
        stroke = max(0.7, min(stroke, apart * 0.72))
        for index, i, lane in lanes:
            offsets[index][i] = (lane - (len(free) - 1) / 2) * apart
    return offsets, stroke


class _LanesInTime:
    """Lanes of links and bars that transfers keep from their start to their end.

    On a link, each transfer takes the lowest lane that is free when it starts; on a bar, the
    lowest lane without an overlapping transfer.
    """

    def __init__(
        self, geometry: Geometry, schedule: Schedule, begin: NDArray, end: NDArray
    ) -> None:
        self._geometry, self._schedule = geometry, schedule
        self._lane: dict[tuple[int, int], int] = {}
        """By transfer and place in its route: the lane of the link that starts there."""
        self._bar_lane: dict[tuple[int, int], int] = {}
        self._lanes: Counter[int] = Counter()
        self._bar_lanes: Counter[int] = Counter()
        self._assign(begin, end)
        self.stroke = geometry.stroke
        for bar, lanes in self._bar_lanes.items():
            apart = self._apart(bar, lanes)
            self.stroke = max(0.7, min(self.stroke, apart * 0.72))

    def way(self, transfer: int) -> Way:
        """The way of a transfer."""
        geometry, route = self._geometry, self._schedule.route(transfer)
        offsets = [
            lane_offset(geometry, self._lane[transfer, i], self._lanes[geometry.link(*hop)])
            for i, hop in enumerate(pairwise(route))
        ]
        on_bars = [0.0] * len(route)
        for i, node in enumerate(route):
            lane = self._bar_lane.get((transfer, i))
            if lane is not None:
                lanes = self._bar_lanes[node]
                on_bars[i] = (lane - (lanes - 1) / 2) * self._apart(node, lanes)
        return Way(geometry.way(route, offsets, on_bars))

    def _apart(self, bar: int, lanes: int) -> float:
        return min(self._geometry.stroke * 1.9 + 0.6, float(self._geometry.room[bar]) / lanes)

    def _assign(self, begin: NDArray, end: NDArray) -> None:
        under_way: list[tuple[float, int]] = []
        on_link: dict[int, set[int]] = {}
        on_bar: dict[int, dict[tuple[int, int], tuple[float, float]]] = {}
        for transfer in np.argsort(begin, kind="stable").tolist():
            while under_way and under_way[0][0] <= begin[transfer]:
                self._leave(heapq.heappop(under_way)[1], on_link, on_bar)
            heapq.heappush(under_way, (float(end[transfer]), transfer))
            self._enter(transfer, on_link, on_bar)

    def _enter(self, transfer: int, on_link: dict, on_bar: dict) -> None:
        geometry, route = self._geometry, self._schedule.route(transfer)
        for i, hop in enumerate(pairwise(route)):
            link = geometry.link(*hop)
            taken = on_link.setdefault(link, set())
            lane = next(lane for lane in range(len(taken) + 1) if lane not in taken)
            taken.add(lane)
            self._lane[transfer, i] = lane
            self._lanes[link] = max(self._lanes[link], lane + 1)
        for i in range(1, len(route) - 1):
            if not geometry.bar[route[i]]:
                continue
            begin, end = geometry.span_on_bar(*route[i - 1 : i + 2])
            clear = geometry.radius * 0.5
            spans = on_bar.setdefault(route[i], {})
            taken = {
                self._bar_lane[key]
                for key, (a, b) in spans.items()
                if a <= end + clear and begin <= b + clear
            }
            lane = next(lane for lane in range(len(taken) + 1) if lane not in taken)
            spans[transfer, i] = (begin, end)
            self._bar_lane[transfer, i] = lane
            self._bar_lanes[route[i]] = max(self._bar_lanes[route[i]], lane + 1)

    def _leave(self, transfer: int, on_link: dict, on_bar: dict) -> None:
        route = self._schedule.route(transfer)
        for i, hop in enumerate(pairwise(route)):
            on_link[self._geometry.link(*hop)].discard(self._lane[transfer, i])
            on_bar.get(route[i], {}).pop((transfer, i), None)


def _eased(progress: float) -> float:
    """Easing: slow at both ends."""
    return 2 * progress**2 if progress < 0.5 else 1 - 2 * (1 - progress) ** 2
