"""What is shown of a running job: its ranks, its links, and who holds it up."""

import dataclasses
from collections.abc import Collection, Mapping

from gradweave.torch.links import LinkUse, links_in_use
from gradweave.torch.stands import RankStand
from gradweave.torch.waiting import Holdup, Ranks


@dataclasses.dataclass(frozen=True)
class RankView:
    """One rank."""

    rank: int
    host: str
    process: int
    state: str
    """``in a collective``, ``in its own code``, ``not heard`` or ``has left``."""
    call: str
    """The call that it is in, or that ended last."""
    where: str
    """The line of its program, where it is in its own code."""
    seconds: float
    """In that call, or since it ended."""
    calls: int
    """That it has entered, of all groups, messages included."""
    behind: int
    """Calls that another rank has waited in for a while, and that it has yet to enter."""
    sent_bytes_per_s: float
    received_bytes_per_s: float


@dataclasses.dataclass(frozen=True)
class JobView:
    """All of it."""

    ranks: tuple[RankView, ...]
    links: tuple[LinkUse, ...]
    """That carry anything, the busiest first."""
    holdup: Holdup | None
    """Who holds the others up, where some wait for as long as the patience."""

    @classmethod
    def of(
        cls,
        before: Mapping[int, RankStand],
        now: Mapping[int, RankStand],
        heard: Collection[int],
        patience_s: float,
    ) -> "JobView":
        """That between two readings of where the ranks stood.

        Args:
            before: by rank.
            now: likewise.
            heard: ranks that have written lately.
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
    rank: int, now: Mapping[int, RankStand], heard: Collection[int], links: Collection[LinkUse]
) -> RankView:
    stand = now[rank]
    waits = max((lane for _, lane in stand.open), key=lambda lane: lane.open_s, default=None)
    if stand.left:
        state = "has left"
    elif rank not in heard:
        state = "not heard"
    else:
        state = "in its own code" if waits is None else "in a collective"
    behind = max((_missing(stand, other) for other in now.values()), default=0)
    return RankView(
        rank,
        stand.host,
        stand.process,
        state,
        stand.last if waits is None else waits.text(waits.open or 0) or "",
        stand.where if state == "in its own code" else "",
        stand.idle_s if waits is None else waits.open_s,
        sum(lane.entered for lane in stand.lanes.values()),
        behind,
        sum(link.bytes_per_s for link in links if link.source == rank),
        sum(link.bytes_per_s for link in links if link.target == rank),
    )


WAITED_S = 0.5
"""In a call, before another rank counts as behind: ranks tell where they stand at other moments."""


def _missing(stand: RankStand, other: RankStand) -> int:
    """How many calls a rank has yet to enter until it is in the one that another one waits in."""
    numbers = [
        (lane.open or 0) - stand.lanes[key].entered
        for key, lane in other.open
        if key in stand.lanes and lane.open_s >= WAITED_S
    ]
    return max([0, *numbers])
