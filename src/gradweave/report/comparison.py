"""Comparison of schedulers on networks, as in the paper's Table 2."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from gradweave.common import clock
from gradweave.errors import NoScheduleError
from gradweave.report.paper import PAPER
from gradweave.schedulers.scheduler import Scheduler, to_spec
from gradweave.schedulers.solving.portfolio import DEFAULT
from gradweave.schedulers.solving.solution import bound_for
from gradweave.schedulers.solving.solve import solve
from gradweave.schedulers.spec import PORTFOLIO
from gradweave.schedules.schedule import Collective
from gradweave.topology.named_faults import Faults
from gradweave.topology.spec import from_spec
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True)
class Case:
    """One column of the table: a network, or several of one kind, and the stages that count."""

    label: str
    """Short name, such as B3."""
    spec: str
    """Specification of the network, or of the first if there are several `instances`."""
    stages: Collective = "all_reduce"
    """The stages that count: in the paper, both on BCube and Jellyfish, one on DCell."""
    instances: int = 1
    """Number of networks: run i uses ``spec`` with ``seed=i`` modulo this."""

    faults: Faults = dataclasses.field(default_factory=Faults)
    """Links and servers that each network has lost, and slowed links."""

    @property
    def topology(self) -> str:
        """Name of the network: its specification, or with faults the name of what remains."""
        return self.network(0).name if self.faults else self.spec

    def network(self, seed: int) -> Topology:
        """The network of one run."""
        return _network(
            self.spec if self.instances == 1 else f"{self.spec},seed={seed % self.instances}",
            self.faults,
        )


@functools.lru_cache(maxsize=64)
def _network(spec: str, faults: Faults) -> Topology:
    return faults.apply_to(from_spec(spec))


TABLE_2: tuple[Case, ...] = (
    *(Case(f"B{n}", f"bcube:n={n},k=1") for n in (3, 4, 5)),
    *(Case(f"D{n}", f"dcell:n={n},k=1", "reduce_scatter") for n in (4, 5, 6)),
    *(Case(name, f"jellyfish:reference={name}", instances=20) for name in ("J10", "J15", "J20")),
)
"""The nine networks of the paper's Table 2. The paper's Jellyfish graphs are unknown; each of the
three here stands for 20 random graphs."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One scheduler on one case."""

    label: str
    topology: str
    """See `Case.topology`."""
    scheduler: str
    stages: Collective
    rounds_mean: float | None
    """Mean over the runs, or None if the scheduler found no schedule in some run."""
    rounds_min: int | None
    """Fewest rounds of any run."""
    seeds: int
    bound: float | None
    """Lower bound; the mean if the runs are on several networks. None if the scheduler moves the
    gradient in one piece, or chooses the pieces, so that its rounds do not compare."""
    paper: float | None
    """The figure in the paper's Table 2, if it has this scheduler."""
    reason: str = ""
    """Why there is no figure."""
    search_s: float = 0.0
    """Mean search time per run."""

    def as_object(self) -> dict[str, Any]:
        """The row for JSON and CSV; without the reason if it is empty."""
        row = dataclasses.asdict(self)
        if not self.reason:
            del row["reason"]
        return row


def compare(
    cases: Sequence[Case],
    schedulers: Sequence[Scheduler | None],
    *,
    seeds: int = 20,
    time_limit: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Runs every scheduler on every case with seeds 0 … seeds−1.

    Args:
        cases: the cases to run on.
        schedulers: the schedulers to run, or None for all that `gradweave.solve` tries, in one row.
        seeds: runs of each scheduler on each case; at least 100 for a learned scheduler that
            samples one episode, whose mean is reported.
        time_limit: seconds for each run.
        progress: called with the case and scheduler that run next.

    Returns:
        Rows by case, then scheduler.
    """
    rows = []
    for case in cases:
        for scheduler in schedulers:
            one_draw = scheduler is not None and scheduler.traits.one_draw
            number = max(seeds, MIN_SAMPLED) if one_draw else seeds
            runs = [case.network(seed) for seed in range(number)]
            progress(f"{case.label}: {label_of(scheduler)}")
            rows.append(_row(case, scheduler, runs, _mean_bound(case, scheduler, runs), time_limit))
    return rows


LEARNED = ("learned:samples=1,greedy=false", "learned:samples=0", "learned")
"""The three rows of `learned`: the mean of sampled episodes, the greedy episode, and the best of
that and 16 sampled episodes."""
MIN_SAMPLED = 100
"""Minimum number of sampled episodes in a mean."""


def label_of(scheduler: Scheduler | None) -> str:
    """Name of a row: its strategy's specification, or ``portfolio`` for all of them."""
    return PORTFOLIO if scheduler is None else to_spec(scheduler)


def _mean_bound(case: Case, scheduler: Scheduler | None, runs: Sequence[Topology]) -> float | None:
    """The mean of the bounds that hold for a scheduler, or None if its rounds do not compare."""
    strategies = DEFAULT if scheduler is None else [scheduler]
    if not all(one.traits.rounds_compare for one in strategies):
        return None
    bounds = {
        network: bound_for(network, case.stages, strategies).rounds
        for network in dict.fromkeys(runs)
    }
    mean = sum(bounds[network] for network in runs) / len(runs)
    return int(mean) if mean == int(mean) else mean


def _row(
    case: Case,
    scheduler: Scheduler | None,
    runs: Sequence[Topology],
    bound: float | None,
    time_limit: float | None,
) -> Row:
    rounds: list[int] = []
    reason, begun = "", clock.now()
    try:
        for seed, network in enumerate(runs):
            rounds.append(_rounds(scheduler, network, case.stages, seed, time_limit))
    except NoScheduleError as error:
        reason = str(error)
    name = label_of(scheduler)
    return Row(
        label=case.label,
        topology=case.topology,
        scheduler=name,
        stages=case.stages,
        rounds_mean=None if reason else sum(rounds) / len(rounds),
        rounds_min=min(rounds, default=None),
        seeds=len(runs),
        bound=bound,
        paper=PAPER.get(name, {}).get(case.label) if case in TABLE_2 else None,
        reason=reason,
        search_s=(clock.now() - begun) / max(len(rounds), 1),
    )


def _rounds(
    scheduler: Scheduler | None,
    network: Topology,
    stages: Collective,
    seed: int,
    time_limit: float | None,
) -> int:
    if scheduler is None:
        options = {"collective": stages, "seed": seed, "time_limit": time_limit}
        return solve(network, objective="rounds", **options).rounds
    made = scheduler.schedule(network, collective=stages, seed=seed, time_limit=time_limit)
    return made.rounds
