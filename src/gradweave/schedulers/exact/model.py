"""CP-SAT model: can every server have every piece after T rounds?

For piece p, server v and round t, a boolean states whether v *holds* p at the start of round t. For
each link direction that p may take, a variable counts how often it is *sent* over it in round t:
once, or, into a switch that can forward it to several servers, up to the link's capacity. A server
that comes to hold a piece receives it exactly once. Servers send pieces that they hold; a switch
forwards pieces that it receives, in the same round. Each piece and round is a network flow from
servers to servers, which decomposes into routes with only switches inside.
"""

import dataclasses
import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gradweave.common import cp_sat
from gradweave.common.stop import UNLIMITED, Stop
from gradweave.schedulers.exact.trees import Choice
from gradweave.schedules.schedule import COPY, Schedule

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

Row = tuple[int, int, int, list[int]]
"""Round, piece, op and route of a transfer."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """The effort of a solve."""

    seed: int
    workers: int
    deterministic: float
    """CP-SAT's deterministic time, in its units: the same work on every machine."""
    stop: Stop = UNLIMITED


class GatherModel:
    """The question whether an all-gather fits a number of rounds.

    Redundant constraints speed up the answer: variables are fixed by distance from the root and by
    forced chains if no rounds are left otherwise; every server must hold enough early on for its
    ports to take in the rest; some server near enough must hold a piece for it to reach distant
    servers in time. Pieces of one root are interchangeable, and are ordered by their arrival at one
    server.

    Args:
        choice: the network, the roots and the trees that may be used.
        rounds: T.
    """

    def __init__(self, choice: Choice, rounds: int) -> None:
        from ortools.sat.python import cp_model

        self.choice, self.rounds = choice, rounds
        self.model: Any = cp_model.CpModel()
        self.servers: list[int] = choice.topology.servers.tolist()
        self.holds: dict[tuple[int, int], list[Any]] = {}
        """By piece and server: whether it holds the piece at the start of rounds 0 to T."""
        self.sends: dict[tuple[int, int, int], Any] = {}
        """By piece, link direction and round: the number of copies sent."""
        self._add_holdings()
        self._add_transfers()
        self._limit_links()
        self._count_ports()
        self._stay_within_reach()
        self._order_interchangeable()

    def _add_holdings(self) -> None:
        latest = self.rounds - self.choice.rounds_after
        yes, no = self.model.new_constant(1), self.model.new_constant(0)
        for piece, root in enumerate(self.choice.root.tolist()):
            for server in self.servers:
                first, last = self.choice.earliest[piece, server], latest[piece, server]
                self.holds[piece, server] = [
                    yes
                    if server == root or t >= last
                    else no
                    if t < first
                    else self.model.new_bool_var("")
                    for t in range(self.rounds + 1)
                ]

    def _add_transfers(self) -> None:
        for piece in range(len(self.choice.root)):
            entering: dict[tuple[int, int], list[Any]] = defaultdict(list)
            leaving: dict[tuple[int, int], list[Any]] = defaultdict(list)
            for link in np.flatnonzero(self.choice.allowed[piece]).tolist():
                self._add_link(piece, link, entering, leaving)
            self._receive_once(piece, entering)
            for switch in self.choice.topology.switches.tolist():
                for t in range(self.rounds):
                    into, out_of = entering[switch, t], leaving[switch, t]
                    if into or out_of:
                        self.model.add(sum(into) == sum(out_of))

    def _add_link(self, piece: int, link: int, entering: Any, leaving: Any) -> None:
        """One variable per round in which the piece can be at the link's source."""
        topology = self.choice.topology
        source, target = int(topology.source[link]), int(topology.target[link])
        # Sending a piece twice can only be useful into a switch.
        most = 1 if topology.is_server[target] else int(topology.capacity[link])
        for t in range(int(self.choice.earliest[piece, source]), self.rounds):
            sent = self.model.new_int_var(0, most, "")
            self.sends[piece, link, t] = sent
            entering[target, t].append(sent)
            leaving[source, t].append(sent)
            if topology.is_server[source]:
                held = self.holds[piece, source][t]
                if most == 1:
                    self.model.add_implication(sent, held)
                else:
                    self.model.add(sent <= most * held)

    def _receive_once(self, piece: int, entering: Any) -> None:
        """A server holds the piece before, or not even after the round, or receives it once."""
        for server in self.servers:
            if server != self.choice.root[piece]:
                holds = self.holds[piece, server]
                for t, (before, after) in enumerate(itertools.pairwise(holds)):
                    self.model.add_exactly_one([before, ~after, *entering[server, t]])

    def _limit_links(self) -> None:
        sharing: dict[tuple[int, int], list[Any]] = defaultdict(list)
        for (_, link, t), sent in self.sends.items():
            sharing[link, t].append(sent)
        for (link, _), sent in sharing.items():
            capacity = int(self.choice.topology.capacity[link])
            if capacity == 1:
                self.model.add_at_most_one(sent)
            else:
                self.model.add(sum(sent) <= capacity)

    def _count_ports(self) -> None:
        topology, pieces = self.choice.topology, len(self.choice.root)
        for server in self.servers:
            ports = int(topology.capacity[topology.target == server].sum())
            for t in range(1, self.rounds):
                needed = pieces - ports * (self.rounds - t)
                if needed > 0:
                    held = sum(self.holds[piece, server][t] for piece in range(pieces))
                    self.model.add(held >= needed)

    def _stay_within_reach(self) -> None:
        for piece, root in enumerate(self.choice.root.tolist()):
            to_go = self.choice.to_go(piece)
            for rank, far in enumerate(to_go[:, root].tolist()):
                for left in range(1, min(far, self.rounds + 1)):
                    near = [v for v in self.servers if to_go[rank, v] <= left]
                    self.model.add_bool_or([self.holds[piece, v][self.rounds - left] for v in near])

    def _order_interchangeable(self) -> None:
        root = self.choice.root.tolist()
        for piece, following in itertools.pairwise(range(len(root))):
            if root[piece] == root[following]:
                watched = next(server for server in self.servers if server != root[piece])
                first, second = self.holds[piece, watched], self.holds[following, watched]
                for earlier, later in zip(first, second, strict=True):
                    self.model.add_implication(later, earlier)

    def hint(self, schedule: Schedule) -> None:
        """Gives the solver a starting point.

        Args:
            schedule: an all-gather of the same pieces, in any number of rounds; transfers over
                links that the network lacks or the trees exclude are ignored.
        """
        links, transfer = schedule.route_links
        pieces, rounds = schedule.piece[transfer], schedule.round[transfer]
        sent = defaultdict(int)
        for key in zip(pieces.tolist(), links.tolist(), rounds.tolist(), strict=True):
            sent[key] += 1
        arrival: dict[tuple[int, int], int] = {}
        rows = schedule.piece, schedule.target, schedule.round
        for piece, server, t in zip(*(column.tolist() for column in rows), strict=True):
            arrival.setdefault((piece, server), t + 1)
        for key, variable in self.sends.items():
            self.model.add_hint(variable, sent.get(key, 0))
        for key, holds in self.holds.items():
            first = self.choice.earliest[key]
            last = self.rounds - self.choice.rounds_after[key]
            for t in range(int(first), int(last)):
                if key[1] != self.choice.root[key[0]]:
                    self.model.add_hint(holds[t], t >= arrival.get(key, 0))

    def solve(self, effort: Effort) -> list[Row] | Literal[False] | None:
        """Asks CP-SAT.

        Returns:
            The transfers of an all-gather; False if there is none; None if the effort was not
            enough to decide.
        """
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        parameters: Any = solver.parameters
        parameters.random_seed = effort.seed % (1 << 31)
        parameters.num_workers = effort.workers
        parameters.max_deterministic_time = effort.deterministic
        # The linear relaxation made one worker many times slower on most networks tried.
        parameters.linearization_level = 0
        status = cp_sat.solve(solver, self.model, effort.stop)
        if status == cp_model.INFEASIBLE:
            return False
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        return self._rows(solver)

    def _rows(self, solver: "cp_model.CpSolver") -> list[Row]:
        """The transfers of the solution: each flow decomposed into routes."""
        flows: dict[tuple[int, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        topology = self.choice.topology
        for (piece, link, t), variable in self.sends.items():
            copies = int(solver.value(variable))
            if copies:
                onward = flows[t, piece][int(topology.source[link])]
                onward.extend([int(topology.target[link])] * copies)
        rows: list[Row] = []
        for (t, piece), onward in sorted(flows.items()):
            for server in [node for node in sorted(onward) if topology.is_server[node]]:
                while onward[server]:
                    rows.append((t, piece, COPY, self._walk(server, onward)))
        return rows

    def _walk(self, server: int, onward: dict[int, list[int]]) -> list[int]:
        """Follows a flow from a server to the next, and removes that path from the flow."""
        route = [server]
        while len(route) == 1 or not self.choice.topology.is_server[route[-1]]:
            node = onward[route[-1]].pop()
            if node in route:  # a cycle among switches moves nothing
                del route[route.index(node) + 1 :]
            else:
                route.append(node)
        return route
