"""Re-planning after a fault: keeps what still works of a schedule and grows the rest again."""

import dataclasses
import itertools
import math
from collections import Counter, defaultdict
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds import free_trees
from gradweave.common.stop import Stop
from gradweave.errors import NoScheduleError, OptionError
from gradweave.schedulers.repairing.kept import check_start, now_ids
from gradweave.schedulers.repairing.repaired_plans import most_kept, repaired_plans
from gradweave.schedulers.scheduler import Scheduler, Traits, check_counts, from_stage
from gradweave.schedulers.trees.growing import Effort, search
from gradweave.schedulers.trees.grown import GrowthSlots, hops_for, schedule_from_slots
from gradweave.schedules.compose import reverse
from gradweave.schedules.schedule import COPY, Collective, Schedule
from gradweave.simulator.seconds import seconds
from gradweave.topology.topology import Topology
from gradweave.verifier import verify


@dataclasses.dataclass(frozen=True)
class Repair(Scheduler):
    """Keeps what still works of an earlier schedule and plans the rest again.

    To minimise rounds, it grows trees that first try, in each round, the earlier schedule's
    transfers of that round. To minimise time, with `gradient_bytes`, it replaces lost hops of the
    earlier trees and rebalances their shares; among plans nearly as fast as the fastest it takes
    the one that keeps most transfers. The earlier schedule is of the same network before a fault:
    nodes are matched by label, or by id if there are no labels. Pieces of servers that are gone are
    dropped. Transfers over lost links find no hop and are left to the search, so most of the other
    transfers stay as they were.
    """

    name: ClassVar[str] = "repair"

    start_from: Schedule | None = dataclasses.field(default=None, repr=False, compare=False)
    """The schedule before the fault, one piece per server."""
    restarts: int = 200
    """Most runs, for rounds only; the search stops at the bound."""
    gradient_bytes: float = math.inf
    """Gradient size for which to minimise time; if not given, rounds are minimised."""

    def __post_init__(self) -> None:
        if self.start_from is None:
            raise OptionError("repair: start_from: expected the schedule before the fault")
        check_counts(self, "restarts")
        if not self.gradient_bytes > 0:
            raise OptionError(
                f"repair: gradient_bytes: expected more than 0, got {self.gradient_bytes:g}"
            )

    @property
    def traits(self) -> Traits:
        """The strategy's traits with these options."""
        return Traits(repairs=True, own_pieces=math.isfinite(self.gradient_bytes))

    def make(self, topology: Topology, collective: Collective, seed: int, stop: Stop) -> Schedule:
        """Makes the schedule; `schedule` verifies it."""
        assert self.start_from is not None
        check_start(topology, self.start_from.topology)
        if math.isfinite(self.gradient_bytes):
            return self._for_seconds(topology, collective, stop)
        carried = self._carried(topology, collective)
        if carried is not None and carried.rounds <= free_trees(topology, collective).rounds:
            return carried  # no search can find fewer
        repaired = from_stage(
            "all_gather",
            lambda network: self._all_gather(network, seed, stop),
            topology,
            collective,
        )
        return repaired if carried is None or carried.rounds > repaired.rounds else carried

    def _for_seconds(self, topology: Topology, collective: Collective, stop: Stop) -> Schedule:
        """Among the plans nearly as fast as the fastest, the one that keeps most."""
        assert self.start_from is not None
        plans = repaired_plans(
            self.start_from,
            topology,
            collective,
            self.gradient_bytes,
            seconds_of=lambda schedule: seconds(schedule, self.gradient_bytes, "events"),
            ready_at_s=np.zeros(topology.num_servers),
            stop=stop,
        )
        fastest_s = min((plan.seconds for plan in plans), default=math.inf)
        best = most_kept(plans, fastest_s)
        if best is None:
            raise NoScheduleError(
                "repair: expected a start_from whose pieces each move over one tree to a root "
                "that is left and over one tree from it"
            )
        return best.schedule

    def _carried(self, topology: Topology, collective: Collective) -> Schedule | None:
        """The earlier schedule with lost routes replaced, if that is possible."""
        old = self.start_from
        assert old is not None
        same = np.array_equal(now_ids(topology, old.topology), np.arange(topology.num_nodes))
        if not same or old.collective != collective or old.pieces != topology.num_servers:
            return None
        nodes, offsets = rerouted(old, topology)
        if nodes is None:
            return None
        carried = old.replace(
            topology=topology, bound=None, route_nodes=nodes, route_offsets=offsets
        )
        return carried if verify(carried, forwarding_servers=False).valid else None

    def _all_gather(self, topology: Topology, seed: int, stop: Stop) -> Schedule:
        assert self.start_from is not None
        slots = GrowthSlots.of(
            topology,
            np.arange(topology.num_servers),
            hops_for(topology, topology.num_servers, routes=4),
        )
        hints = _hints(slots, topology, all_gather_stage(self.start_from))
        bound = free_trees(topology, "all_gather")
        how = Effort(seed, self.restarts, stop=stop.at(bound.rounds))
        transfers = search(slots.growth, how, hints)
        if transfers is None:
            raise NoScheduleError(f"repair: no all-gather of {topology.name!r} was completed")
        return schedule_from_slots(topology, slots, transfers)


