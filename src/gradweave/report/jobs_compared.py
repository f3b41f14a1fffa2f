"""Comparison of strategies for several jobs on networks, by their seconds."""

import dataclasses
import statistics
from collections.abc import Callable, Sequence

from gradweave.common import clock
from gradweave.errors import NoScheduleError
from gradweave.report.comparison import Case
from gradweave.report.timed import TimedRow
from gradweave.schedulers.solving.solution import Solution
from gradweave.schedulers.solving.solve import solve
from gradweave.schedules.jobs import Job, demand_of
from gradweave.schedules.schedule import DEMAND
from gradweave.topology.topology import Topology

FOR_JOBS = (
    "direct,bruck,chain,ring,hierarchical_ring,halving_doubling,binomial_tree,double_binary_tree,"
    "butterfly,butterfly:partners=bine,portfolio"
)
"""Strategies that are compared by default; those that do not apply to the jobs are left out."""


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
        of_case: list[TimedRow] = []
        network = case.network(0)
        demand = demand_of(network, jobs(network))
        for spec in strategies:
            progress(f"{case.label}: {spec}")
            begun = clock.now()
            found, reason = _runs(case, jobs, spec, seeds, time_limit)
            seconds = [one.seconds for one in found]
            of_case.append(
                TimedRow(
                    label=case.label,
                    topology=case.topology,
                    servers=network.num_servers,
                    scheduler=spec,
                    stages=DEMAND,
                    gradient_bytes=demand.total_bytes,
                    seconds_mean=None if reason else statistics.fmean(seconds),
                    seconds_min=min(seconds, default=None),
                    seeds=seeds,
                    seconds_bound=max((one.least for one in found), default=None),
                    reason=reason,
                    search_s=(clock.now() - begun) / max(len(found), 1),
                )
            )
        # Some strategies prove more than others; a proved bound holds for all of them.
        bound = max((row.seconds_bound for row in of_case if row.seconds_bound), default=None)
        rows += [dataclasses.replace(row, seconds_bound=bound) for row in of_case]
    return rows


def _runs(
    case: Case,
    jobs: Callable[[Topology], Sequence[Job]],
    spec: str,
    seeds: int,
    time_limit: float | None,
) -> tuple[list[Solution], str]:
    """The solution of each run, and the reason if there are fewer than seeds."""
    found: list[Solution] = []
    try:
        for seed in range(seeds):
            network = case.network(seed)
            asked = jobs(network)
            found.append(
                solve(network, jobs=asked, schedulers=spec, seed=seed, time_limit=time_limit)
            )
    except NoScheduleError as error:
        return found, str(error)
    return found, ""
