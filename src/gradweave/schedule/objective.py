"""What plans of several jobs make small: an objective of the times at which the jobs end."""

import dataclasses
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.schedule.demand import Demand
from gradweave.topology.topology import Floats

JobObjective = Literal["makespan", "sum", "weighted", "fair"]
"""``makespan``: when the last job ends; ``sum`` and ``weighted``: the sum of the times at which
jobs end, as they are or each times its weight; ``fair``: the largest of the times from when a job
is ready until it ends, over what it takes alone at least."""
JOB_OBJECTIVES: tuple[str, ...] = get_args(JobObjective)


@dataclasses.dataclass(frozen=True, eq=False)
class Objective:
    """An objective of jobs, as numbers: a sum of ends times weights, or the largest of delays."""

    name: JobObjective
    weight: Floats = dataclasses.field(repr=False)
    """[jobs] of each job's end in a sum."""
    since_s: Floats = dataclasses.field(repr=False)
    """[jobs] from when each job's delay counts."""
    scale_s: Floats = dataclasses.field(repr=False)
    """[jobs] seconds of delay that count as one."""

    @property
    def sums(self) -> bool:
        """Whether it is a sum; else the largest."""
        return self.name in ("sum", "weighted")

    @property
    def in_seconds(self) -> bool:
        """Whether its values are seconds; ``fair`` has none, and weights any."""
        return self.name in ("makespan", "sum")

    def value(self, ends_s: Floats) -> float:
        """Of jobs that end then.

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
        demand: with the jobs, or how many there are, all ready from the start.
        alone_s: [jobs] seconds that each takes at least from when it is ready, for ``fair``.

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
