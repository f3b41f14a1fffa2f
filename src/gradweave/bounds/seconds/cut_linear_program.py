"""The linear program for the minimum time with parts of any size, solved by cutting planes."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.scale import LEAST_TIME, MAX_RESCALED, MOST, in_units, units_of
from gradweave.bounds.seconds.duals import Duals, duals_of_sets
from gradweave.schedules.schedule import Collective
from gradweave.topology.topology import Topology

MAX_PASSES = 60
"""How often the program is solved, each time with the cuts that the last solution violates."""
PLATEAU = 20
"""Consecutive passes without improvement after which the search ends. Many solutions take the same
time, and cuts that only separate those add nothing to the bound."""
MAX_ITERATIONS = 200_000
"""Iterations of the solver per pass; it may cycle."""
TOLERANCE = 1e-7
"""Part of a unit that may be missing from a flow."""
UNIT = 1 << 36
"""The integer that stands for one whole gradient in flows."""
DENOMINATORS = (*range(1, 25), 60, 360, 5040, 10**6, 10**9, 10**12)
"""Dual values are rounded to multiples of one over the first of these denominators that keeps the
bound to within `ROUNDING`: small ones, which make the certificate easier to check, then numbers
with many divisors, then fine ones."""
ROUNDING = 1e-10
"""Relative loss that rounding the duals may cause; a tenth of the difference at which two times
count as equal (`gradweave.topology.units.ROUNDING`)."""


@dataclasses.dataclass(frozen=True, eq=False)
class Volumes:
    """The minimum time per byte without latency, the share of each root, and the link loads."""

    seconds_per_byte: float
    shares: NDArray[np.float64]
    """[N] part of the gradient that each server roots, by rank; the parts sum to one."""
    copies: NDArray[np.float64]
    """[L] bytes of the all-gather that each link direction carries per byte of gradient; zero if
    there is no all-gather."""
    sums: NDArray[np.float64]
    """[L] the same for the reduce-scatter."""
    attained: bool
    """Whether trees with these volumes can be packed, as far as floats tell. If not, the search
    for cuts ended early, and the true minimum time may be larger."""


@dataclasses.dataclass(frozen=True)
class Late:
    """Release times of the servers' gradients, for one gradient size."""

    ready_at_s: tuple[float, ...]
    """[N] seconds, not all the same."""
    gradient_bytes: float
    """More than 0."""

    @functools.cached_property
    def starts(self) -> tuple[float, ...]:
        """Start times of the windows; within a window the set of ready servers does not change."""
        return tuple(sorted({0.0, *self.ready_at_s}))


NONE_LATE = Late((), 1.0)


def solve_linear_program(
    topology: Topology,
    stages: tuple[Collective, ...],
    apart: bool,
    shares: tuple[Fraction, ...] | None,
    late: Late = NONE_LATE,
) -> tuple[Volumes, Duals] | None:
    """The minimum time, volumes that attain it, and duals that prove it.

    The servers' shares w ≥ 0 sum to one. A stage has volumes x ≥ 0 on link directions that must let
    trees of total weight w_r from each root r reach every server: at least w(S) must leave each set
    S of nodes that misses a server (Edmonds 1973). Switches send no more than they receive; then
    routes between servers can carry as much (splitting off: Bang-Jensen, Frank and Jackson 1995).
    A reduce-scatter is the same on the opposite directions. Each link direction carries at most T
    times its bandwidth, over both stages together or, if they are `apart`, with one T per stage.
    The objective is the minimum T.

    Violated sets are found as minimum cuts of flows that the last solution cannot carry. Missing
    constraints only lower T, so T is a valid bound after each pass. If every link has the same
    bandwidth both ways, the mean of a solution and its mirror image is also a solution, so one
    stage is solved for both.

    If servers are late, each window of time in which the same servers are ready has separate
    volumes, on links that carry their bandwidth for the length of the window; the last window ends
    at T. A server's contribution must enter each set that misses it after the server is ready,
    whatever else enters earlier; copies of sums move in the last window. These conditions are
    necessary but not always sufficient, since a tree must carry all contributions at the same time.
    Stages are not apart in this case.

    Returns:
        None if the solver, which counts in floats, finds no solution.
    """
    units, rescaled = units_of(topology, stages, apart, shares), 0
    while True:
        program = _LinearProgram(topology, stages, apart, shares, late, units)
        attained = _add_cuts_until_solved(program)
        if attained is None:
            return None
        better, rescaled = program.better_units(), rescaled + 1
        if better == units or rescaled > MAX_RESCALED:
            return program.volumes(attained), program.certificate()
        units = better


