"""A linear program over trees and paths of all blocks of a demand, by column generation."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.demands.demand_bound import demand_bound
from gradweave.bounds.seconds_bound import SecondsBound
from gradweave.common.stop import UNLIMITED, Stop
from gradweave.errors import NoScheduleError
from gradweave.schedulers.carriers import Carrier, Plan, Relayed, TreePair, path_carrier
from gradweave.schedulers.demand_tuning import TUNING
from gradweave.schedulers.packing.master import Master, relative
from gradweave.schedulers.packing.paths import CheapestPaths, PathCosts
from gradweave.schedulers.packing.stages import Stages
from gradweave.schedules.demand import Demand
from gradweave.topology.topology import Topology


def plan(
    topology: Topology,
    demand: Demand,
    *,
    residual: float = 0.0,
    first: Sequence[tuple[int, Carrier]] = (),
    stages: Stages | None = None,
    stop: Stop = UNLIMITED,
) -> Plan:
    """Trees and paths that minimise the busiest link's load, for all blocks together.

    The program: the carriers of block b carry its bytes; on each link direction, the bytes of all
    transfers are at most T times its bandwidth; minimise T plus a small multiple of the latency
    along the way. Carriers are added at the links' duals: for one contributor and one destination,
    the cheapest path over servers that may relay; for several of either, a cheapest tree among the
    job's servers; for several of both, a tree to some server and a tree from it.

    Args:
        topology: the network.
        demand: the blocks to sum and move.
        residual: weight of bandwidth that transfers leave unusable, see `PathCosts`.
        first: blocks with carriers to start with, which the plan keeps if they suffice.
        stages: which jobs must end before others. The program then has a time T for each stage, by
            which the bytes of the jobs up to it pass each link, and minimises the weighted sum of
            these times.
        stop: when to end with the carriers found so far.

    Source: column generation (Dantzig and Wolfe 1960) with smoothed duals (Wentges 1997).
    """
    stages = Stages.one(len(demand.jobs)) if stages is None else stages
    return _Program(topology, demand, residual, first, stages).run(stop)


@dataclasses.dataclass(frozen=True, eq=False)
class _Job:
    """A job's servers, as ranks."""

    group: NDArray[np.int64]
    """The job's servers, ascending."""
    relays: NDArray[np.int64]
    """The job's servers and others that may relay, ascending."""


