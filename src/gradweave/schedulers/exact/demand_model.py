"""CP-SAT model of which transfers carry a demand's pieces and when each transfer starts.

A piece is summed along a tree to its root and copied from there along another; with a single
contributor or destination, one of the two trees suffices. Each hop that a piece may take is an
optional interval that holds its links. The hop starts once the piece is complete at its source: all
transfers it waits for have arrived.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.prices import Unit
from gradweave.common import cp_sat
from gradweave.errors import NoScheduleError
from gradweave.schedulers.exact.model import Effort
from gradweave.schedules.demand import Demand
from gradweave.topology.topology import Topology

Phase = Literal["sum", "copy"]
MAX_ROUTES = 16
"""Most routes over switches between two servers; the model may use all of them."""
TICKS = 100_000_000
"""Most ticks of the longest schedule, with all transfers in sequence; at least a tenth of them, as
ticks are powers of ten. Shorter ticks make bounds more exact, and the solver slower."""
MAX_COST = 1 << 20
"""Largest bandwidth in the integer units used for links shared by several transfers: its product
with `TICKS`, about the largest load of a link, stays far within int64."""


@dataclasses.dataclass(frozen=True)
class Hop:
    """One way for a piece to go from a server to another."""

    source: int
    """Node id, like `target`."""
    target: int
    links: tuple[int, ...]
    held: int
    """Ticks for which it holds its links, at least 1."""
    late: int
    """Ticks from then until it arrives."""
    rate: float
    """Capacity or bandwidth that it takes of each link."""


@dataclasses.dataclass(frozen=True)
class Sent:
    """A hop in a solution, with its start."""

    hop: Hop
    start: int


@dataclasses.dataclass(frozen=True)
class Moved:
    """How a piece moves in a solution."""

    root: int
    """Node id."""
    sums: tuple[Sent, ...]
    """Hops towards the root; `copies` are the hops away from it."""
    copies: tuple[Sent, ...]


@dataclasses.dataclass(frozen=True)
class Answer:
    """The solver's result."""

    moved: tuple[Moved, ...] | None
    """[B·k] by piece, or None if nothing was found."""
    least: float
    """Lower bound in ticks; infinite if no schedule is as fast as requested."""


