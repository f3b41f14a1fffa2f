"""Objectives for plans of several jobs: functions of the jobs' end times."""

import dataclasses
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.schedules.demand import Demand
from gradweave.topology.topology import Floats

JobObjective = Literal["makespan", "sum", "weighted", "fair"]
"""``makespan``: the end of the last job. ``sum`` and ``weighted``: the sum of end times, plain or
weighted. ``fair``: the maximum over jobs of the time from release to end, divided by the lower
bound for the job alone."""
JOB_OBJECTIVES: tuple[str, ...] = get_args(JobObjective)


@dataclasses.dataclass(frozen=True, eq=False)
class Objective:
    """An objective in numbers: a weighted sum of end times, or a maximum of delays."""

    name: JobObjective
    weight: Floats = dataclasses.field(repr=False)
    """[jobs] weight of each job's end time in a sum."""
    since_s: Floats = dataclasses.field(repr=False)
    """[jobs] time from which each job's delay counts."""
    scale_s: Floats = dataclasses.field(repr=False)
    """[jobs] seconds that count as one unit of delay."""

    @property
    def sums(self) -> bool:
        """Whether it is a sum; otherwise it is a maximum."""
        return self.name in ("sum", "weighted")

    @property
    def in_seconds(self) -> bool:
        """Whether its values are seconds; those of ``fair`` and ``weighted`` are not."""
        return self.name in ("makespan", "sum")

    def value(self, ends_s: Floats) -> float:
        """The value for jobs with given end times.

        Args:
            ends_s: [jobs] seconds.

        >>> objective_of("fair", 2, alone_s=[1.0, 2.0]).value(np.array([3.0, 3.0]))
        3.0
        """
        if self.sums:
            return float(np.dot(self.weight, ends_s))
        return float(np.max((ends_s - self.since_s) / self.scale_s))


def objective_of(
    name: str,
    demand: Demand | int,
    *,
    alone_s: Floats | list[float] | None = None,
) -> Objective:
    """An objective of a demand's jobs.

    Args:
        name: one of `JOB_OBJECTIVES`.
        demand: the demand with the jobs, or the number of jobs, all ready from the start.
        alone_s: [jobs] lower bound on the seconds of each job from its release, for ``fair``.

    Raises:
        OptionError: an unknown name.
    """
    if name not in JOB_OBJECTIVES:
        raise OptionError(
            f"solve: objective: expected one of {', '.join(JOB_OBJECTIVES)} for jobs, got {name!r}"
        )
    jobs = demand if isinstance(demand, int) else len(demand.jobs)
    one, zero = np.ones(jobs), np.zeros(jobs)
    if isinstance(demand, int) or name != "weighted":
        weight: NDArray[np.float64] = one
    else:
        weight = np.asarray(demand.weight, np.float64)
    if name != "fair" or alone_s is None:
        return Objective(name, weight, zero, one)  # pyright: ignore[reportArgumentType]
    since = zero if isinstance(demand, int) else demand.ready_at_s
    return Objective("fair", weight, since, np.asarray(alone_s, np.float64))
