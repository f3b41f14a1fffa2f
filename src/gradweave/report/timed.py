"""Schedulers on networks by the seconds that they take for a gradient's size."""

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from gradweave.errors import NoScheduleError
from gradweave.report.comparison import Case, label_of
from gradweave.schedule.schedule import Collective
from gradweave.schedulers.scheduler import Scheduler
from gradweave.schedulers.solve.seconds_bound import Timing
from gradweave.schedulers.solve.solve import solve


@dataclasses.dataclass(frozen=True)
class TimedRow:
    """One scheduler on one case, where seconds are the objective."""

    label: str
    topology: str
    scheduler: str
    stages: Collective
    gradient_bytes: float
    seconds_mean: float | None
    """Mean over the runs, without barriers; None where the scheduler found no schedule in some."""
    seconds_min: float | None
    """Least time of any run."""
    seeds: int
    seconds_bound: float | None
    """Least time possible for such schedules; the mean where the runs are on several networks."""
    reason: str = ""
    """Why there is no figure."""

    def as_object(self) -> dict[str, Any]:
        """The row for JSON and CSV, with its gap; without the reason where there is none."""
        row = dataclasses.asdict(self)
        reason = row.pop("reason")
        gap = None
        if self.seconds_mean is not None and self.seconds_bound:
            gap = self.seconds_mean / self.seconds_bound - 1
        return row | {"seconds_gap": gap} | ({"reason": reason} if reason else {})


def compare_seconds(
    cases: Sequence[Case],
    schedulers: Sequence[Scheduler | None],
    gradient_bytes: float,
    *,
    seeds: int = 1,
    time_limit: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[TimedRow]:
    """Runs every scheduler on every case for the least seconds, with seeds 0 … seeds−1.

    Each may choose pieces and overlap, as in `gradweave.solve` with ``objective="seconds"``.

    Args:
        cases: what to run on.
        schedulers: what to run; None for all that are tried there, in one row.
        gradient_bytes: size of the whole gradient.
        seeds: runs of each scheduler on each case.
        time_limit: seconds for each run.
        progress: called with the case and scheduler that run next.

    Returns:
        Rows by case, then scheduler.

    Raises:
        OptionError: for a gradient without bytes.
    """
    rows = []
    for case in cases:
        for scheduler in schedulers:
            progress(f"{case.label}: {label_of(scheduler)}")
            timings, reason = _timings(case, scheduler, gradient_bytes, seeds, time_limit)
            seconds = [timing.seconds for timing in timings]
            rows.append(
                TimedRow(
                    label=case.label,
                    topology=case.topology,
                    scheduler=label_of(scheduler),
                    stages=case.stages,
                    gradient_bytes=gradient_bytes,
                    seconds_mean=None if reason else statistics.fmean(seconds),
                    seconds_min=min(seconds, default=None),
                    seeds=seeds,
                    seconds_bound=statistics.fmean(timing.bound.seconds for timing in timings)
                    if timings
                    else None,
                    reason=reason,
                )
            )
    return rows


def _timings(
    case: Case,
    scheduler: Scheduler | None,
    gradient_bytes: float,
    seeds: int,
    time_limit: float | None,
) -> tuple[list[Timing], str]:
    """Of each run; and why there are not as many as seeds, where that is so."""
    timings: list[Timing] = []
    try:
        for seed in range(seeds):
            solution = solve(
                case.network(seed),
                collective=case.stages,
                objective="seconds",
                gradient_bytes=gradient_bytes,
                schedulers=None if scheduler is None else [scheduler],
                seed=seed,
                time_limit=time_limit,
            )
            assert solution.timing is not None  # the objective seconds always has one
            timings.append(solution.timing)
    except NoScheduleError as error:
        return timings, str(error)
    return timings, ""