def _add_cuts_until_solved(program: "_LinearProgram") -> bool | None:
    """Whether a program was solved with all cuts, or None if it could not be solved at all."""
    waited, least = 0, 0.0
    for tried in range(MAX_PASSES):
        if not program.solve():
            return False if tried else None
        waited = 0 if program.least > least * (1 + 1e-9) else waited + 1
        least = program.least
        if not program.add_violated():
            return True
        if waited >= PLATEAU:
            break
    return False


class _LinearProgram:
    """The model and its last solution.

    Each time variable is measured in the time that the gradient takes at its unit of bandwidth.
    """

    def __init__(
        self,
        topology: Topology,
        stages: tuple[Collective, ...],
        apart: bool,
        shares: tuple[Fraction, ...] | None,
        late: Late,
        units_bytes_per_s: tuple[float, ...],
    ) -> None:
        from ortools.math_opt.python import mathopt

        self.topology, self.stages, self.apart, self.given = topology, stages, apart, shares
        self.late, self.windows = late, len(late.starts)
        self.units = units_bytes_per_s
        self.bandwidths = in_units(topology, units_bytes_per_s)
        bandwidth = topology.bandwidth_bytes_per_s
        alike = np.array_equal(bandwidth, bandwidth[topology.opposite])
        self.mirrored = alike and len(stages) == 2 and self.windows == 1
        self.solved: tuple[Collective, ...] = ("all_gather",) if self.mirrored else stages
        self.model: Any = mathopt.Model()
        self._add_variables()
        self._limit_links()
        self.balances = [self._balance(x) for x in self.volume]
        self.cuts: list[list[dict[bytes, Any]]] = [[{} for _ in late.starts] for _ in self.solved]
        for server in topology.servers.tolist():
            alone = np.arange(topology.num_nodes) == server
            for k in range(len(self.solved)):
                self._add_cuts(k, 0, (alone, ~alone))
        self.solver = mathopt.IncrementalSolver(self.model, mathopt.SolverType.GLOP)

    def _add_variables(self) -> None:
        """Shares, volumes, and one time for each stage or for both.

        All volumes are stored as those of an all-gather: those of a reduce-scatter are stored at
        the opposite link directions.
        """
        model, topology = self.model, self.topology
        bounds = [(0.0, 1.0)] * topology.num_servers
        if self.given is not None:
            bounds = [(float(share), float(share)) for share in self.given]
        self.share = [model.add_variable(lb=low, ub=high) for low, high in bounds]
        if self.given is None:
            model.add_linear_constraint(sum(self.share) == 1.0)
        times = len(self.solved) if self.apart else 1
        self.time = [model.add_variable(lb=0.0) for _ in range(times)]
        costs = [min(self.units) / unit for unit in self.units[:times]]
        twice = 2.0 if self.apart and self.mirrored else 1.0
        model.minimize(sum(one * cost * twice for one, cost in zip(self.time, costs, strict=True)))
        self.volume = [
            [self._volume(window < self._first_window(stage)) for window in range(self.windows)]
            for stage in self.solved
        ]

    def _volume(self, none: bool) -> list[Any]:
        most = 0.0 if none else float("inf")
        return [self.model.add_variable(lb=0.0, ub=most) for _ in self.topology.source]

    def _first_window(self, stage: Collective) -> int:
        """The first window in which a stage may send: copies of sums wait for all servers."""
        return self.windows - 1 if stage == "all_gather" and len(self.stages) == 2 else 0

    def _limit_links(self) -> None:
        """No link direction carries more than its time allows, in each window of time."""
        starts = self.late.starts
        scale = self.units[0] / self.late.gradient_bytes
        for window, (start, end) in enumerate(itertools.pairwise(starts)):
            self._limit_window(window, (end - start) * scale)
        self._limit_window(self.windows - 1, None)

    def _limit_window(self, window: int, lasts: float | None) -> None:
        """Limits links to their capacity in a window; the last window's length is a variable.

        Between two servers a link is allowed its full volume: more can only help.
        """
        topology, most_of_use = self.topology, MOST * self.topology.num_servers
        ends_are_servers = topology.is_server[topology.source] & topology.is_server[topology.target]
        for link, (back, direct) in enumerate(
            zip(topology.opposite.tolist(), ends_are_servers.tolist(), strict=True)
        ):
            for k, carried in enumerate(self._carried(link, back, window)):
                bandwidth = float(self.bandwidths[k][link])
                room = 0.0 if lasts is None else min(bandwidth * lasts, most_of_use)
                most = -room if direct else float("inf")
                row = self.model.add_linear_constraint(lb=-room, ub=most)
                if lasts is None:
                    row.set_coefficient(self.time[k], bandwidth)
                for variable in carried:
                    row.set_coefficient(variable, -1.0)

    def _carried(self, link: int, back: int, window: int) -> list[list[Any]]:
        """The volumes on a link direction that share one time variable."""
        on_link = [
            volume[window][link if stage == "all_gather" else back]
            for stage, volume in zip(self.solved, self.volume, strict=True)
        ]
        if self.apart:
            return [[variable] for variable in on_link]
        return [[*on_link, self.volume[0][window][back]] if self.mirrored else on_link]

    def _balance(self, volumes: list[list[Any]]) -> dict[int, Any]:
        """By switch: it sends as much as it receives over all windows together."""
        topology, rows = self.topology, {}
        for switch in topology.switches.tolist():
            rows[switch] = self.model.add_linear_constraint(lb=0.0, ub=0.0)
            out = range(topology.first_link[switch], topology.first_link[switch + 1])
            for link, volume in itertools.product(out, volumes):
                rows[switch].set_coefficient(volume[link], 1.0)
                rows[switch].set_coefficient(volume[topology.opposite[link]], -1.0)
        return rows

    def _add_cuts(self, k: int, since: int, sets: Iterable[NDArray[np.bool_]]) -> int:
        """Adds cuts: a stage's volumes since a window must leave each set [V]. Returns how many."""
        topology, added = self.topology, 0
        for inside in sets:
            key = inside.tobytes()
            if key in self.cuts[k][since]:
                continue
            row = self.cuts[k][since][key] = self.model.add_linear_constraint(lb=0.0)
            leaves = inside[topology.source] & ~inside[topology.target]
            for link in np.flatnonzero(leaves).tolist():
                for volume in self.volume[k][since:]:
                    row.set_coefficient(volume[link], 1.0)
            for rank in np.flatnonzero(inside[topology.servers] & self._rooting(since)).tolist():
                row.set_coefficient(self.share[rank], -1.0)
            added += 1
        return added

    def _rooting(self, since: int) -> NDArray[np.bool_]:
        """[N] roots whose bytes must move since a window: all, or the late ones for copies."""
        if self.stages != ("all_gather",):
            return np.ones(self.topology.num_servers, bool)
        return self._ready_since(since)

    def _ready_since(self, since: int) -> NDArray[np.bool_]:
        """[N] servers that are not ready before a window."""
        if not self.late.ready_at_s:
            return np.ones(self.topology.num_servers, bool)
        return np.array(self.late.ready_at_s) >= self.late.starts[since]

    def solve(self) -> bool:
        """Solves the program with its current cuts; returns whether the solver succeeded."""
        result = self._result()
        if result is None:
            return False
        values = result.variable_values()
        self.least = float(result.objective_value())
        self.times = [float(values[one]) for one in self.time]
        self.shares = np.maximum([values[one] for one in self.share], 0.0)
        self.volumes_found = [
            [np.maximum([values[one] for one in volume], 0.0) for volume in volumes]
            for volumes in self.volume
        ]
        self.dual_values = result.dual_values()
        return True

    def _result(self) -> Any:
        """A solver's result, or None if neither solver finds the optimum.

        GLOP continues from the last solution. If it gives up, HiGHS often succeeds.
        """
        from ortools.math_opt.python import mathopt

        limits = mathopt.SolveParameters(iteration_limit=MAX_ITERATIONS)
        for solve in (
            lambda: self.solver.solve(params=limits),
            lambda: mathopt.solve(self.model, mathopt.SolverType.HIGHS, params=limits),
        ):
            try:
                result: Any = solve()
            except (AttributeError, RuntimeError, ValueError):
                continue  # a solver status that the wrapper cannot turn into an exception
            if result.termination.reason == mathopt.TerminationReason.OPTIMAL:
                return result
        return None

    def better_units(self) -> tuple[float, ...]:
        """Units in which the solution's times are near one, if the current units hid bandwidth."""
        times = [*self.times, *self.times][: len(self.units)]  # twice if one stage stands for both
        hidden = float(self.topology.bandwidth_bytes_per_s.max())
        hidden /= MOST * self.topology.num_servers
        return tuple(
            unit / time if 0 < time < LEAST_TIME and hidden > unit else unit
            for unit, time in zip(self.units, times, strict=True)
        )

    def add_violated(self) -> int:
        """Adds the cuts that the last solution violates; returns how many."""
        added = 0
        for k, stage in enumerate(self.solved):
            first = self._first_window(stage)
            for since in [0, *range(max(1, first), self.windows)] if first == 0 else [first]:
                volume = np.sum(self.volumes_found[k][since:], axis=0)
                shares = np.where(self._rooting(since), self.shares, 0.0)
                missed = self.topology.servers
                if stage == "reduce_scatter":
                    missed = missed[self._ready_since(since)]
                added += self._add_cuts(
                    k, since, violated_cuts(self.topology, volume, shares, missed)
                )
        return added

    def volumes(self, attained: bool) -> Volumes:
        """The last solution by stage."""
        opposite = self.topology.opposite
        found = dict.fromkeys(("all_gather", "reduce_scatter"), np.zeros(len(opposite)))
        totals = [np.sum(volumes, axis=0) for volumes in self.volumes_found]
        found |= dict(zip(self.solved, totals, strict=True))
        if self.mirrored:
            found["reduce_scatter"] = found["all_gather"]
        sums = found["reduce_scatter"][opposite]
        return Volumes(self._seconds_per_byte, self.shares, found["all_gather"], sums, attained)

    @property
    def _seconds_per_byte(self) -> float:
        """The last solution's time per byte, including the windows before the last."""
        return self.least / min(self.units) + self.late.starts[-1] / self.late.gradient_bytes

    def certificate(self) -> Duals:
        """The dual solution in small integers, with which the bound is exact."""
        crossings, tolls = [], []
        for k, stage in enumerate(self.solved):
            for stage_too in self.stages if self.mirrored else (stage,):
                crossings += [
                    (stage_too, np.frombuffer(key, bool), self.dual_values[row], since)
                    for since, cuts in zip(self.late.starts, self.cuts[k], strict=True)
                    for key, row in cuts.items()
                    if self.dual_values.get(row, 0.0)
                    > 0.0  # the newest cuts are not in the solution yet
                ]
                tolls += [
                    (stage_too, switch, self.dual_values[row])
                    for switch, row in self.balances[k].items()
                ]
        make = functools.partial(
            _rounded,
            self.topology,
            self.stages,
            self.apart,
            self.given,
            self.late,
            crossings,
            tolls,
        )
        size = self.late.gradient_bytes

        def seconds(duals: Duals) -> Fraction:
            return duals.seconds_without_latency(size)

        goal = self._seconds_per_byte * size * (1 - ROUNDING)
        best = make(DENOMINATORS[0])
        for denominator in DENOMINATORS[1:]:
            if seconds(best) >= goal:
                break
            best = max(best, make(denominator), key=seconds)
        return best


