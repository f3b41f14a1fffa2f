"""Use of a schedule's links over time: the load of the busiest links, and their idle times."""

import dataclasses
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.ready import ReadyAt
from gradweave.simulator.seconds import event_seconds, overheads, rates
from gradweave.simulator.traffic import piece_bytes
from gradweave.topology.topology import Integers
from gradweave.topology.units import ROUNDING

MOST = 8
"""Default number of links in `busiest_links`."""


@dataclasses.dataclass(frozen=True, eq=False)
class LinkUse:
    """The transfers that occupy a link direction in the event model, and its idle times."""

    link: int
    """Index of the link direction in the topology."""
    total_s: float
    """Duration of the whole schedule."""
    start: NDArray[np.float64]
    """[K] when each transfer over the link starts to occupy it, ascending."""
    end: NDArray[np.float64]
    """[K] when it stops."""
    part: NDArray[np.float64]
    """[K] part of the link's bandwidth that it occupies."""
    op: Integers
    """[K] `REDUCE` or `COPY`."""

    @cached_property
    def used(self) -> float:
        """Used part of the link's capacity over the whole time, including overheads."""
        return float((self.part * (self.end - self.start)).sum()) / self.total_s

    @cached_property
    def idle(self) -> NDArray[np.float64]:
        """[G, 2] intervals without any transfer, from 0 to the schedule's end."""
        busy_until = np.maximum.accumulate(np.concatenate([[0.0], self.end]))
        stretches = np.stack([busy_until, np.append(self.start, self.total_s)], axis=1)
        return stretches[stretches[:, 1] - stretches[:, 0] > ROUNDING * self.total_s]

    @property
    def waits(self) -> "Waits":
        """A summary of the idle intervals."""
        return Waits.of(self.idle, self.total_s)

    def levels(self, bins: int) -> NDArray[np.float64]:
        """[2, bins] part of the bandwidth used by reduces and by copies, in equal intervals."""
        edges = np.linspace(0.0, self.total_s, bins + 1)
        carried = [self._carried(edges, self.op == op) for op in (0, 1)]
        return np.diff(carried, axis=1) / (self.total_s / bins)

    def _carried(self, until: NDArray, chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The amount that some transfers have carried by given times, in seconds of the link."""
        total = np.zeros(len(until))
        for when, sign in ((self.start, 1), (self.end, -1)):
            order = np.argsort(when[chosen], kind="stable")
            times, part = when[chosen][order], self.part[chosen][order]
            count = np.searchsorted(times, until)
            sums, moments = (np.concatenate([[0.0], np.cumsum(x)]) for x in (part, part * times))
            total += sign * (until * sums[count] - moments[count])
        return total


@dataclasses.dataclass(frozen=True)
class Waits:
    """How long a link is idle, and when."""

    before_s: float
    """Before its first transfer."""
    between_s: float
    """Between its transfers."""
    gaps: int
    """How many such gaps there are."""
    longest_s: float
    """The longest of them."""
    after_s: float
    """After its last transfer."""

    @staticmethod
    def of(idle: NDArray[np.float64], total_s: float) -> "Waits":
        """A summary of idle intervals.

        Args:
            idle: [G, 2] start and end of each, ascending.
            total_s: end of the schedule.
        """
        length = idle[:, 1] - idle[:, 0]
        first, last = idle[:, 0] == 0.0, idle[:, 1] == total_s
        between = length[~first & ~last]
        return Waits(
            before_s=float(length[first].sum()),
            between_s=float(between.sum()),
            gaps=len(between),
            longest_s=float(between.max(initial=0.0)),
            after_s=float(length[last & ~first].sum()),
        )


def busiest_links(
    schedule: ScheduleLike,
    gradient_bytes: float | str,
    most: int = MOST,
    *,
    ready_at_s: ReadyAt | None = None,
) -> tuple[LinkUse, ...]:
    """The link directions with the highest utilisation in the event model, in descending order.

    A transfer occupies its route for its overhead and its bytes, see `event_seconds`; latency
    occupies no link. The idle time of the busiest link is what a better schedule could save.

    Args:
        schedule: the schedule.
        gradient_bytes: size of the whole gradient.
        most: maximum number of links; links without transfers are left out.
        ready_at_s: [N] when each server is ready; see `seconds`.

    >>> import gradweave as gw
    >>> link = gw.topology.Link(latency_s=0.0, overhead_s=0.0)
    >>> ring = gw.schedulers.Ring().schedule(gw.topology.ring(4, link=link))
    >>> [round(use.used, 6) for use in gw.simulator.busiest_links(ring, 1e9, most=2)]
    [1.0, 1.0]
    """
    schedule = as_schedule(schedule)
    if not schedule.num_transfers:
        return ()
    begin, arrived = event_seconds(schedule, gradient_bytes, ready_at_s)
    rate = rates(schedule)
    moved = piece_bytes(schedule, gradient_bytes)[schedule.piece]
    held = overheads(schedule) + moved / rate
    links, transfer = schedule.route_links
    part = rate[transfer] / schedule.topology.bandwidth_bytes_per_s[links]
    work = np.bincount(links, held[transfer] * part, len(schedule.topology.source))
    uses = []
    for link in np.argsort(-work, kind="stable")[:most]:
        own = np.flatnonzero(links == link)
        if not len(own):
            break
        own = own[np.argsort(begin[transfer[own]], kind="stable")]
        at = transfer[own]
        uses.append(
            LinkUse(
                link=int(link),
                total_s=float(arrived.max()),
                start=begin[at],
                end=begin[at] + held[at],
                part=part[own],
                op=schedule.op[at],
            )
        )
    return tuple(uses)
