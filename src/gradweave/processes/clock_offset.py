"""Clocks of different machines, compared by questions and answers between their processes."""

from collections.abc import Sequence

ROUNDS = 5
"""Questions to each process, of which the one that is answered soonest counts."""


def ahead_s(asked: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """How far another clock is ahead of this one, and the round trip by which that is known.

    The answer is taken for the time half way between its question and its arrival: wrong by half
    the difference between the two ways, and by what the clocks drift apart later.

    Source: Cristian, "Probabilistic clock synchronization", 1989.

    Args:
        asked: when each question was asked and when its answer came, by this clock, and what the
            other one showed between them; in seconds.

    >>> ahead_s([(10.0, 11.0, 110.9), (20.0, 20.5, 120.25)])
    (100.0, 0.5)
    """
    trip_s, ahead = min((came - begun, shown - (begun + came) / 2) for begun, came, shown in asked)
    return ahead, trip_s


def ahead_by_meetings(
    meetings: Sequence[tuple[float, float, float, float]],
) -> tuple[float, float]:
    """How far another clock is ahead, by meetings that neither side leaves before both have come.

    Such are collectives in which every process waits for every other.

    Args:
        meetings: when each began and ended by this clock, and by the other one.

    Returns:
        By how much it is ahead, and by how much that may be wrong; below 0 where the clocks have
        drifted apart between the meetings.

    >>> ahead_by_meetings([(10.0, 11.0, 110.5, 113.0), (20.0, 23.0, 119.0, 120.5)])
    (100.0, 0.5)
    """
    least = max(there - end for _, end, there, _ in meetings)
    most = min(there - begin for begin, _, _, there in meetings)
    return (least + most) / 2, (most - least) / 2
