"""Merged flow trees along fixed shortest paths, ordered by list scheduling."""

import dataclasses
from typing import ClassVar, Literal

from gradweave.bounds import fixed_trees
from gradweave.common.stop import Stop
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedulers.ordering.list_scheduling_in_rounds import Rule, list_schedule
from gradweave.schedulers.scheduler import Scheduler, Traits, check_counts, from_stage
from gradweave.schedules.flow_tree import FlowTrees, Workloads
from gradweave.schedules.schedule import Collective, Provenance, Schedule
from gradweave.simulator.rounds import schedule_from_rounds
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True)
class Merged(Scheduler):
    """Fixed shortest-path trees, merged at servers, each round filled by priority.

    It keeps the best of several runs, and stops at the bound of the fixed trees. That bound can be
    far above the bound of free trees: the choice of trees matters most, and this strategy does not
    choose.

    Source: the paper's section 4.1 (trees and merge); Graham, "Bounds for certain multiprocessing
        anomalies", 1966 (list scheduling).
    """

    name: ClassVar[str] = "merged"

    rule: Literal["random", "deepest", "most_loaded"] = "most_loaded"
    """The priority: random, the longest chain, or the busiest link plus the longest chain."""
    tries: int = 16
    """Runs with different random orders."""
    swap_passes: int = 8
    """How often to improve each round by swaps; 0 is plain list scheduling."""
    overlap: bool = False
    """Let a piece's all-gather start as soon as its root is complete."""
    aggregating_switches: bool = False
    """Let switches add what they receive, so that branches merge there too."""

    def __post_init__(self) -> None:
        if self.rule.upper() not in Rule.__members__:
            rules = ", ".join(rule.name.lower() for rule in Rule)
            raise OptionError(f"merged: rule: expected one of {rules}, got {self.rule!r}")
        check_counts(self, "tries")
        check_counts(self, "swap_passes", least=0)

    @property
    def traits(self) -> Traits:
        """The strategy's traits with these options."""
        return Traits(
            overlaps=self.overlap, aggregates=self.aggregating_switches, after_proofs=True
        )

    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        if self.overlap and collective == "all_reduce":
            return self._search(topology, collective, seed, stop)
        return from_stage(
            "reduce_scatter",
            lambda network: self._search(network, "reduce_scatter", seed, stop),
            topology,
            collective,
        )

    def _search(
        self, topology: Topology, collective: Collective, seed: int, stop: Stop
    ) -> Schedule:
        trees = FlowTrees.shortest_path(topology, aggregating_switches=self.aggregating_switches)
        workloads = Workloads.of(trees, collective)
        least = fixed_trees(trees, collective, overlap=self.overlap).rounds
        rule = Rule[self.rule.upper()]
        best, fewest = None, None
        with stop.at(least).watched() as stop:
            for attempt in range(self.tries):
                rounds = list_schedule(
                    workloads,
                    rule,
                    seed * self.tries + attempt,
                    barrier=not self.overlap,
                    max_rounds=fewest and fewest - 1,
                    target=least,
                    swap_passes=self.swap_passes,
                    stop=stop.flag,
                    finish=not stop.dispensable,
                )
                if rounds is not None:
                    best, fewest = rounds, int(rounds.max()) + 1
                if fewest is not None and stop.reached(fewest):
                    break
        if best is None:
            raise NoScheduleError("merged: time was up before its first run had ended")
        return schedule_from_rounds(workloads, best, Provenance(self.name))
