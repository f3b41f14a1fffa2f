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
    waiting_bytes: int = 0
    """That waited in the end."""

    @property
    def bytes_per_s(self) -> float:
        """The rate."""
        return self.bytes / self.seconds


def links_in_use(before: Mapping[int, RankStand], now: Mapping[int, RankStand]) -> list[LinkUse]:
    """The links that have carried anything between two readings of where the ranks stood.

    Connections are told by their two addresses, so that translated ones are left out. What went
    over a link is what its sender counts; where that one has not written since, as its word may be
    under way over a slow link itself, what the receiver does, who does not know how busy it was.

    Args:
        before: by rank.
        now: likewise.
    """
    owner = {end.local: rank for rank, stand in now.items() for end in stand.connections}
    sent, received = dict[tuple[int, int], LinkUse](), dict[tuple[int, int], LinkUse]()
    for rank, stand in now.items():
        if rank not in before or stand.at_s <= before[rank].at_s:
            continue
        seconds = stand.at_s - before[rank].at_s
        old = {(end.local, end.peer): end for end in before[rank].connections}
        for end in stand.connections:
            was, peer = old.get((end.local, end.peer)), owner.get(end.peer)
            if was is None or peer is None or peer == rank:
                continue
            busy = min((end.busy_s - was.busy_s) / seconds, 1.0)
            count = end.sent_bytes - was.sent_bytes
            _add(sent, LinkUse(rank, peer, count, seconds, busy, end.waiting_bytes))
            count = end.received_bytes - was.received_bytes
            _add(received, LinkUse(peer, rank, count, seconds, 0.0))
    found = {ends: sent.get(ends) or received[ends] for ends in {**received, **sent}}
    return [link for link in found.values() if link.bytes or link.busy > 0]


def _add(links: dict[tuple[int, int], LinkUse], more: LinkUse) -> None:
    """Adds what one connection of a link has carried."""
    ends = more.source, more.target
    if (link := links.get(ends)) is not None:
        more = dataclasses.replace(
            link,
            bytes=link.bytes + more.bytes,
            busy=max(link.busy, more.busy),
            waiting_bytes=link.waiting_bytes + more.waiting_bytes,
        )
    links[ends] = more


def slow_link(links: Collection[LinkUse]) -> LinkUse | None:
    """The link that the others wait for: almost always busy, while most are idle; else None.

    The other direction seems busy too, since its acknowledgements wait behind the bytes of the slow
    one: the two are told apart by these.
    """
    busy = [link for link in links if link.busy >= BUSY]
    if not busy:
        return None
    busiest = max(busy, key=_load)
    ends = {busiest.source, busiest.target}
    rest = [link for link in links if {link.source, link.target} != ends]
    few = sum(link.busy >= BUSY for link in rest) <= len(rest) // 4
    idle = statistics.median([link.busy for link in rest] or [0.0]) <= IDLE
    both = [link for link in links if {link.source, link.target} == ends]
    return max(both, key=_load) if few and idle else None


def _load(link: LinkUse) -> int:
    return link.waiting_bytes + link.bytes
