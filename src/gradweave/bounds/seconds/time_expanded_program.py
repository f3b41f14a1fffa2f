"""The linear program over time slots, and its dual solution."""

import dataclasses
import datetime
import math
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.distances import shortened
from gradweave.bounds.seconds.time_slots import NEVER, Arcs, SlottedTime, cheapest
from gradweave.common.stop import Stop
from gradweave.schedules.schedule import Collective, take_rows
from gradweave.topology.symmetry import moved_links, orbits_of
from gradweave.topology.topology import Topology

TOLERANCE = 1e-5
"""Relative tolerance of the solver; the bound loses about as much."""
MAX_ITERATIONS = 50_000
"""Maximum number of the solver's iterations."""


@dataclasses.dataclass(frozen=True, eq=False)
class StateOrbits:
    """The orbits of servers, states, arcs and their pairs under automorphisms."""

    servers: NDArray[np.int64]
    """[N] by rank, the number of its orbit."""
    states: NDArray[np.int64]
    """[S]."""
    arcs: NDArray[np.int64]
    """[A]."""
    links: NDArray[np.int64]
    """[L]."""
    arc_server: NDArray[np.int64]
    """[A, N] the orbit of each pair of an arc and a server."""
    state_server: NDArray[np.int64]
    """[S, N] the orbit of each pair of a state and a server."""

    @classmethod
    def of(cls, topology: Topology, arcs: Arcs, generators: list[NDArray[np.int32]]) -> Self:
        """The orbits of the group that some automorphisms generate.

        Args:
            topology: the network.
            arcs: its arcs.
            generators: [V] each, the images of the nodes.
        """
        moved = [arcs.moved(one, topology) for one in generators]
        ranks = [topology.rank[one[topology.servers]].astype(np.int64) for one in generators]
        count = topology.num_servers
        pairs = [
            [
                (of[:, None] * count + rank).reshape(-1)
                for of, rank in zip(images, ranks, strict=True)
            ]
            for images in ([one for _, one in moved], [one for one, _ in moved])
        ]
        states, each = len(arcs.node), len(arcs.link)
        return cls(
            orbits_of(ranks, count),
            orbits_of([one for one, _ in moved], states),
            orbits_of([one for _, one in moved], each),
            orbits_of([moved_links(topology, one) for one in generators], len(topology.source)),
            orbits_of(pairs[0], each * count).reshape(each, count),
            orbits_of(pairs[1], states * count).reshape(states, count),
        )


