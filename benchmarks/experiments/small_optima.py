"""Is the schedule or the bound loose on unequal links?

    python benchmarks/experiments/small_optima.py [--resume]

On networks of 4 servers, an all-reduce of a few pieces is small enough for a constraint
program that knows nothing of trees from a linear program, of orders by priority or of sizes in
steps: it chooses each piece's size, root and tree in both directions, and every start. Links have
100, 200 or 400 Gbit/s in both directions, 2 us latency and 1.25 us for each message.

``solved_us`` is what `gradweave.solve` finds in 10 s of processor time, ``bound_us`` its bound.
``found_us`` is the fastest schedule of the program for any number of pieces tried, which the
simulator plays again; ``proved_N_us`` is the bound that the program proves for N pieces. Times are
those of the model with events.
"""

import time
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.experiments.improvement import direct
from benchmarks.record import record, show
from benchmarks.unfinished import Unfinished
from gradweave.schedulers.carriers import Carrier
from gradweave.schedulers.ordering.cuts import Cut, integer_shares, schedule_of
from gradweave.schedulers.ordering.transfers import CarrierTransfers
from gradweave.schedules.schedule import COPY, REDUCE
from gradweave.simulator.seconds import seconds

NAME = "small_optima"
NETWORKS = ("ring:4", "complete:4")
SEEDS = (1,)
SIZES = (3e6,)
PIECES = (3, 4, 6)
LIMIT_S = 30.0
SOLVE_S = 10.0
UNIT_BYTES, TICK_S = 50_000, 50e-9
"""A unit takes 20, 40 or 80 ticks on a link, a message's overhead 25, its latency 40."""


class Program:
    """The fastest all-reduce in a number of pieces, as a constraint program."""

    def __init__(self, topology: gw.Topology, size: float, pieces: int, least_s: float) -> None:
        from ortools.sat.python import cp_model

        self.topology, self.pieces = topology, pieces
        self.model = model = cp_model.CpModel()
        links, servers = len(topology.source), topology.num_servers
        ticks_of = [round(UNIT_BYTES / rate / TICK_S) for rate in topology.bandwidth_bytes_per_s]
        overhead = [round(one / TICK_S) for one in topology.overhead_s]
        latency = [round(one / TICK_S) for one in topology.latency_s]
        units, far = round(size / UNIT_BYTES), round(20 * least_s / TICK_S)
        self.end = model.new_int_var(int(least_s / TICK_S), far, "end")
        self.size = [model.new_int_var(1, units, "") for _ in range(pieces)]
        model.add(sum(self.size) == units)
        for piece in range(pieces - 1):  # pieces have no names
            model.add(self.size[piece] >= self.size[piece + 1])
        self.used: dict[tuple[int, int, int], Any] = {}
        self.start: dict[tuple[int, int, int], Any] = {}
        self.root = [[model.new_bool_var("") for _ in range(servers)] for _ in range(pieces)]
        on_link: list[list] = [[] for _ in range(links)]
        taken: list[list] = [[] for _ in range(links)]
        ready: dict[tuple[int, int, int], Any] = {}
        for piece in range(pieces):
            model.add_exactly_one(self.root[piece])
            for op in (REDUCE, COPY):
                for link in range(links):
                    key = piece, op, link
                    there = self.used[key] = model.new_bool_var("")
                    start, end = (model.new_int_var(0, far, "") for _ in range(2))
                    length = ticks_of[link] * self.size[piece] + overhead[link]
                    on_link[link].append(
                        model.new_optional_interval_var(start, length, end, there, "")
                    )
                    busy = model.new_int_var(0, far, "")
                    model.add(busy >= length).only_enforce_if(there)
                    taken[link].append(busy)
                    self.start[key], ready[key] = start, end + latency[link]
                    model.add(self.end >= ready[key]).only_enforce_if(there)
        for link in range(links):
            model.add_no_overlap(on_link[link])
            model.add(sum(taken[link]) <= self.end - latency[link])
        into = [np.flatnonzero(topology.target == node).tolist() for node in topology.servers]
        out = [np.flatnonzero(topology.source == node).tolist() for node in topology.servers]
        for piece in range(pieces):
            for server in range(servers):
                root = self.root[piece][server]
                sums = [self.used[piece, REDUCE, link] for link in out[server]]
                copies = [self.used[piece, COPY, link] for link in into[server]]
                model.add(sum(sums) == 1 - root)
                model.add(sum(copies) == 1 - root)
                # Transfers follow those that they need, so they form no circle.
                for before, after, only in (
                    (REDUCE, REDUCE, []),
                    (COPY, COPY, []),
                    (REDUCE, COPY, [root]),
                ):
                    for a in into[server]:
                        for b in out[server]:
                            first, then = (piece, before, a), (piece, after, b)
                            model.add(self.start[then] >= ready[first]).only_enforce_if(
                                self.used[first], self.used[then], *only
                            )
        model.minimize(self.end)

    def run(self, limit_s: float) -> tuple[gw.Schedule | None, float]:
        """The best schedule found, and the seconds that are proved."""
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = limit_s
        solver.parameters.num_workers = 2
        status = solver.solve(self.model)
        least_s = solver.best_objective_bound * TICK_S
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None, least_s
        carriers, starts, roots = [], [], []
        for piece in range(self.pieces):
            keys = sorted(
                (key for key in self.used if key[0] == piece and solver.value(self.used[key])),
                key=lambda key: solver.value(self.start[key]),
            )
            source, target = (
                [int(ends[key[2]]) for key in keys]
                for ends in (self.topology.source, self.topology.target)
            )
            ops = [key[1] for key in keys]
            root = next(k for k, one in enumerate(self.root[piece]) if solver.value(one))
            waits = tuple(
                tuple(
                    a
                    for a in range(b)
                    if target[a] == source[b]
                    and (ops[a] == ops[b] or (ops[b] == COPY and source[b] == self.node(root)))
                )
                for b in range(len(keys))
            )
            routes = tuple((key[2],) for key in keys)
            carriers.append(Carrier(self.node(root), routes, tuple(ops), waits))
            starts.append([float(solver.value(self.start[key])) for key in keys])
            roots.append(root)
        made = CarrierTransfers.of(self.topology, carriers)
        share = np.array([solver.value(one) for one in self.size], float)
        each = np.arange(self.pieces)
        cut = Cut(each, np.zeros_like(each), share / share.sum())
        schedule = schedule_of(
            made,
            cut,
            np.array(starts).reshape(-1),
            np.array(roots),
            integer_shares(cut.share),
            collective="all_reduce",
        )
        gw.verify(schedule).raise_if_invalid()
        return schedule, least_s

    def node(self, rank: int) -> int:
        return int(self.topology.servers[rank])