def rerouted(
    schedule: Schedule, topology: Topology
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | tuple[None, None]:
    """Routes on a network that has lost links; as many as possible stay as they were.

    Each transfer whose route is lost takes, one after the other, the shortest route over switches
    with capacity left in its round.

    Args:
        schedule: a schedule on the network before the loss.
        topology: the same nodes with fewer links.

    Returns:
        The columns `route_nodes` and `route_offsets`, or None twice if a transfer finds no route.
    """
    import networkx as nx  # here, since it takes half as long to import as all of Gradweave

    ends = zip(topology.source.tolist(), topology.target.tolist(), strict=True)
    capacity = dict(zip(ends, topology.capacity.tolist(), strict=True))
    routes = np.split(schedule.route_nodes, schedule.route_offsets[1:-1])
    hops = [list(itertools.pairwise(route.tolist())) for route in routes]
    lost = [not all(hop in capacity for hop in each) for each in hops]
    used: dict[int, Counter[tuple[int, int]]] = defaultdict(Counter)
    for at, each, gone in zip(schedule.round.tolist(), hops, lost, strict=True):
        if not gone:
            used[at].update(each)
    for row in np.flatnonzero(lost).tolist():
        source, target = int(schedule.source[row]), int(schedule.target[row])
        busy = used[int(schedule.round[row])]
        free = nx.DiGraph(
            (a, b)
            for (a, b), room in capacity.items()
            if busy[a, b] < room
            and (a == source or not topology.is_server[a])
            and (b == target or not topology.is_server[b])
        )
        try:
            route = nx.shortest_path(free, source, target)
        except (nx.NetworkXNoPath, nx.NodeNotFound):
            return None, None
        routes[row] = np.array(route)
        busy.update(itertools.pairwise(route))
    lengths = [len(route) for route in routes]
    return np.concatenate(routes).astype(np.int64), np.cumsum([0, *lengths])


def all_gather_stage(schedule: Schedule) -> Schedule:
    """A schedule's all-gather stage; for a reduce-scatter, its reverse.

    Args:
        schedule: any schedule.
    """
    if schedule.collective == "reduce_scatter":
        return reverse(schedule)
    rows = np.flatnonzero(schedule.op == COPY)
    first = int(schedule.round[rows[0]]) if len(rows) else 0
    return schedule.take(
        rows, collective="all_gather", round=schedule.round[rows] - first, bound=None
    )


def _hints(slots: GrowthSlots, topology: Topology, old: Schedule) -> NDArray[np.int64]:
    """[M, 3] round, piece and slot of the earlier transfers that the network still has hops for."""
    now = now_ids(topology, old.topology)
    rank = np.where(now >= 0, topology.rank[now], -1)
    between: dict[tuple[int, int], list[int]] = {}
    for slot, hop in enumerate(slots.hop.tolist()):
        pair = int(slots.hops.source[hop]), int(slots.hops.target[hop])
        between.setdefault(pair, []).append(slot)
    taken: dict[tuple[int, int, int], int] = {}
    hints = []
    roots = rank[old.root]
    columns = (old.round, roots[old.piece], rank[old.source], rank[old.target])
    for at, piece, source, target in np.stack(columns, axis=1).tolist():
        known = between.get((source, target), [])
        used = taken.get((at, source, target), 0)
        if piece >= 0 and used < len(known):
            hints.append((at, piece, known[used]))
            taken[at, source, target] = used + 1
    return np.array(hints, np.int64).reshape(-1, 3)
