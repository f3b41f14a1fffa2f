"""Stages: which jobs of a demand must end before others."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True, eq=False)
class Stages:
    """Stages of jobs: those of a stage must end before those of the next."""

    of_job: NDArray[np.int64]
    """[jobs] stage of each job, from 0."""
    weight: NDArray[np.float64]
    """[stages] weight of each stage's end, above 0."""

    @staticmethod
    def one(jobs: int) -> "Stages":
        """All jobs in a single stage."""
        return Stages(np.zeros(jobs, np.int64), np.ones(1))

    @staticmethod
    def in_order(place: Sequence[int], weight: Sequence[float], most: int) -> "Stages":
        """Jobs one after the other; if there are many, some share a stage.

        Args:
            place: [jobs] position of each job in the order.
            weight: [jobs] weight of each job's end.
            most: maximum number of stages.
        """
        jobs, rank = len(place), np.argsort(np.argsort(place, kind="stable"))
        of_job = rank * min(most, jobs) // jobs
        return Stages(of_job, np.bincount(of_job, weight).astype(np.float64))
