"""The view of a running job: its ranks, its links, and who holds it up."""

import dataclasses
from collections.abc import Collection, Mapping

from gradweave.execute.torch_distributed.status import RankStatus
from gradweave.torch.holdup import Holdup, Ranks
from gradweave.torch.links import LinkUse, links_in_use


@dataclasses.dataclass(frozen=True)
class RankView:
    """The view of one rank."""

    rank: int
    host: str
    process: int
    state: str
    """``in a collective``, ``in its own code``, ``not heard`` or ``has left``."""
    call: str
    """The call in flight, or the last call that ended."""
    where: str
    """The line of user code, if the rank is outside collectives."""
    seconds: float
    """Time in that call, or since it ended."""
    calls: int
    """Number of calls entered, in all groups and including messages."""
    behind: int
    """Number of calls missing until this rank is where another rank has waited for a while."""
    sent_bytes_per_s: float
    received_bytes_per_s: float


@dataclasses.dataclass(frozen=True)
class JobView:
    """The view of the whole job."""

    ranks: tuple[RankView, ...]
    links: tuple[LinkUse, ...]
    """Links that carry anything, busiest first."""
    holdup: Holdup | None
    """Who holds other ranks up, if any have waited for as long as the patience."""

    @classmethod
    def of(
        cls,
        before: Mapping[int, RankStatus],
        now: Mapping[int, RankStatus],
        heard: Collection[int],
        patience_s: float,
    ) -> "JobView":
        """The view between two readings of the ranks' status.

        Args:
            before: status by rank in the first reading.
            now: status by rank in the second reading.
            heard: ranks that have written a status recently.
            patience_s: how long a call may take.
        """
        links = links_in_use(before, now)
        ranks = Ranks(now, heard, certain=True, patience_s=patience_s, links=links)
        return cls(
            tuple(_rank(rank, now, heard, links) for rank in sorted(now)),
            tuple(sorted(links, key=lambda link: (-link.busy, -link.bytes_per_s))),
            ranks.holdup(),
        )


def _rank(
    rank: int, now: Mapping[int, RankStatus], heard: Collection[int], links: Collection[LinkUse]
) -> RankView:
    status = now[rank]
    waits = max((lane for _, lane in status.open), key=lambda lane: lane.open_s, default=None)
    if status.left:
        state = "has left"
    elif rank not in heard:
        state = "not heard"
    else:
        state = "in its own code" if waits is None else "in a collective"
    behind = max((_missing(status, other) for other in now.values()), default=0)
    return RankView(
        rank,
        status.host,
        status.process,
        state,
        status.last if waits is None else waits.text(waits.open or 0) or "",
        status.where if state == "in its own code" else "",
        status.idle_s if waits is None else waits.open_s,
        sum(lane.entered for lane in status.lanes.values()),
        behind,
        sum(link.bytes_per_s for link in links if link.source == rank),
        sum(link.bytes_per_s for link in links if link.target == rank),
    )


WAITED_S = 0.5
"""Seconds in a call before other ranks count as behind: ranks report at different moments."""


def _missing(status: RankStatus, other: RankStatus) -> int:
    """Number of calls until a rank has entered the call in which another rank waits."""
    numbers = [
        (lane.open or 0) - status.lanes[key].entered
        for key, lane in other.open
        if key in status.lanes and lane.open_s >= WAITED_S
    ]
    return max([0, *numbers])
