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
