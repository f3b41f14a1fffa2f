"""Constants of the improvement of schedules."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Limits and weights, chosen by hand; docs/experiments/seconds.md has what each step gains."""

    # Sizes of pieces
    reach: float = 0.3
    """How far a piece's size may change at first, relative to itself."""
    usual: float = 0.3
    """The smallest size to which that is relative, as a part of the mean size."""
    least_reach: float = 5e-3
    """Relative change of a size below which the search for sizes ends."""
    wider: float = 1.5
    """Factor by which the region grows, on a gain about as large as predicted."""
    as_predicted: float = 0.5
    """Part of the predicted gain from which the region grows."""
    least_gain: float = 1e-5
    """Relative gain of time that counts as one: smaller gains do not prolong a search."""
    near_end: float = 0.8
    """Chains count that end later than this part of the time: with other sizes they may end last.
    More chains make the program larger, fewer make it predict too much."""
    tiny: float = 0.02
    """Pieces smaller than this part of the mean are dropped."""

    # Turns
    return_after: int = 4
    """Turns without a gain after which it returns to the best schedule."""

    # Fewer pieces
    turns_before: int = 2
    """Turns before the first such step: the search compares several schedules after so many turns,
    and these steps pay only for the schedule that it chooses."""
    attempts: int = 4
    """Most steps with fewer pieces in a turn."""
    fewer: float = 0.2
    """Largest share of the pieces that a step leaves out."""
    jitter: float = 0.5
    """Pieces are sorted by size times a random factor between 1 − `jitter` and 1 + `jitter`."""
    promising: tuple[float, ...] = (1.02, 1.01, 1.0)
    """Multiple of the best time up to which fewer pieces are worth another turn, turn by turn."""
    rough_reach: float = 0.05
    """Instead of `least_reach` in these turns."""
    rough_failures: int = 15
    """Instead of `failures` in these turns."""

    # The order of transfers
    failures: int = 50
    """Steps without a gain after which the search of an order ends."""
    worse: float = 5e-4
    """Relative excess over the current time with which an order is still taken."""
    spread: tuple[float, float] = (-2.5, -0.7)
    """Range of the decimal logarithm of the disturbance, relative to the schedule's time."""
    width: tuple[float, float] = (0.05, 0.3)
    """Range of the part of the time in which transfers are disturbed."""
    few: float = 3.0
    """Number of pieces that are disturbed alone."""
    far: float = 4.0
    """By how much more they are."""


TUNING = Tuning()
