"""What a job of either backend consists of; imported by all its processes, so it imports little."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from gradweave.execute.reference import meaningful
from gradweave.schedules import Schedule, integer_shares

INTEGERS = ("int8", "uint8", "int32", "int64")
FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64")


@dataclasses.dataclass(frozen=True)
class Case:
    """One collective."""

    strategy: str
    collective: str
    dtype: str
    reduction: str
    elements: int


IN_SHARES = " in shares"
"""Ending of a strategy's name: its schedule, with pieces of unequal size."""


def in_shares(schedule: Schedule) -> Schedule:
    """The schedule with one piece of nothing, 1/7 and 13/29 of the gradient; the rest is equal."""
    first = [Fraction(0), Fraction(1, 7), Fraction(13, 29)]
    rest = schedule.pieces - len(first)
    return schedule.replace(shares=integer_shares(first + [(1 - sum(first)) / rest] * rest))


def in_two(schedule: Schedule, weights: tuple[int, int]) -> Schedule:
    """The schedule with each piece in two, of such weights, one after the other, last first."""
    pieces, routes = schedule.pieces, schedule.route_nodes
    offsets = schedule.route_offsets

    def twice(column: NDArray, more: int = 0) -> NDArray:
        return np.concatenate([column, column.astype(np.int64) + more])

    return schedule.replace(
        root=twice(schedule.root)[::-1],
        round=twice(schedule.round, schedule.rounds),
        piece=2 * pieces - 1 - twice(schedule.piece, pieces),
        source=twice(schedule.source),
        target=twice(schedule.target),
        op=twice(schedule.op),
        route_nodes=twice(routes),
        route_offsets=np.concatenate([offsets, offsets[1:] + len(routes)]),
        shares=np.repeat(weights, pieces),
    )


def as_dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@functools.lru_cache(maxsize=64)
def contribution(rank: int, elements: int, dtype: str) -> NDArray:
    """What a server brings: sums of it round, or wrap around."""
    rng = np.random.default_rng([rank, elements])
    if dtype in INTEGERS:
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, elements, dtype, endpoint=True)
    numbers = rng.standard_normal(elements, np.float32)
    if dtype == "complex64":
        return (numbers + 1j * numbers[::-1]).astype(np.complex64)
    return numbers.astype(as_dtype(dtype))


def digest(array: NDArray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=8).hexdigest()


def result_digest(rank: int, schedule: Schedule, array: NDArray) -> str:
    """Of what means anything at a server."""
    if schedule.collective == "reduce_scatter":
        array = array[meaningful(schedule, len(array))[rank]]
    return digest(array)


Check = Callable[..., None]


class Checks:
    """Functions that all processes of a job call, each with what the backend gives them."""

    def __init__(self) -> None:
        self.by_name: dict[str, Check] = {}

    def __call__(self, check: Check) -> Check:
        self.by_name[check.__name__] = check
        return check
