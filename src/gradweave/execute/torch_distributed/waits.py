"""Finds which ranks a rank waits for, and the ranks at the ends of such chains."""

from collections.abc import Collection, Mapping

from gradweave.execute.torch_distributed.status import LaneStatus, RankStatus


def awaited(
    rank: int, able: Mapping[int, RankStatus], known: Mapping[int, RankStatus | None]
) -> set[int]:
    """The ranks that a rank waits for.

    Args:
        rank: the rank.
        able: the status of each rank that can wait: the live ones, and those that have ended while
            they waited. All others wait for nobody.
        known: the last status of each rank, or None if it cannot have done its part. Ranks that
            are not in `able` may have stopped within the last call that they entered.
    """
    found = set[int]()
    for key, lane in able[rank].open if rank in able else ():
        others = lane.members if lane.awaits is None else lane.awaits
        others = set(known if lane.assumed else others) - {rank}
        behind = {other for other in others if _lacks(other, key, lane, able, known)}
        found |= {lane.root} if lane.root is not None and lane.root in behind else behind
    return found


def _lacks(
    other: int,
    key: str,
    lane: LaneStatus,
    able: Mapping[int, RankStatus],
    known: Mapping[int, RankStatus | None],
) -> bool:
    """Whether a rank has not done its part in a call that another rank is in."""
    status, number = known.get(other), lane.open or 0
    its = status.lanes.get(key) if status is not None else None
    if its is None:
        return status is None or not lane.assumed
    exact = lane.awaits is not None or other not in able
    return not its.done(number) if exact else its.entered < number


def ends(
    waiting: Collection[int], able: Mapping[int, RankStatus], known: Mapping[int, RankStatus | None]
) -> set[int]:
    """Ranks that others wait for, directly or indirectly, and that wait for nobody.

    Args:
        waiting: ranks that wait; those that wait for nobody are in the result.
        able: see `awaited`.
        known: see `awaited`.
    """
    left, found, seen = list(waiting), set[int](), set(waiting)
    while left:
        behind = awaited(rank := left.pop(), able, known)
        if not behind:
            found.add(rank)
        left += behind - seen
        seen |= behind
    return found
