"""What is sent to measure a network: slots of flows, tournaments of pairs, and the rates found."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Flow = tuple[int, int]
"""Ranks of a sender and of its receiver."""
Slot = Sequence[Flow]
"""Flows that are measured at the same time, each for as long as the slot lasts."""
PARTS = 3
"""Parts of a slot whose rates are told apart, for the spread."""


@dataclasses.dataclass(frozen=True)
class Rate:
    """How fast a flow was, or several together; NaN where it was not measured."""

    bytes_per_s: float
    """While it lasted: a busy processor may let it begin late or end early."""
    parts: tuple[float, ...]
    """[PARTS] in equal parts of the slot, in order, the same for all its flows."""

    @property
    def spread_bytes_per_s(self) -> float:
        """Between the slowest and the fastest part."""
        return max(self.parts) - min(self.parts)


Measure = Callable[[Sequence[Slot], bool], list[list[Rate]]]
"""Slots, and whether only sums of their flows' rates count → the rate of each flow of each slot."""


def total(rates: Sequence[Rate]) -> Rate:
    """Flows that were measured together, as one.

    The sum of their rates, but no more than came in the fastest part of the slot: each flow's rate
    while it lasted may have been that while others were late, and all of those together more than
    the link that they share.
    """
    if len(rates) == 1:
        return rates[0]
    parts = tuple(sum(one.parts[part] for one in rates) for part in range(PARTS))
    return Rate(min(sum(one.bytes_per_s for one in rates), max(parts)), parts)


def tournament(players: int, seed: int) -> list[list[tuple[int, int]]]:
    """Rounds in which each two players meet once, by the circle method, players drawn at random.

    >>> sorted(sorted(pair) for one in tournament(4, 0) for pair in one)
    [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    """
    order = np.random.default_rng(seed).permutation(players).tolist()
    if players % 2:
        order.append(-1)  # whoever meets it rests
    rounds = []
    for _ in range(len(order) - 1):
        half = len(order) // 2
        pairs = zip(order[:half], reversed(order[half:]), strict=True)
        rounds.append([(a, b) for a, b in pairs if a >= 0 and b >= 0])
        order = [order[0], order[-1], *order[1:-1]]
    return rounds


def both_ways(pairs: Sequence[tuple[int, int]]) -> list[Flow]:
    """A flow each way for each pair."""
    return [flow for a, b in pairs for flow in ((a, b), (b, a))]


def between(senders: Sequence[int], receivers: Sequence[int]) -> list[Flow]:
    """Flows from one group to another: each member has one, or several of the smaller group."""
    count = max(len(senders), len(receivers))
    pairs = {
        (senders[turn % len(senders)], receivers[turn % len(receivers)]) for turn in range(count)
    }
    return sorted(pairs)


def rate_of(
    arrivals: Sequence[float], chunk_bytes: int, begin: float, end: float
) -> tuple[Rate, int]:
    """The rate of a flow, from when its chunks arrived.

    Args:
        arrivals: time of each chunk's arrival, in order.
        chunk_bytes: of each.
        begin: from when arrivals count: once windows have grown.
        end: until when they do, while all flows of the slot are still sent.

    Returns:
        The rate, by all arrivals where fewer than three are within the window, and the number of
        arrivals that it is from.
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
        # Between arrivals as if bytes came evenly: flows that take turns add up to what all bring.
        return np.interp(times, at, np.arange(len(at))) * chunk_bytes

    began, ended = arrived(np.array([first, last]))
    cuts = np.linspace(begin, end, PARTS + 1)
    parts = np.diff(arrived(cuts)) / np.diff(cuts)
    return Rate(float(ended - began) / (last - first), tuple(parts.tolist())), count