def measure(spec: str, seed: int, size: float) -> dict[str, Any]:
    network = direct(spec, seed)
    began = time.process_time()
    solved = gw.solve(network, objective="seconds", gradient_bytes=size, seed=0, time_limit=SOLVE_S)
    row: dict[str, Any] = {
        "network": spec,
        "rates": network.name,
        "bytes": int(size),
        "bound_us": solved.bound.seconds * 1e6,
        "solved_us": solved.value * 1e6,
        "solve_s": time.process_time() - began,
    }
    for pieces in PIECES:
        schedule, proved_s = Program(network, size, pieces, solved.bound.seconds).run(LIMIT_S)
        found_s = np.inf if schedule is None else seconds(schedule, size, model="events")
        row[f"found_{pieces}_us"] = None if schedule is None else found_s * 1e6
        row[f"proved_{pieces}_us"] = proved_s * 1e6
    found = [row[f"found_{pieces}_us"] for pieces in PIECES if row[f"found_{pieces}_us"]]
    row["found_us"] = min(found)
    row["schedule_gap"] = row["solved_us"] / min(row["found_us"], row["solved_us"]) - 1
    row["bound_gap"] = min(row["found_us"], row["solved_us"]) / row["bound_us"] - 1
    return row


def main() -> None:
    asked = parser_of(__doc__, resumes=True).parse_args()
    unfinished = Unfinished(NAME, resume=asked.resume, libraries=("ortools",))
    done = {(row["rates"], row["bytes"]) for row in unfinished.rows()}
    for size in SIZES:
        for spec in NETWORKS:
            for seed in SEEDS:
                if (direct(spec, seed).name, int(size)) not in done:
                    row = measure(spec, seed, size)
                    show(row)
                    unfinished.add(row)
    rows = unfinished.rows()
    record(NAME, limit_s=LIMIT_S, solve_s=SOLVE_S, rows=rows)
    unfinished.end()


if __name__ == "__main__":
    main()
