"""Which jobs of a demand are to end before others."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True, eq=False)
class Stages:
    """Which jobs are to end before others."""

    of_job: NDArray[np.int64]
    """[jobs] stage of each, from 0."""
    weight: NDArray[np.float64]
    """[stages] of the time until each has ended, above 0."""

    @staticmethod
    def one(jobs: int) -> "Stages":
        """All jobs at once."""
        return Stages(np.zeros(jobs, np.int64), np.ones(1))

    @staticmethod
    def in_order(place: Sequence[int], weight: Sequence[float], most: int) -> "Stages":
        """Jobs one after the other, some of them together where there are many.

        Args:
            place: [jobs] of each in the order.
            weight: [jobs] of its end.
            most: stages at most.
        """
        order = np.argsort(place, kind="stable")
        of_job = np.empty(len(order), np.int64)
        of_job[order] = np.arange(len(order)) * min(most, len(order)) // len(order)
        return Stages(of_job, np.bincount(of_job, weight).astype(np.float64))
