"""Compares the clocks of different machines by messages between their processes."""

from collections.abc import Sequence

ROUNDS = 5
"""Questions per process; the question with the shortest round trip counts."""


def ahead_s(asked: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """How far another clock is ahead of this clock, and the round trip of the best measurement.

    The answer is assumed to be from half-way between question and arrival. The error is half the
    difference between the two ways, plus the later drift between the clocks.

    Source: Cristian, "Probabilistic clock synchronization", 1989.

    Args:
        asked: for each question, the times of question and answer by this clock, and the time
            between them by the other clock; in seconds.

    >>> ahead_s([(10.0, 11.0, 110.9), (20.0, 20.5, 120.25)])
    (100.0, 0.5)
    """
    trip_s, ahead = min((came - begun, shown - (begun + came) / 2) for begun, came, shown in asked)
    return ahead, trip_s


def ahead_by_meetings(
    meetings: Sequence[tuple[float, float, float, float]],
) -> tuple[float, float]:
    """How far another clock is ahead, from meetings that no side leaves before both have arrived.

    Collectives in which every process waits for every other are such meetings.

    Args:
        meetings: begin and end of each meeting by this clock, and then by the other clock.

    Returns:
        How far the other clock is ahead, and the maximum error of that; the error is negative if
        the clocks have drifted apart between the meetings.

    >>> ahead_by_meetings([(10.0, 11.0, 110.5, 113.0), (20.0, 23.0, 119.0, 120.5)])
    (100.0, 0.5)
    """
    least = max(there - end for _, end, there, _ in meetings)
    most = min(there - begin for begin, _, _, there in meetings)
    return (least + most) / 2, (most - least) / 2
