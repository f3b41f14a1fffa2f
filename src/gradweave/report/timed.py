"""Comparison of strategies on networks by seconds: for gradient sizes, or for several jobs."""

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradweave.common import clock
from gradweave.errors import NoScheduleError
from gradweave.report.comparison import Case, label_of
from gradweave.schedulers.scheduler import Scheduler
from gradweave.schedulers.solving.solution import Solution
from gradweave.schedulers.solving.solve import solve
from gradweave.schedules.jobs import Job, demand_of
from gradweave.schedules.schedule import DEMAND, Collective
from gradweave.simulator.bandwidths import algorithm_bandwidth, bus_bandwidth
from gradweave.topology.topology import Topology
from gradweave.topology.units import as_size, format_size

FOR_JOBS = (
    "direct,bruck,chain,ring,hierarchical_ring,halving_doubling,binomial_tree,double_binary_tree,"
    "butterfly,butterfly:partners=bine,portfolio"
)
"""Strategies that are compared for jobs by default; those that do not apply are left out."""


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
        name = label_of(scheduler)
        progress(f"{case.label}{several}: {name}")
        options = {
            "collective": case.stages,
            "objective": "seconds",
            "gradient_bytes": size,
            "schedulers": None if scheduler is None else [scheduler],
            "time_limit": time_limit,
        }
        rows.append(_row(case, name, size, seeds, options)[0])
    return rows


def compare_jobs(
    cases: Sequence[Case],
    jobs: Callable[[Topology], Sequence[Job]],
    strategies: Sequence[str],
    *,
    seeds: int = 1,
    time_limit: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[TimedRow]:
    """Plans jobs by every strategy on every case, with seeds 0 … seeds−1.

    Args:
        cases: the cases to run on.
        jobs: (network) -> jobs.
        strategies: specifications for `gradweave.schedulers.demand_strategy`; ``portfolio`` for
            all that `gradweave.solve` tries, in one row.
        seeds: runs of each strategy on each case.
        time_limit: seconds for each run.
        progress: called with the case and strategy that run next.

    Returns:
        Rows by case, then strategy, with the seconds until the last job ends.
    """
    rows: list[TimedRow] = []
    for case in cases:
        network = case.network(0)
        size = demand_of(network, jobs(network)).total_bytes
        of_case: list[TimedRow] = []
        bounds: list[float] = []
        for spec in strategies:
            progress(f"{case.label}: {spec}")
            options = {"schedulers": spec, "time_limit": time_limit}
            row, proved = _row(case, spec, size, seeds, options, jobs)
            of_case.append(row)
            bounds += proved
        # Some strategies prove more than others; a proved bound holds for all of them.
        bound = max((bound for bound in bounds if bound), default=None)
        rows += [dataclasses.replace(row, seconds_bound=bound) for row in of_case]
    return rows


def _row(
    case: Case,
    scheduler: str,
    gradient_bytes: float,
    seeds: int,
    options: Mapping[str, Any],
    jobs: Callable[[Topology], Sequence[Job]] | None = None,
) -> tuple[TimedRow, list[float]]:
    """The row of one strategy, and the bounds of its runs, up to one that finds no schedule."""
    found: list[Solution] = []
    reason, begun = "", clock.now()
    try:
        for seed in range(seeds):
            network = case.network(seed)
            planned: dict[str, Any] = {} if jobs is None else {"jobs": jobs(network)}
            found.append(solve(network, seed=seed, **planned, **options))
    except NoScheduleError as error:
        reason = str(error)
    seconds, bounds = [one.seconds for one in found], [one.least for one in found]
    row = TimedRow(
        label=case.label,
        topology=case.topology,
        servers=case.network(0).num_servers,
        scheduler=scheduler,
        stages=case.stages if jobs is None else DEMAND,
        gradient_bytes=gradient_bytes,
        seconds_mean=None if reason else statistics.fmean(seconds),
        seconds_min=min(seconds, default=None),
        seeds=seeds,
        seconds_bound=statistics.fmean(bounds) if bounds else None,
        reason=reason,
        search_s=(clock.now() - begun) / max(len(found), 1),
    )
    return row, bounds
