"""The strategies that are tried for a problem by default, and the order to try them in."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from gradweave.bounds import Bound
from gradweave.bounds.scale import has_equal_links, has_equal_ports
from gradweave.common.stop import Stop
from gradweave.schedulers.exact.exact import Exact
from gradweave.schedulers.flows.flows import Flows
from gradweave.schedulers.greedy.planned import Planned
from gradweave.schedulers.grid.hierarchical import Hierarchical
from gradweave.schedulers.learned import Learned
from gradweave.schedulers.packing.joint import Joint
from gradweave.schedulers.packing.packed import Packed
from gradweave.schedulers.packing.paths import may_leave_residual
from gradweave.schedulers.scheduler import DemandStrategy, Scheduler, Strategy
from gradweave.schedulers.solving.group import alone_on_group, collective_of, lifted, moved
from gradweave.schedulers.solving.job_goal import JobGoal, solve_for_jobs
from gradweave.schedulers.solving.seconds import consists_of_groups, solve_for_seconds
from gradweave.schedulers.solving.strategy_search import Portfolio
from gradweave.schedulers.solving.tuning import TUNING
from gradweave.schedulers.textbook.halving_doubling import MAX_RADIX, RecursiveDoubling
from gradweave.schedulers.textbook.postal import Postal
from gradweave.schedulers.textbook.postal_tree import PostalTree
from gradweave.schedulers.textbook.ring import Ring
from gradweave.schedulers.textbook.runtimes import BinomialTree, Chain, Direct, DoubleBinaryTree
from gradweave.schedulers.trees.disjoint_trees import DisjointTrees
from gradweave.schedulers.trees.grown import Grown
from gradweave.schedulers.trees.symmetric import Symmetric
from gradweave.schedulers.trees.timed import Timed
from gradweave.schedules.compose import at_once
from gradweave.schedules.demand import Demand
from gradweave.schedules.ready import ReadyAt, ready_times
from gradweave.schedules.schedule import Collective, Schedule
from gradweave.simulator.runtime import IDEAL
from gradweave.simulator.seconds import event_seconds
from gradweave.topology.subnetwork import subnetwork
from gradweave.topology.symmetry import has_family_symmetry
from gradweave.topology.topology import Topology

DEFAULT: tuple[Scheduler, ...] = (
    # Before the others, because a few restarts cost little, and nothing else is tried if they meet
    # the bound.
    Grown(restarts=4),
    Symmetric(),
    Ring(forwarding=False),
    Grown(),
    Learned(),
    # On some leaf–spine networks the policies beat the rule: 24 rounds instead of 26 on 36 servers
    # at 3:1.
    Learned(policy="trained"),
    Exact(effort=1.5, open_questions=1),
    # Last, if the bound is not met: on some leaf–spine networks the drawn rounds are better without
    # repairs (7 rounds per stage, 8 with repairs, on 3 leaves of 7 servers).
    Learned(repair=False),
)
"""The strategies that `solve` tries by default for the objective rounds; `in_order` sorts them."""
# With half a second of drawn plans, schedules for 24 networks with unequal links were 6.0 % above
# the bound after 2 s; without, 8.1 %.
DRAWN_PLANS = Planned(effort=0.5)
FOR_SECONDS: tuple[Scheduler, ...] = (
    Hierarchical(),  # on networks of groups: usually ends near the bound, so the rest is skipped
    Planned(),  # on unequal links: a good schedule in milliseconds, to improve on
    DRAWN_PLANS,  # with few servers: a better schedule in half a second
    RecursiveDoubling(),
    RecursiveDoubling(order="near"),
    RecursiveDoubling(radix=MAX_RADIX),  # all pairs exchange at once, if the links can carry that
    Postal("root"),
    Postal("pair"),
    Postal("cross"),
    Postal("cross", pieces=8),
    Symmetric(),
    Ring(),
    Packed(),  # usually the fastest on unequal links: others may then end early
    Grown(restarts=64),
    Timed(),
    Ring(order="hamiltonian"),
    Ring(order="hamiltonian", directions=2),
    # `Binomial` and `HalvingDoubling` are absent because they won none of 378 recorded searches,
    # `Merged` because it won only if `Grown` was as fast.
)
"""The strategies that `solve` tries by default for the objective seconds, in this order.