class _Program(Master):
    """The program, with its carriers so far."""

    def __init__(
        self,
        topology: Topology,
        demand: Demand,
        residual: float,
        first: Sequence[tuple[int, Carrier]],
        stages: Stages,
    ) -> None:
        self._topology, self._demand, self._first = topology, demand, first
        self._paths = PathCosts(topology, residual=residual)
        bandwidth = topology.bandwidth_bytes_per_s.astype(np.float64)
        # Bytes count relative to the demand's total, bandwidths to the largest; so a unit of time
        # is that of all bytes over the fastest link.
        self._bytes = demand.bytes / demand.total_bytes
        self._whole_s = demand.total_bytes / float(bandwidth.max())
        self._late = (topology.latency_s + topology.overhead_s) / self._whole_s
        rank = topology.rank
        self._jobs = [
            _Job(
                rank[mine].astype(np.int64), rank[np.union1d(mine, demand.relays)].astype(np.int64)
            )
            for mine in map(demand.servers_of, range(len(demand.jobs)))
        ]
        self._given, self._wanted = (
            [rank[sets[block]].astype(np.int64) for block in range(len(demand))]
            for sets in (demand.contributors, demand.destinations)
        )
        count, weight = len(stages.weight), stages.weight / float(stages.weight.sum())
        super().__init__(
            bandwidth / bandwidth.max(), np.zeros(count), list(range(count)), weight.tolist()
        )
        self._stages = stages
        for size in self._bytes.tolist():
            self._ask(size)
        self._carriers: list[tuple[int, Carrier]] = []
        self._known: set[tuple[int, Carrier]] = set()

    def run(self, stop: Stop) -> Plan:
        """Adds carriers until the time is near the bound."""
        for block, carrier in self._first:
            self._add_carrier(block, carrier)
        self._add_columns(np.tile(1 / self._bandwidth, (len(self._times), 1)))
        self._bound = demand_bound(self._topology, self._demand)
        self.generate(TUNING.max_steps, stop)
        self._bound = max(self._bound, self._proved(), key=_of_parts)
        return self._plan(self._bound)

    def _is_near(self, steps: int) -> bool:
        # Not after the first solution, which has only the initial carriers: its duals prove little.
        if steps % TUNING.steps_a_bound == 1:
            proved = self._proved()
            if proved.seconds_of_parts > self._bound.seconds_of_parts or len(self._times) > 1:
                self._bound = max(self._bound, proved, key=_of_parts)
                self._best_duals = self._prices()
        if len(self._times) > 1:  # the bound is on the last stage's time, not on the weighted sum
            return False
        seconds = self._lengths[-1] * self._whole_s
        return seconds <= self._bound.seconds_of_parts * (1 + TUNING.tolerance)

    def _proved(self) -> SecondsBound:
        """The bound that the last solution's duals prove."""
        return demand_bound(self._topology, self._demand, lengths=self._prices()[-1])

    def _add_columns(self, duals: NDArray[np.float64]) -> bool:
        """Adds the cheapest carriers at these link prices; returns whether any is of use.

        If blocks are few, it adds several carriers for each, raising the prices of the links used
        after each round.

        Args:
            duals: [stages, L] price of each link until the end of each stage.
        """
        # A job's bytes count until the end of its stage, and in all later stages.
        prices = np.cumsum(duals[::-1], axis=0)[::-1]
        added, times = 0, max(1, TUNING.carriers_per_step // len(self._demand))
        for _ in range(times):
            taken = np.zeros(prices.shape[1])
            for block, carrier in self._cheapest(prices):
                added += self._add_carrier(block, carrier)
                links = np.concatenate([np.array(route) for route in carrier.routes])
                np.add.at(taken, links, self._bytes[block])
            load = taken / self._bandwidth
            prices = prices * np.exp(TUNING.log_price_rise * load / load.max())
        return added > 0

    def _cheapest(self, prices: NDArray[np.float64]) -> Iterator[tuple[int, Carrier]]:
        """Blocks with their cheapest carriers at these link prices, stage by stage."""
        cheapest = [self._paths.cheapest(relative(one)) for one in prices]
        for job, members in enumerate(self._jobs):
            pricing = _Pricing(self._topology, cheapest[self._stages.of_job[job]], members)
            for block in np.flatnonzero(self._demand.job == job).tolist():
                for carrier in pricing.carriers(self._given[block], self._wanted[block]):
                    yield block, carrier

    def _add_carrier(self, block: int, carrier: Carrier) -> bool:
        if (block, carrier) in self._known:
            return False
        links = np.concatenate([np.array(route) for route in carrier.routes])
        factors = np.concatenate([self._paths.factors(route) for route in carrier.routes])
        since, num_links = int(self._stages.of_job[self._demand.job[block]]), len(self._bandwidth)
        if not self._add(
            block,
            since * num_links + links,
            factors,
            self._latency(carrier),
            windows=len(self._times) - since,
        ):
            return False
        self._known.add((block, carrier))
        self._carriers.append((block, carrier))
        return True

    def _latency(self, carrier: Carrier) -> float:
        """Latency along a carrier's longest path, in the program's unit of time."""
        until: list[float] = []
        for route, waits in zip(carrier.routes, carrier.waits, strict=True):
            begun = max((until[one] for one in waits), default=0.0)
            until.append(begun + float(self._late[list(route)].sum()))
        return TUNING.latency_weight * max(until)

    def _plan(self, bound: SecondsBound) -> Plan:
        """The carriers in use in the last solution, scaled to exactly each block's bytes."""
        amount = np.array(self._amounts)
        block = np.array([block for block, _ in self._carriers])[: len(amount)]
        carries = amount > TUNING.least_share * self._bytes[block]
        for small in np.setdiff1d(np.arange(len(self._demand)), block[carries]).tolist():
            # A block so small relative to the others that the solver rounds its bytes to none.
            ways = np.flatnonzero(block == small).tolist()
            one = min(ways, key=lambda one: self._latency(self._carriers[one][1]))
            carries[one], amount[one] = True, 1.0
        kept = np.flatnonzero(carries)
        kept = kept[np.argsort(block[kept], kind="stable")]
        whole = np.bincount(block[kept], amount[kept], len(self._demand))
        size = amount[kept] / whole[block[kept]] * self._demand.bytes[block[kept]]
        carriers = tuple(self._carriers[one][1] for one in kept.tolist())
        lengths = tuple(self._prices()) if len(self._times) > 1 else ()
        return Plan(self._topology, self._demand, block[kept], carriers, size, bound, lengths)


class _Pricing:
    """The cheapest carriers of a job's blocks at given link prices."""

    def __init__(self, topology: Topology, cheapest: CheapestPaths, job: _Job) -> None:
        self._topology, self._cheapest, self._job = topology, cheapest, job

    @functools.cached_property
    def _relayed(self) -> Relayed:
        return Relayed(self._cheapest.cost, self._job.relays)

    def carriers(self, given: NDArray[np.int64], wanted: NDArray[np.int64]) -> Iterator[Carrier]:
        """The carriers of a block.

        Args:
            given: ranks of its contributors.
            wanted: ranks of its destinations.
        """
        if len(given) == len(wanted) == 1:
            path = self._relayed.path(int(given[0]), int(wanted[0]))
            yield path_carrier(self._topology, path, self._cheapest.route)
            return
        group = self._members
        gives, wants = np.isin(group, given), np.isin(group, wanted)
        if len(given) == 1 or len(wanted) == 1:
            roots = np.flatnonzero(gives if len(given) == 1 else wants)
        else:
            roots = self._roots()
        for root in roots.tolist():
            towards, away = (self._trees[back][1][root] for back in (True, False))
            trees = TreePair(group, root, towards, gives, away, wants)
            yield trees.carrier(self._topology, self._cheapest.route)

    @functools.cached_property
    def _members(self) -> NDArray[np.int64]:
        """Ranks of the servers that trees span: the job's, and relays if it needs them.

        Raises:
            NoScheduleError: if some cannot reach others.
        """
        group, relays = self._job.group, self._job.relays
        if Relayed(self._cheapest.cost, group).connected(group):
            return group
        if len(relays) > len(group) and self._relayed.connected(relays):
            return relays
        raise NoScheduleError(
            "some servers of a job reach each other only over servers that may not relay"
        )

    def _roots(self) -> NDArray[np.int64]:
        """Places of the servers whose trees, in both directions, are cheapest."""
        total = self._trees[True][0] + self._trees[False][0]
        own = np.flatnonzero(np.isin(self._members, self._job.group))
        return own[np.argsort(total[own], kind="stable")[: TUNING.roots_per_step]]

    @functools.cached_property
    def _trees(self) -> dict[bool, tuple[NDArray[np.float64], NDArray[np.int64]]]:
        """By direction (towards a root or from it): the cost and parents of each root's tree."""
        from gradweave.schedulers.kernels.arborescence import minimum_arborescences

        cost = self._cheapest.cost[np.ix_(self._members, self._members)]
        flatter = TUNING.flatter * float(cost[np.isfinite(cost)].mean())
        return {
            towards: minimum_arborescences(
                np.ascontiguousarray(cost.T if towards else cost), flatter
            )
            for towards in (True, False)
        }


def _of_parts(bound: SecondsBound) -> float:
    return bound.seconds_of_parts
