"""``gradweave lab --job``: several collectives at once, measured on an emulated network."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradweave.cli.options import refuse
from gradweave.cli.planned_jobs import jobs_of
from gradweave.errors import OptionError
from gradweave.schedulers.solving.solve import solve
from gradweave.schedules.schedule import Schedule
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    from gradweave.lab.jobs import MeasuredJobs

_NOT_WITH_JOBS = ("gradient_bytes", "objective")


def measure_asked(
    topology: Topology,
    texts: Sequence[str],
    mesh: str | None,
    names: Sequence[str],
    files: Sequence[tuple[str, Schedule]],
    *,
    repetitions: int,
    seed: int,
    runtime: str | None,
    time_limit: float,
    progress: Callable[[str], None],
) -> "MeasuredJobs":
    """Plans the jobs of the command line by each of some strategies, and measures the plans.

    Args:
        topology: the network, with the bandwidths to emulate.
        texts: jobs, in the form of ``--job``.
        mesh: in the form of ``--mesh``, or None.
        names: of strategies; ``portfolio`` for the best plan, ``gloo`` for the native collectives.
        files: names and plans of more contenders.
        repetitions: timed runs of each contender.
        seed: of strategies, and of multipath.
        runtime: for which they are planned; gloo on this machine's cores if not given.
        time_limit: seconds for each plan.
        progress: called with the step under way.

    Raises:
        OptionError: a strategy that there is not, or jobs that make no sense.
        SpecError: a text that is no job or mesh.
        NoScheduleError: a strategy that finds no plan.
    """
    from gradweave.lab.jobs import GLOO, measure_jobs, shared_runtime

    jobs = jobs_of(topology, texts, mesh)
    plans = []
    for name in names:
        if name != GLOO:
            progress(f"planning by {name}")
            found = solve(
                topology,
                jobs=jobs,
                runtime=runtime or shared_runtime(),
                schedulers=name,
                seed=seed,
                time_limit=time_limit,
            )
            plans.append((name, found.schedule))
    return measure_jobs(
        topology,
        jobs,
        [*plans, *files],
        own=GLOO in names,
        repetitions=repetitions,
        seed=seed,
        progress=progress,
    )


def check_options(jobs: Sequence[str], mesh: str | None) -> None:
    """Refuses options of all-reduces with jobs, and options of jobs without any.

    Raises:
        OptionError: naming the option.
    """
    if mesh is not None and not jobs:
        raise OptionError("--mesh: expected --job with it, such as all_reduce:bytes=1MB,axis=tp")
    if jobs:
        refuse(_NOT_WITH_JOBS, "no --job with it")


def loaded(plan: Schedule, path: Path) -> tuple[str, Schedule]:
    """The plan of jobs in a file.

    Raises:
        OptionError: it is of one collective among all servers.
    """
    if plan.demand is None:
        raise OptionError(f"{path}: is a schedule of {plan.collective}; expected one of jobs")
    return path.name, plan