def _examples(orbits: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first thing of each orbit, by index into the flattened array."""
    return np.unique(orbits.reshape(-1), return_index=True)[1]


class Program:
    """The linear program of a network in slots, for one server, link and root of each orbit."""

    def __init__(self, slots: SlottedTime, orbits: StateOrbits, rates: NDArray[np.float64]) -> None:
        """Sets up the variables and rows.

        Args:
            slots: the network in slots.
            orbits: orbits of a group of its automorphisms.
            rates: [L] bandwidths in a unit that makes the length of a slot about one.
        """
        self.slots, self.orbits = slots, orbits
        self.mirrored = slots.mirrored
        self.stages = slots.stages[:1] if self.mirrored else slots.stages
        self.columns = 1  # the first is the length of a slot
        self.rows = 0
        self.entries: list[tuple[NDArray, NDArray, NDArray]] = []
        self.low: list[NDArray] = []
        self.high: list[NDArray] = []
        self.first = _examples(orbits.servers)
        self._add_turns()
        self.uses, self.flow_rows, self.toll_rows = [], [], []
        for number, stage in enumerate(self.stages):
            self._add_stage(number, stage)
        self._limit_links(rates)

    def _earliest(self, stage: Collective) -> NDArray[np.int64]:
        """[S, N] the first slot in which each server's contribution can be in each state."""
        arcs = self.slots.arcs_in(stage)
        free = np.zeros((self.slots.count, len(arcs.link), 1), np.int64)
        free = np.where(self.slots.possible[:, :, None], free, NEVER)
        least = cheapest(arcs, self.slots.delay, np.repeat(free, len(arcs.servers), 2))
        reached = least < NEVER
        return np.where(reached.any(axis=0), reached.argmax(axis=0), self.slots.count)

    def _new_columns(self, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Numbers of new variables for the true entries, −1 elsewhere."""
        numbers = np.full(mask.shape, -1)
        added = int(mask.sum())
        numbers[mask] = np.arange(self.columns, self.columns + added)
        self.columns += added
        return numbers

    def _new_rows(self, count: int, low: float, high: float) -> NDArray[np.int64]:
        numbers = np.arange(self.rows, self.rows + count)
        self.rows += count
        self.low.append(np.full(count, low))
        self.high.append(np.full(count, high))
        return numbers

    def _enter(self, rows: NDArray, columns: NDArray, value: float | NDArray) -> None:
        """Adds coefficients for the variables that exist."""
        kept = columns >= 0
        value = np.broadcast_to(np.asarray(value, float), columns.shape)
        self.entries.append((rows[kept], columns[kept], value[kept]))

    def _add_turns(self) -> None:
        """[K, orbits of servers] bytes that the roots have summed and copy from a slot on."""
        slots, orbits = self.slots, self.orbits
        servers, count = slots.arcs.servers, slots.count
        self.earliest = [self._earliest(stage) for stage in slots.stages]
        slot = np.arange(count)[:, None]
        possible = np.ones((count, len(servers)), bool)
        for stage, earliest in zip(slots.stages, self.earliest, strict=True):
            own = slot if stage == "reduce_scatter" else count - 1 - slot
            possible &= own >= earliest[servers].max(axis=1)
        if len(slots.stages) == 1:
            possible &= slot == (count - 1 if slots.stages[0] == "reduce_scatter" else 0)
        # The mirror image of a turn in slot k is one in slot K − 1 − k: one variable stands for
        # both.
        half = (count + 1) // 2 if self.mirrored else count
        self.turn = self._new_columns(possible[:half, self.first])
        if self.mirrored:
            self.turn = np.concatenate([self.turn, self.turn[::-1][count % 2 :]])
        sizes = np.bincount(orbits.servers).astype(float)
        if slots.shares is None:
            rows = self._new_rows(1, 1.0, 1.0)
            self._enter(np.broadcast_to(rows, self.turn.shape), self.turn, sizes[None])
        else:
            for orbit, rank in enumerate(self.first.tolist()):
                share = float(slots.shares[rank])
                row = self._new_rows(1, share, share)
                self._enter(np.broadcast_to(row, (count,)), self.turn[:, orbit], 1.0)

    def _add_stage(self, number: int, stage: Collective) -> None:
        """Adds flows of each orbit's first server to the turns, and the bytes that carry them."""
        slots, orbits, count = self.slots, self.orbits, self.slots.count
        arcs, delay = slots.arcs_in(stage), slots.delay
        topology, earliest = slots.topology, self.earliest[number]
        last = self._latest_turn(number)
        slot = np.arange(count)[:, None]
        arc, server = np.divmod(_examples(orbits.arc_server), topology.num_servers)
        useful = slot >= earliest[arcs.tail[arc], server]
        useful &= slot + delay[arc] <= last[arcs.head[arc]]
        useful &= arcs.head[arc] != arcs.servers[server]
        flow = self._new_columns(useful)
        of_arc = orbits.arcs[arc]
        carried = np.zeros((count, int(orbits.arcs.max()) + 1), bool)
        slot_used, pair_used = np.nonzero(useful)
        carried[slot_used, of_arc[pair_used]] = True
        use = self._new_columns(carried)
        # A link's bytes on an arc are at least each flow over it.
        rows = np.full(useful.shape, -1)
        rows[useful] = self._new_rows(len(slot_used), -np.inf, 0.0)
        self._enter(rows[useful], flow[useful], 1.0)
        self._enter(rows[useful], use[slot_used, of_arc[pair_used]], -1.0)
        self.flow_rows.append(rows)
        self._balance_flows(stage, flow)
        # Switches forward immediately.
        state_example = _examples(orbits.states)
        switch = ~topology.is_server[slots.arcs.node[state_example]]
        chosen = state_example[switch]
        row_of = np.full((count, len(slots.arcs.node)), -1)
        row_of[:, chosen] = self._new_rows(count * len(chosen), 0.0, 0.0).reshape(count, -1)
        k, a = (one.reshape(-1) for one in np.indices((count, len(delay))))
        arrives = k + delay[a]
        inside = arrives < count
        k, a, arrives = k[inside], a[inside], arrives[inside]
        for row, sign in ((row_of[arrives, arcs.head[a]], 1.0), (row_of[k, arcs.tail[a]], -1.0)):
            on = row >= 0
            self._enter(row[on], use[k[on], orbits.arcs[a[on]]], sign)
        self.toll_rows.append((row_of, chosen))
        self.uses.append(use)

    def _latest_turn(self, number: int) -> NDArray[np.int64]:
        """[S] the last slot in which bytes in a state can still be of use.

        Slots are counted in the stage's direction of time.
        """
        slots, count = self.slots, self.slots.count
        servers = slots.arcs.servers
        stage = slots.stages[number]
        turns = self.turn[:, self.orbits.servers] >= 0
        if stage == "all_gather":
            turns = turns[::-1]
        last = np.where(turns.any(axis=0), count - 1 - turns[::-1].argmax(axis=0), -1)
        arcs = slots.arcs_in(stage)
        ahead = np.full((len(arcs.node), 1), np.inf)
        ahead[servers[last >= 0], 0] = -last[last >= 0]
        latest = -shortened(ahead, slots.delay.astype(float), (arcs.tail, arcs.head))[:, 0]
        return np.maximum(latest, -1).astype(np.int64)

    def _balance_flows(self, stage: Collective, flow: NDArray[np.int64]) -> None:
        """Servers keep bytes until these leave or turn; switches keep nothing."""
        slots, orbits, count = self.slots, self.orbits, self.slots.count
        arcs, servers = slots.arcs_in(stage), slots.arcs.servers
        # A row for each slot and orbit of a state and a server.
        state, server = np.divmod(_examples(orbits.state_server), len(servers))
        rows = self._new_rows(count * len(state), 0.0, 0.0).reshape(count, -1)
        own = rows[0, orbits.state_server[servers, np.arange(len(servers))]]
        base = int(rows.flat[0])
        self.low[-1][own - base] = self.high[-1][own - base] = -1.0
        for ends, late, sign in ((arcs.head, slots.delay, 1.0), (arcs.tail, 0, -1.0)):
            first = np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=len(arcs.node)))])
            arc, first = take_rows(np.argsort(ends, kind="stable"), first, state)
            pair = np.repeat(np.arange(len(state)), np.diff(first))
            k, at = (one.reshape(-1) for one in np.indices((count, len(pair))))
            row_at = k + np.broadcast_to(late, len(arcs.link))[arc[at]]
            kept = row_at < count
            k, at, row_at = k[kept], at[kept], row_at[kept]
            column = flow[k, orbits.arc_server[arc[at], server[pair[at]]]]
            self._enter(rows[row_at, pair[at]], column, sign)
        waiting = np.flatnonzero(np.isin(state, servers))
        kept = self._new_columns(np.ones((count - 1, len(waiting)), bool))
        self._enter(rows[1:, waiting], kept, 1.0)
        self._enter(rows[:-1, waiting], kept, -1.0)
        rank = np.searchsorted(servers, state[waiting])
        turn = self.turn[:, orbits.servers[rank]]
        self._enter(rows[:, waiting], turn if stage == "reduce_scatter" else turn[::-1], -1.0)

    def _limit_links(self, rates: NDArray[np.float64]) -> None:
        """Limits each link direction to its bandwidth in each slot."""
        slots, orbits, count = self.slots, self.orbits, self.slots.count
        example = np.unique(orbits.links, return_index=True)[1]
        chosen = np.full(len(rates), -1)
        chosen[example] = np.arange(len(example))
        rows = self._new_rows(count * len(example), -np.inf, 0.0).reshape(count, -1)
        self._enter(rows, np.zeros(rows.shape, np.int64), -rates[example])
        for number, stage in enumerate(slots.stages):
            k, a = np.nonzero(slots.possible & (chosen[slots.arcs.link] >= 0))
            row = rows[slots.used_at(stage, k, a), chosen[slots.arcs.link[a]]]
            use = self.uses[0 if self.mirrored else number]
            way = slots.topology.opposite[a] if self.mirrored and number else a
            self._enter(row, use[k, orbits.arcs[way]], 1.0)

    def solve(self, stop: Stop) -> tuple[list[NDArray], list[NDArray]] | None:
        """Prices and tolls from the dual solution, for `SlottedTime.seconds`, or None."""
        possible = self.turn.max(axis=0) >= 0
        in_time = possible.any() if self.slots.shares is None else possible.all()
        # If no root can have all contributions in time for its copies, any prices prove it.
        values = self._dual_values(stop) if in_time else np.zeros(self.rows)
        if values is None:
            return None
        prices, tolls = [], []
        slots, orbits = self.slots, self.orbits
        # The row of an orbit stands for one of each member, with an equal part of its dual value.
        of_pairs, of_states = np.bincount(orbits.arc_server.flat), np.bincount(orbits.states)
        for rows, (row_of, chosen) in zip(self.flow_rows, self.toll_rows, strict=True):
            value = np.where(rows >= 0, np.maximum(-values[rows], 0.0), 0.0) / of_pairs
            prices.append(value[:, orbits.arc_server])
            toll = np.zeros((slots.count, len(of_states)))
            toll[:, orbits.states[chosen]] = (
                values[row_of[:, chosen]] / of_states[orbits.states[chosen]]
            )
            tolls.append(toll[:, orbits.states])
        if self.mirrored:
            prices.append(prices[0][:, slots.topology.opposite])
            tolls.append(tolls[0])
        return prices, tolls

    def _dual_values(self, stop: Stop) -> NDArray[np.float64] | None:
        """[rows] approximate dual values from PDLP, ten times faster than the simplex algorithm."""
        from ortools.math_opt.python import mathopt

        params = mathopt.SolveParameters(iteration_limit=MAX_ITERATIONS)
        if math.isfinite(stop.deadline):
            params.time_limit = datetime.timedelta(seconds=stop.seconds_left)
        criteria = params.pdlp.termination_criteria.simple_optimality_criteria
        criteria.eps_optimal_relative = criteria.eps_optimal_absolute = TOLERANCE
        try:
            result: Any = mathopt.solve(self._model(), mathopt.SolverType.PDLP, params=params)
            values = result.dual_values()
        except (AttributeError, RuntimeError, ValueError):
            return None  # the solver ended without a solution
        numbers = np.zeros(self.rows)
        numbers[[row.id for row in values]] = list(values.values())
        return numbers

    def _model(self) -> Any:
        """The model for the solver: minimise the length of a slot."""
        from ortools.math_opt import model_pb2
        from ortools.math_opt.python import mathopt

        rows, columns, value = (np.concatenate(each) for each in zip(*self.entries, strict=True))
        key, place = np.unique(rows * self.columns + columns, return_inverse=True)
        rows, columns = np.divmod(key, self.columns)
        model: Any = model_pb2.ModelProto()
        model.variables.ids.extend(range(self.columns))
        model.variables.lower_bounds.extend([0.0] * self.columns)
        model.variables.upper_bounds.extend([np.inf] * self.columns)
        model.variables.integers.extend([False] * self.columns)
        model.linear_constraints.ids.extend(range(self.rows))
        model.linear_constraints.lower_bounds.extend(np.concatenate(self.low).tolist())
        model.linear_constraints.upper_bounds.extend(np.concatenate(self.high).tolist())
        model.linear_constraint_matrix.row_ids.extend(rows.tolist())
        model.linear_constraint_matrix.column_ids.extend(columns.tolist())
        model.linear_constraint_matrix.coefficients.extend(np.bincount(place, value).tolist())
        model.objective.linear_coefficients.ids.append(0)
        model.objective.linear_coefficients.values.append(1.0)
        return mathopt.Model.from_model_proto(model)