Each leaves bitwise identical sums at all servers; otherwise replicas of a model would diverge.
"""
TEXTBOOK = (Direct(), Chain(), BinomialTree(), DoubleBinaryTree())
"""The runtimes' algorithms for jobs, simple ones first."""


def portfolio(
    topology: Topology,
    asked: Collective | Demand,
    objective: str = "seconds",
    *,
    ready_at_s: ReadyAt | None = None,
    ordered: Joint | None = None,
) -> Portfolio:
    """The strategies that may suit a problem, in the order to try them.

    Args:
        topology: the network.
        asked: a collective among all servers, or a demand.
        objective: of a collective among all servers: ``rounds`` or ``seconds``.
        ready_at_s: [N] seconds at which each server's gradient is ready; 0 if not given.
        ordered: for jobs, a program whose order of jobs suits the objective; it is tried first,
            after `Apart`.
    """
    if isinstance(asked, Demand):
        return Portfolio(_for_jobs(topology, asked, ordered))
    if objective == "rounds":
        return Portfolio(DEFAULT)
    return _for_seconds(topology, asked, ready_at_s)


def _for_seconds(
    topology: Topology, collective: Collective, ready_at_s: ReadyAt | None
) -> Portfolio:
    """The strategies of `FOR_SECONDS` that suit a network.

    Strategies with shares of their own are tried immediately if links differ or servers are late;
    with many servers only the learned plan. On equal links they are a last resort, for an
    all-reduce whose servers have different numbers of links. If all servers are alike they are
    never tried, since equal parts are then as good.
    """
    ready = ready_times(topology, ready_at_s)
    grouped = consists_of_groups(topology, ready)
    by_groups = [one for one in FOR_SECONDS if grouped and one.traits.by_groups]
    whole = collective == "all_reduce"
    fitting = [
        one
        for one in FOR_SECONDS
        if not one.traits.by_groups and (whole or not one.traits.one_root)
    ]
    uneven = not has_equal_links(topology) or bool(ready.any())
    many = topology.num_servers > TUNING.max_packed_servers
    if uneven and many:  # quick strategies first: others may use up the time
        others = [one for one in fitting if one != DRAWN_PLANS and one.name != "packed"]
        return Portfolio(sorted(others, key=lambda one: one not in (Planned(), Ring())), by_groups)
    if uneven:
        return Portfolio(fitting, by_groups)
    equal = [one for one in fitting if not one.traits.own_pieces]
    if not whole or many or has_equal_ports(topology):
        return Portfolio(equal, by_groups)
    return Portfolio(equal, by_groups, [one for one in fitting if one.traits.own_pieces])


def _for_jobs(topology: Topology, demand: Demand, ordered: Joint | None) -> list[DemandStrategy]:
    """The strategies that may suit a demand; those that order jobs come first, if any do."""
    residual = [Joint(1.0)] if may_leave_residual(topology) else []
    joint = [*residual, Joint()]
    several = len(demand.jobs) > 1
    direct, chain, *trees = TEXTBOOK
    usual: list[DemandStrategy]
    if demand.unicast:
        apart = [Apart()] if several else []
        usual = [Flows(), *apart, *joint, *(one for one in TEXTBOOK if one.unicast)]
    elif len(demand) == 1 and 1 in (*demand.contributors.sizes, *demand.destinations.sizes):
        usual = [PostalTree(), *residual, DisjointTrees(), Joint(), direct, chain, *trees]
    elif several:
        usual = [direct, Joint(), chain, *trees, Apart(), *residual]
    else:
        usual = [chain, Group(), *joint, direct, *trees]
    if ordered is None:
        return usual
    ordered = dataclasses.replace(ordered, residual=joint[0].residual)
    apart, others = ([one for one in usual if isinstance(one, Apart) == is_it] for is_it in (1, 0))
    return [*apart, ordered, *others]


