"""Contributions for testing an all-reduce: every process can compute their sum by itself."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.execute.reduction import Reduction


def contribution(rank: int, elements: int, dtype: Any = np.float32) -> NDArray:
    """A server's contribution: small integers, whose sums are exact in every type and order.

    Args:
        rank: rank of the server.
        elements: number of elements.
        dtype: a type of at least eight bits.
    """
    numbers = np.arange(elements, dtype=np.uint32)
    return ((numbers * np.uint32(7) + np.uint32(rank * 13 + 1)) % np.uint32(5)).astype(dtype)


def expected(servers: int, elements: int, reduction: Reduction, dtype: Any = np.float32) -> NDArray:
    """The result at every server if all servers contribute their `contribution`."""
    if reduction == "max" or reduction == "min":
        of_two = np.maximum if reduction == "max" else np.minimum
        result = contribution(0, elements, dtype)
        for rank in range(1, min(servers, 5)):  # the numbers repeat after five ranks
            of_two(result, contribution(rank, elements, dtype), out=result)
        return result
    total = np.zeros(elements, np.int64)
    for rank in range(servers):
        total += contribution(rank, elements, np.int64)
    return (total / servers if reduction == "mean" else total).astype(dtype)
