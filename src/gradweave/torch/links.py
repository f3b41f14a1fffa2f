"""What the links between a job's ranks carry, by what both ends count of their connections."""

import dataclasses
import statistics
from collections.abc import Collection, Mapping

from gradweave.torch.stands import RankStand

BUSY = 0.8
"""Of the time, from which on a link is one that others may wait for."""
IDLE = 0.5
"""Of the time, up to which the others are: they wait for it."""


@dataclasses.dataclass(frozen=True)
class LinkUse:
    """What went from one rank to another lately."""

    source: int
    target: int
    bytes: int
    seconds: float
    busy: float
    """In which part of the time bytes were under way, or waited to be."""

    @property
    def bytes_per_s(self) -> float:
        """The rate."""
        return self.bytes / self.seconds


def links_in_use(before: Mapping[int, RankStand], now: Mapping[int, RankStand]) -> list[LinkUse]:
    """The links that have carried anything between two readings of where the ranks stood.

    Connections are told by their two addresses, so that translated ones are left out.

    Args:
        before: by rank.
        now: likewise; ranks that have not written since are left out.
    """
    owner = {end.local: rank for rank, stand in now.items() for end in stand.connections}
    found: dict[tuple[int, int], LinkUse] = {}
    for rank, stand in now.items():
        if rank not in before or stand.at_s <= before[rank].at_s:
            continue
        seconds = stand.at_s - before[rank].at_s
        old = {(end.local, end.peer): end for end in before[rank].connections}
        for end in stand.connections:
            was, target = old.get((end.local, end.peer)), owner.get(end.peer)
            if was is None or target is None or target == rank:
                continue
            sent, busy = end.sent_bytes - was.sent_bytes, (end.busy_s - was.busy_s) / seconds
            if not sent and not busy > 0:
                continue
            use = found.get((rank, target), LinkUse(rank, target, 0, seconds, 0.0))
            found[rank, target] = dataclasses.replace(
                use, bytes=use.bytes + sent, busy=max(use.busy, min(busy, 1.0))
            )
    return list(found.values())


def slow_link(links: Collection[LinkUse]) -> LinkUse | None:
    """The link that the others wait for: almost always busy, while most are idle; else None."""
    busy = sorted(links, key=lambda link: -link.busy)
    if not busy or busy[0].busy < BUSY:
        return None
    rest = [link.busy for link in busy[1:]] or [0.0]
    few = sum(share >= BUSY for share in rest) <= len(busy) // 4
    return busy[0] if few and statistics.median(rest) <= IDLE else None
