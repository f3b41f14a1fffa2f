"""Comparison of schedulers on networks by their seconds for a gradient size."""

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from gradweave.common import clock
from gradweave.errors import NoScheduleError
from gradweave.report.comparison import Case, label_of
from gradweave.schedulers.scheduler import Scheduler
from gradweave.schedulers.solving.solve import solve
from gradweave.schedulers.solving.timing import Timing
from gradweave.schedules.schedule import DEMAND, Collective
from gradweave.simulator.bandwidths import algorithm_bandwidth, bus_bandwidth
from gradweave.topology.units import as_size, format_size


@dataclasses.dataclass(frozen=True)
class TimedRow:
    """One scheduler on one case, with seconds as the objective."""

    label: str
    topology: str
    servers: int
    scheduler: str
    stages: Collective
    gradient_bytes: float
    seconds_mean: float | None
    """Mean predicted seconds over the runs, without barriers; None if a run failed."""
    seconds_min: float | None
    """Shortest time of any run."""
    seeds: int
    seconds_bound: float | None
    """Lower bound for such schedules; the mean if the runs are on several networks."""
    reason: str = ""
    """Why there is no figure."""
    search_s: float = 0.0
    """Mean search time per run."""

    def as_object(self) -> dict[str, Any]:
        """The row for JSON and CSV, with its gap; without the reason if it is empty."""
        row = dataclasses.asdict(self)
        reason = row.pop("reason")
        added: dict[str, Any] = dict.fromkeys(("seconds_gap", *_BANDWIDTHS))
        if self.seconds_mean is not None:
            if self.seconds_bound:
                added["seconds_gap"] = self.seconds_mean / self.seconds_bound - 1
            if self.stages != DEMAND:
                added |= zip(_BANDWIDTHS, self.bandwidths(), strict=True)
        return row | added | ({"reason": reason} if reason else {})

    def bandwidths(self) -> tuple[float, float]:
        """Algorithm and bus bandwidth in bytes per second, see `bus_bandwidth`."""
        assert self.seconds_mean is not None
        size, taken = self.gradient_bytes, self.seconds_mean
        bus = bus_bandwidth(size, taken, self.servers, self.stages)
        return algorithm_bandwidth(size, taken), bus


_BANDWIDTHS = ("algbw_bytes_per_s", "busbw_bytes_per_s")


def compare_seconds(
    cases: Sequence[Case],
    schedulers: Sequence[Scheduler | None],
    gradient_bytes: float | str | Sequence[float | str],
    *,
    seeds: int = 1,
    time_limit: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[TimedRow]:
    """Runs every scheduler on every case to minimise seconds, with seeds 0 … seeds−1.

    Schedulers may choose pieces and overlap, as in `gradweave.solve` with
    ``objective="seconds"``.

    Args:
        cases: the cases to run on.
        schedulers: the schedulers to run, or None for all that `gradweave.solve` tries, in one row.
        gradient_bytes: size of the whole gradient, or several sizes.
        seeds: runs of each scheduler on each case.
        time_limit: seconds for each run.
        progress: called with the case and scheduler that run next.

    Returns:
        Rows by case, then size, then scheduler.

    Raises:
        OptionError: for a gradient without bytes.
    """
    one = isinstance(gradient_bytes, float | int | str)
    sizes = [as_size(size) for size in ([gradient_bytes] if one else gradient_bytes)]
    rows = []
    for case, size, scheduler in itertools.product(cases, sizes, schedulers):
        several = f", {format_size(size)}" * (len(sizes) > 1)
        progress(f"{case.label}{several}: {label_of(scheduler)}")
        begun = clock.now()
        timings, reason = _timings(case, scheduler, size, seeds, time_limit)
        seconds = [timing.seconds for timing in timings]
        bounds = [timing.bound.seconds for timing in timings]
        rows.append(
            TimedRow(
                label=case.label,
                topology=case.topology,
                servers=case.network(0).num_servers,
                scheduler=label_of(scheduler),
                stages=case.stages,
                gradient_bytes=size,
                seconds_mean=None if reason else statistics.fmean(seconds),
                seconds_min=min(seconds, default=None),
                seeds=seeds,
                seconds_bound=statistics.fmean(bounds) if bounds else None,
                reason=reason,
                search_s=(clock.now() - begun) / max(len(timings), 1),
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
    """The timing of each run, and the reason if there are fewer than seeds."""
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
