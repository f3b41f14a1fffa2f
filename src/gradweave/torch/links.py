"""Traffic between a job's ranks, from the TCP counters at both ends of their connections."""

import dataclasses
import statistics
from collections.abc import Collection, Mapping

from gradweave.execute.torch_distributed.status import RankStatus

BUSY = 0.8
"""Fraction of the time from which a link counts as busy: other ranks may wait for it."""
IDLE = 0.5
"""Fraction of the time up to which the other links count as idle, as if waiting for it."""


@dataclasses.dataclass(frozen=True)
class LinkUse:
    """Recent traffic from one rank to another."""

    source: int
    target: int
    bytes: int
    seconds: float
    busy: float
    """Fraction of the time in which bytes were in flight or waited to be sent."""
    waiting_bytes: int = 0
    """Bytes that waited to be sent at the end."""

    @property
    def bytes_per_s(self) -> float:
        """The rate."""
        return self.bytes / self.seconds


def links_in_use(before: Mapping[int, RankStatus], now: Mapping[int, RankStatus]) -> list[LinkUse]:
    """The links that carried anything between two readings of the ranks' status.

    Connections are matched by the addresses of both ends, so connections through address
    translation are left out. Traffic is taken from the sender's counters. If the sender has not
    written a status since, perhaps because the status itself is delayed by a slow link, traffic is
    taken from the receiver's counters, which do not tell how busy the link was.

    Args:
        before: status by rank in the first reading.
        now: status by rank in the second reading.
    """
    owner = {end.local: rank for rank, status in now.items() for end in status.connections}
    sent, received = dict[tuple[int, int], LinkUse](), dict[tuple[int, int], LinkUse]()
    for rank, status in now.items():
        if rank not in before or status.at_s <= before[rank].at_s:
            continue
        seconds = status.at_s - before[rank].at_s
        old = {(end.local, end.peer): end for end in before[rank].connections}
        for end in status.connections:
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
    """Adds the traffic of one connection to its link."""
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
    """The link that the others wait for: almost always busy while most links are idle; else None.

    The opposite direction of a slow link seems busy as well, since its acknowledgements queue
    behind the slow link's bytes. The slow direction is the one with more bytes.
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