def _rounded(
    topology: Topology,
    stages: tuple[Collective, ...],
    apart: bool,
    shares: tuple[Fraction, ...] | None,
    late: Late,
    crossings: list[tuple[Collective, NDArray[np.bool_], float, float]],
    tolls: list[tuple[Collective, int, float]],
    denominator: int,
) -> Duals:
    """Duals rounded to multiples of the largest crossing's dual over a denominator.

    A reduce-scatter's toll has the opposite sign: its bytes leave where those of its mirror image
    enter.
    """
    scale = denominator / max((dual for *_, dual, _ in crossings), default=1.0)
    duals = [round(dual * scale) for *_, dual, _ in crossings]
    charges = [
        round(dual * scale) * (1 if stage == "all_gather" else -1) for stage, _, dual in tolls
    ]
    unit = math.gcd(*duals, *charges) or 1
    return duals_of_sets(
        topology,
        stages,
        apart,
        shares,
        [(*one[:2], dual // unit, one[3]) for one, dual in zip(crossings, duals, strict=True)],
        [(*one[:2], dual // unit) for one, dual in zip(tolls, charges, strict=True)],
        late.ready_at_s,
    )


def violated_cuts(
    topology: Topology,
    volume: NDArray[np.float64],
    shares: NDArray[np.float64],
    missed: NDArray[np.int32],
) -> list[NDArray[np.bool_]]:
    """Sets of nodes [V] that less leaves than their servers root.

    For each of the given servers, the smallest and the largest of the minimum cuts that miss it.

    Args:
        topology: the network.
        volume: [L] volume of an all-gather on each link direction.
        shares: [N].
        missed: the servers to try.
    """
    from ortools.graph.python import max_flow

    nodes, servers = topology.num_nodes, topology.servers
    tail = np.concatenate([topology.source, np.full(len(servers), nodes)]).astype(np.int32)
    head = np.concatenate([topology.target, servers]).astype(np.int32)
    solver: Any = max_flow.SimpleMaxFlow()  # its stubs misstate the arrays' types
    # No cut needs more than one gradient; more is cut off, so that sums over links stay within
    # int64.
    room = (np.concatenate([np.minimum(volume, 2.0), shares]) * UNIT).astype(np.int64)
    solver.add_arcs_with_capacity(tail, head, room)
    enough = (float(shares.sum()) - TOLERANCE) * UNIT
    found: dict[bytes, NDArray[np.bool_]] = {}
    for server in missed.tolist():
        solver.solve(nodes, server)
        if solver.optimal_flow() >= enough:
            continue
        near, far = np.zeros(nodes + 1, bool), np.ones(nodes + 1, bool)
        near[solver.get_source_side_min_cut()] = True
        far[solver.get_sink_side_min_cut()] = False
        for inside in (near[:-1], far[:-1]):
            found[inside.tobytes()] = inside
    return list(found.values())