class DemandModel:
    """The minimisation of a demand's duration in ticks.

    Args:
        topology: the network.
        demand: the blocks to sum and move.
        pieces: number of equal pieces of each block.
        unit: ``seconds`` of the event model; ``rounds``, in which a link carries as many transfers
            as its capacity.
        max_hops: hops of all pieces together, above which the model is refused.
        least_s: lower bound on any schedule, in seconds or rounds.
        most_s: exclusive upper limit: only schedules below it are sought, in seconds or rounds.

    Raises:
        NoScheduleError: if the model would be too large, or some server cannot be reached.
    """

    def __init__(
        self,
        topology: Topology,
        demand: Demand,
        pieces: int,
        unit: Unit,
        max_hops: int,
        least_s: float,
        most_s: float = math.inf,
    ) -> None:
        from ortools.sat.python import cp_model

        self.topology, self.demand, self.unit, self.pieces = topology, demand, unit, pieces
        jobs = range(len(demand.jobs))
        self._allowed = [np.union1d(demand.servers_of(job), demand.relays) for job in jobs]
        self._check_size(max_hops)
        self.tick_s = 1.0 if unit == "rounds" else self._tick()
        self._hops = [self._all_hops(block) for block in range(len(demand))]
        self._coarsen()
        self.model: Any = cp_model.CpModel()
        self.horizon = self._longest() + 1
        # Strictly below the limit, in whole ticks.
        if most_s / self.tick_s < self.horizon:
            self.horizon = max(0, math.ceil(most_s / self.tick_s * (1 - 1e-9)) - 1)
        least = min(int(least_s / self.tick_s), self.horizon + 1)
        self.end: Any = self.model.new_int_var(0, self.horizon, "")
        self.model.add(self.end >= least)
        self.on_link: dict[int, list[tuple[Any, Hop, Any]]] = {}
        self.pieces_of = [
            [_Piece(self, block) for _ in range(pieces)] for block in range(len(demand))
        ]
        # A block's pieces are interchangeable: one of their orders is enough.
        for alike in self.pieces_of:
            for one, other in itertools.pairwise(alike):
                self.model.add(one.order <= other.order)
        self._limit_links()
        self.model.minimize(self.end)

    def _check_size(self, max_hops: int) -> None:
        """Refuses a model that is too large, before anything of its size is built."""
        hops = 0
        for block in range(len(self.demand)):
            servers = len(self.allowed(block))
            hops += self.pieces * servers * (servers - 1)
        if hops > max_hops:
            raise NoScheduleError(
                f"exact: {self.demand.name} on {self.topology.name!r} needs up to {hops:,} hops, "
                f"more than max_hops={max_hops:,}; raise it, or use another strategy"
            )

    def allowed(self, block: int) -> NDArray[np.int64]:
        """Node ids of servers that may have a block, ascending."""
        return self._allowed[int(self.demand.job[block])].astype(np.int64)

    def _tick(self) -> float:
        """Seconds per tick, a power of ten."""
        topology = self.topology
        transfers = 2 * len(topology.servers) * len(self.demand) * self.pieces
        slowest = float(topology.bandwidth_bytes_per_s.min())
        each = float(topology.overhead_s.max() + topology.latency_s.sum())
        most_s = transfers * each + 2 * len(topology.servers) * self.demand.total_bytes / slowest
        return 10.0 ** math.ceil(math.log10(most_s / TICKS))

    def _coarsen(self) -> None:
        """Makes ticks as long as possible: the solver is faster with small numbers."""
        every = list(itertools.chain.from_iterable(self._hops))
        common = math.gcd(*(hop.held for hop in every), *(hop.late for hop in every))
        self.tick_s *= common
        self._hops = [
            [
                dataclasses.replace(hop, held=hop.held // common, late=hop.late // common)
                for hop in hops
            ]
            for hops in self._hops
        ]

    def _longest(self) -> int:
        """Ticks of all transfers in sequence."""
        total = 0
        for block in range(len(self.demand)):
            hops = [hop.held + hop.late for hop in self.hops(block)]
            total += 2 * self.pieces * len(self.allowed(block)) * max(hops, default=1)
        return total

    def hops(self, block: int) -> list[Hop]:
        """All ways from one server to another for a piece of a block."""
        return self._hops[block]

    def _all_hops(self, block: int) -> list[Hop]:
        size = int(self.demand.bytes[block]) / self.pieces
        topology = self.topology
        found = []
        for source in self.allowed(block).tolist():
            for links in self._routes(source, set(self.allowed(block).tolist())):
                at = np.array(links)
                rate, held, late = 1.0, 1, 0
                if self.unit == "seconds":
                    rate = float(topology.bandwidth_bytes_per_s[at].min())
                    held_s = float(topology.overhead_s[at].max()) + size / rate
                    held = max(1, int(held_s / self.tick_s + 1e-6))
                    late = int(float(topology.latency_s[at].sum()) / self.tick_s + 1e-6)
                found.append(Hop(source, int(topology.target[at[-1]]), links, held, late, rate))
        return found

    def _routes(self, source: int, targets: set[int]) -> Iterator[tuple[int, ...]]:
        """Links of every route over switches from a server to others that may hold the block."""
        topology = self.topology
        count: dict[int, int] = {}
        unfinished: list[tuple[int, tuple[int, ...], frozenset[int]]] = [(source, (), frozenset())]
        while unfinished:
            node, route, seen = unfinished.pop(0)
            for link in range(topology.first_link[node], topology.first_link[node + 1]):
                to = int(topology.target[link])
                if topology.is_server[to]:
                    if to in targets and to != source:
                        count[to] = count.get(to, 0) + 1
                        if count[to] > MAX_ROUTES:
                            raise NoScheduleError(
                                f"exact: more than {MAX_ROUTES} routes between two servers of "
                                f"{topology.name!r}; use another strategy"
                            )
                        yield (*route, link)
                elif to not in seen:
                    unfinished.append((to, (*route, link), seen | {to}))

    def _limit_links(self) -> None:
        """Limits each link's load to its bandwidth at any time, and in total to the duration."""
        topology = self.topology
        for link, users in self.on_link.items():
            rounds = self.unit == "rounds"
            room = float((topology.capacity if rounds else topology.bandwidth_bytes_per_s)[link])
            rates = np.array([hop.rate for _, hop, _ in users])
            intervals = [interval for _, _, interval in users]
            if (rates * 2 > room * (1 + 1e-9)).all():
                self.model.add_no_overlap(intervals)
            else:
                unit = room / MAX_COST if room > MAX_COST else 1.0
                # Rounded down, so that no feasible schedule is excluded.
                demands = np.floor(rates / unit).astype(int).tolist()
                self.model.add_cumulative(intervals, demands, int(room / unit))
            # Σ held · rate ≤ room · end, in integers rounded so that nothing feasible is excluded
            scale = MAX_COST / room
            weights = np.floor(rates * scale).astype(int).tolist()
            load = sum(
                w * hop.held * used for w, (used, hop, _) in zip(weights, users, strict=True)
            )
            self.model.add(load <= MAX_COST * self.end)

    def solve(self, effort: Effort) -> Answer:
        """The best transfers found, and a lower bound in ticks.

        Args:
            effort: how hard to try.
        """
        from ortools.sat.python import cp_model

        solver: Any = cp_model.CpSolver()
        solver.parameters.random_seed = effort.seed
        solver.parameters.num_workers = effort.workers
        solver.parameters.max_deterministic_time = effort.deterministic
        status = cp_sat.solve(solver, self.model, effort.stop)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return Answer(None, math.inf if status == cp_model.INFEASIBLE else 0)
        every = itertools.chain.from_iterable(self.pieces_of)
        moved = tuple(piece.moved(solver) for piece in every)
        return Answer(moved, int(np.ceil(solver.best_objective_bound - 1e-6)))


class _Piece:
    """The variables of one piece."""

    def __init__(self, model: DemandModel, block: int) -> None:
        self._of, self._model = model, model.model
        demand = model.demand
        self.servers: list[int] = model.allowed(block).tolist()
        self._given = set(demand.contributors[block].tolist())
        self._wanted = set(demand.destinations[block].tolist())
        fixed = min(self._given if len(self._given) == 1 else self._wanted)
        free = len(self._given) > 1 and len(self._wanted) > 1
        yes, no = self._model.new_constant(1), self._model.new_constant(0)
        self._root: dict[int, Any] = {
            server: self._bool() if free else (yes if server == fixed else no)
            for server in self.servers
        }
        self._model.add_exactly_one(self._root.values())
        self._used: dict[Phase, list[tuple[Any, Any, Hop]]] = {"sum": [], "copy": []}
        hops = model.hops(block)
        self._apart = _least_ticks(self.servers, hops)
        # When the piece is complete at each server in each phase, if it gets there at all.
        self._ready: dict[tuple[Phase, int], Any] = {}
        for phase in self._phases():
            for server in self.servers:
                self._ready[phase, server] = self._time()
            for hop in hops:
                self._may_take(phase, hop)
        self._sum_up()
        self._copy()
        self.order = self._order(fixed, free)

    def _order(self, fixed: int, free: bool) -> Any:
        """An expression by which a block's identical pieces can be sorted, to break symmetry."""
        if free:
            return sum(place * root for place, root in enumerate(self._root.values()))
        others = self._wanted - {fixed}
        return self._ready["copy" if others else "sum", min(others or self._given - {fixed})]

    def _phases(self) -> list[Phase]:
        phases: list[Phase] = []
        if len(self._given) > 1:
            phases.append("sum")
        if len(self._given) == 1 or len(self._wanted) > 1:
            phases.append("copy")
        return phases

    def _bool(self) -> Any:
        return self._model.new_bool_var("")

    def _time(self) -> Any:
        return self._model.new_int_var(0, self._of.horizon, "")

    def _may_take(self, phase: Phase, hop: Hop) -> None:
        used, start = self._bool(), self._time()
        interval = self._model.new_optional_fixed_size_interval_var(start, hop.held, used, "")
        self._used[phase].append((used, start, hop))
        for link in hop.links:
            self._of.on_link.setdefault(link, []).append((used, hop, interval))
        arrives = start + hop.held + hop.late
        # Redundant constraints that follow from a known root; they help the solver to prune.
        if len(self._given) == 1:
            self._model.add(start >= self._apart[min(self._given), hop.source])
        if len(self._wanted) == 1:
            left = self._apart[hop.target, min(self._wanted)]
            self._model.add(arrives + left <= self._of.end).only_enforce_if(used)
        self._model.add(start >= self._ready[phase, hop.source]).only_enforce_if(used)
        self._model.add(arrives <= self._ready[phase, hop.target]).only_enforce_if(used)
        self._model.add(arrives <= self._of.end).only_enforce_if(used)

    def _sum_up(self) -> None:
        """A server with a contribution or partial sum sends it on once; the root does not."""
        if "sum" not in self._phases():
            return
        for server in self.servers:
            out = [used for used, _, hop in self._used["sum"] if hop.source == server]
            into = [used for used, _, hop in self._used["sum"] if hop.target == server]
            root = self._root[server]
            if server in self._given:
                self._model.add(sum(out) + root == 1)
            else:
                self._model.add(sum(out) + root <= 1)
                for used in into:
                    self._model.add(sum(out) + root >= used)

    def _copy(self) -> None:
        """Destinations and relays receive the piece once; the root has it once it is summed."""
        if "copy" not in self._phases():
            return
        for server in self.servers:
            out = [used for used, _, hop in self._used["copy"] if hop.source == server]
            into = [used for used, _, hop in self._used["copy"] if hop.target == server]
            root = self._root[server]
            if server in self._wanted:
                self._model.add(sum(into) + root == 1)
            else:
                self._model.add(sum(into) + root <= 1)
                for used in out:
                    self._model.add(sum(into) + root >= used)
            if "sum" in self._phases():
                complete = self._ready["sum", server]
                self._model.add(self._ready["copy", server] >= complete).only_enforce_if(root)

    def moved(self, solver: Any) -> Moved:
        """How the piece moves in the solver's solution."""
        (root,) = (server for server, var in self._root.items() if solver.value(var))
        sums, copies = (
            tuple(
                Sent(hop, int(solver.value(start)))
                for used, start, hop in self._used[phase]
                if solver.value(used)
            )
            for phase in ("sum", "copy")
        )
        return Moved(root, sums, copies)


def _least_ticks(servers: list[int], hops: list[Hop]) -> dict[tuple[int, int], int]:
    """Minimum ticks of a piece between each pair of servers, over any others."""
    far = 1 + sum(hop.held + hop.late for hop in hops)
    apart = {(a, b): 0 if a == b else far for a in servers for b in servers}
    for hop in hops:
        ends = hop.source, hop.target
        apart[ends] = min(apart[ends], hop.held + hop.late)
    for over, a, b in itertools.product(servers, repeat=3):
        apart[a, b] = min(apart[a, b], apart[a, over] + apart[over, b])
    return apart