def in_order(
    schedulers: Sequence[Strategy], topology: Topology, collective: Collective, bound: Bound
) -> list[Strategy]:
    """The strategies in the order to try them: repairs, promising rings, then in the order given.

    A ring is promising if it can meet the bound with each step in one round. Such a ring never
    hands a link from one pair of servers to another, so among schedules with equally few rounds its
    predicted time is the most reliable on real networks (docs/design/execution.md). On large
    networks, and on families with known symmetry, trees mapped by a symmetry come before grown
    trees: they cost as much as one tree, whereas growing costs as much as all trees. On few servers
    the exact search comes before the learned rule.

    Args:
        schedulers: the strategies.
        topology: the network.
        collective: a stage, or both.
        bound: lower bound on rounds.
    """
    stages = 2 if collective == "all_reduce" else 1
    ring_may_do = bound.rounds >= stages * (topology.num_servers - 1)
    proving = any(one.traits.proves for one in schedulers)
    proofs_first = proving and topology.num_servers <= TUNING.few_servers
    many = topology.num_servers > TUNING.quickly_grown_servers
    symmetric_first = many or has_family_symmetry(topology)

    def place(one: Strategy) -> int:
        if one.traits.repairs:
            return 0
        if ring_may_do and one.steps_fit_rounds(topology):
            return 1
        if symmetric_first and one.traits.by_symmetry:
            return 2
        return 4 if proofs_first and one.traits.after_proofs else 3

    return sorted(schedulers, key=place)


@dataclasses.dataclass(frozen=True)
class Group(DemandStrategy):
    """An all-reduce, all-gather or reduce-scatter of one group, on the network of its servers.

    It is planned as `gradweave.solve` plans it among all servers. In an all-gather or
    reduce-scatter, all servers have equal parts.
    """

    name: ClassVar[str] = "group"
    forwards: ClassVar[bool] = True
    time_share: ClassVar[float] = 2.0

    scheduler: Scheduler | None = None
    """The only scheduler to try; by default those that `gradweave.solve` tries for seconds."""

    def make(self, topology: Topology, demand: Demand, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        asked = collective_of(demand)
        if asked is None:
            raise self.refused(
                "needs a single all-reduce, all-gather or reduce-scatter in equal parts"
            )
        collective, of_root = asked
        alone, nodes = subnetwork(topology, demand.servers)
        if not alone.is_server[topology.is_server[nodes]].all():
            raise self.refused("the group's routes pass through other servers")
        only = self.scheduler and Portfolio((self.scheduler,))
        found = solve_for_seconds(
            alone,
            float(demand.total_bytes),
            collective=collective,
            strategies=only or portfolio(alone, collective),
            seed=seed,
            stop=stop,
        ).schedule
        return lifted(found, topology, nodes, demand, of_root)


@dataclasses.dataclass(frozen=True)
class Apart(DemandStrategy):
    """Plans each job as if it had the network to itself, then runs all plans at once.

    Each link carries transfers in the order in which the separate plans start them. If jobs share
    no links, the result is as good as any joint plan. If they do, it is the time of jobs that are
    planned without taking each other into account.
    """

    name: ClassVar[str] = "apart"
    forwards: ClassVar[bool] = True
    time_share: ClassVar[float] = 2.0

    scheduler: Scheduler | None = None
    """The scheduler for each group's all-reduce, all-gather or reduce-scatter; messages then take
    direct routes. If not given, `solve_demand` chooses for each job."""

    def make(self, topology: Topology, demand: Demand, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        jobs = len(demand.jobs)
        if (jobs == 1 and not self.scheduler) or (np.diff(demand.job) < 0).any():
            raise self.refused("needs several jobs, with each job's blocks in one contiguous range")
        if self.scheduler and demand.unicast:
            raise self.refused(f"{self.scheduler.name} does not plan point-to-point messages")
        alone = [demand.of_job(job) for job in range(jobs)]
        among = [alone_on_group(topology, one) for one in alone]
        left = len({key for key, _ in among})
        # Jobs that differ in their nodes only are planned once, and the plan is moved.
        first: dict[bytes, int] = {}
        found: list[Schedule] = []
        for job, (key, nodes) in enumerate(among):
            if key in first:
                again = moved(found[first[key]], among[first[key]][1], nodes, alone[job])
                if again is not None:
                    found.append(again)
                    continue
            part = stop.part(1 / max(left, 1))
            left -= key not in first
            first.setdefault(key, job)
            found.append(self._plan(topology, alone[job], seed, part))
        return at_once(found, [event_seconds(one)[0] for one in found])

    def _plan(self, topology: Topology, alone: Demand, seed: int, stop: Stop) -> Schedule:
        """The plan for one job."""
        if self.scheduler is None:
            goal = JobGoal(topology, alone, "makespan", IDEAL, stop)
            return solve_for_jobs(goal, portfolio(topology, alone).usual, seed, stop).schedule
        strategy = Direct() if alone.unicast else Group(self.scheduler)
        return strategy.schedule_until(topology, alone, stop, seed=seed)
