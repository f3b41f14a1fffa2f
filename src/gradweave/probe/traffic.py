"""The traffic that measures a network: slots of flows, tournaments of pairs, and their rates."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Flow = tuple[int, int]
"""Ranks of a sender and of its receiver."""
Slot = Sequence[Flow]
"""Flows that are measured simultaneously, each for the duration of the slot."""
PARTS = 3
"""Number of parts of a slot with separate rates, for the spread."""


@dataclasses.dataclass(frozen=True)
class Rate:
    """The rate of a flow, or of several together; NaN if it was not measured."""

    bytes_per_s: float
    """Rate while the flow lasted: a busy processor may delay its begin or end it early."""
    parts: tuple[float, ...]
    """[PARTS] rates in equal parts of the slot, in order; the parts are the same for all flows."""

    @property
    def spread_bytes_per_s(self) -> float:
        """Difference between the slowest and the fastest part."""
        return max(self.parts) - min(self.parts)


Measure = Callable[[Sequence[Slot], bool], list[list[Rate]]]
"""Slots, and whether only sums of their flows' rates count → the rate of each flow of each slot."""


def total(rates: Sequence[Rate]) -> Rate:
    """Combines flows that were measured together.

    The result is the sum of their rates, but at most the rate in the fastest part of the slot. A
    flow may have had its rate while others were late, so the sum of all rates may exceed the rate
    of the link that they share.
    """
    if len(rates) == 1:
        return rates[0]
    parts = tuple(sum(one.parts[part] for one in rates) for part in range(PARTS))
    return Rate(min(sum(one.bytes_per_s for one in rates), max(parts)), parts)


def tournament(players: int, seed: int) -> list[list[tuple[int, int]]]:
    """Rounds in which every two players meet once, by the circle method, in a random order.

    >>> sorted(sorted(pair) for one in tournament(4, 0) for pair in one)
    [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    """
    order = np.random.default_rng(seed).permutation(players).tolist()
    if players % 2:
        order.append(-1)  # the player that meets it rests
    rounds = []
    for _ in range(len(order) - 1):
        half = len(order) // 2
        pairs = zip(order[:half], reversed(order[half:]), strict=True)
        rounds.append([(a, b) for a, b in pairs if a >= 0 and b >= 0])
        order = [order[0], order[-1], *order[1:-1]]
    return rounds


def both_ways(pairs: Sequence[tuple[int, int]]) -> list[Flow]:
    """A flow in each direction for each pair."""
    return [flow for a, b in pairs for flow in ((a, b), (b, a))]


def between(senders: Sequence[int], receivers: Sequence[int]) -> list[Flow]:
    """Flows from one group to another, as many as the larger group has members.

    Members of the larger group have one flow each; those of the smaller group share the flows.
    """
    count = max(len(senders), len(receivers))
    pairs = {
        (senders[turn % len(senders)], receivers[turn % len(receivers)]) for turn in range(count)
    }
    return sorted(pairs)


def rate_of(
    arrivals: Sequence[float], chunk_bytes: int, begin: float, end: float
) -> tuple[Rate, int]:
    """The rate of a flow, from the arrival times of its chunks.

    Args:
        arrivals: arrival time of each chunk, in order.
        chunk_bytes: bytes per chunk.
        begin: time from which arrivals count: windows have grown by then.
        end: time until which arrivals count, while all flows of the slot are still being sent.

    Returns:
        The rate, and the number of arrivals behind it. If fewer than three arrivals are in the
        window, all arrivals are used.
    """
    if len(arrivals) < 2:
        return Rate(float("nan"), (float("nan"),) * PARTS), len(arrivals)
    at = np.array(arrivals, np.float64)
    count = int(((at >= begin) & (at <= end)).sum())
    within = count >= PARTS
    first, last = (max(begin, at[0]), min(end, at[-1])) if within else (at[0], at[-1])
    if last <= first:
        return Rate(float("nan"), (float("nan"),) * PARTS), count

    def arrived(times: NDArray[np.float64]) -> NDArray[np.float64]:
        # Interpolated as if bytes came evenly, so that flows that take turns add up to their sum.
        return np.interp(times, at, np.arange(len(at))) * chunk_bytes

    began, ended = arrived(np.array([first, last]))
    cuts = np.linspace(begin, end, PARTS + 1)
    parts = np.diff(arrived(cuts)) / np.diff(cuts)
    return Rate(float(ended - began) / (last - first), tuple(parts.tolist())), count
