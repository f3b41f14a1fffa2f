"""All-reduces on ten networks of random bandwidths, beside those of a public greedy synthesizer.

    python benchmarks/experiments/greedy_synthesizer.py [--program PROGRAM] [--resume]

The synthesizer is TACOS (Won et al., "TACOS: topology-aware collective algorithm synthesizer for
distributed machine learning", MICRO 2024), built as benchmarks/peers/greedy_synthesizer.cpp says.
It is run with 1 to 16 chunks a server and several seeds of each, the best taken; an all-reduce is
its all-gather reversed, then its all-gather. `gradweave.solve` has ``objective="seconds"``, its
defaults and a time limit of 5 s of processor time. Both schedule for the synthesizer's model, in
which a message holds its link for 1 µs and then its bytes; both schedules are played in ours too,
in which it arrives 1 µs later still. Where the synthesizer's replacement of a chunk that came by
another link has it send what its source did not have yet, playing it takes longer than it says.
"""

import argparse
import dataclasses
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.processes import printed_json
from benchmarks.record import record, show
from benchmarks.solutions import figures, solved
from benchmarks.unfinished import Unfinished
from gradweave.common import clock
from gradweave.schedules import COPY, Schedule, compose, reverse
from gradweave.simulator import seconds
from gradweave.topology import Topology
from gradweave.verifier import verify

NAME = "greedy_synthesizer"
GIB, MIB = 2.0**30, 2.0**20
SIZES = (64 * MIB, GIB)
LATENCY_US = 1.0
SEEDS_OF_CHUNKS = {1: 20, 2: 10, 4: 5, 8: 2, 16: 1}
"""Its time grows with the square of the chunks: so many runs of each take about as long."""
TIME_LIMIT_S = 5.0
SEED = 0


def grid(*sizes: int, periodic: bool) -> nx.Graph:
    return nx.grid_graph(sizes, periodic=periodic)


def drawn(servers: int, degree: int) -> nx.Graph:
    return nx.random_regular_graph(degree, servers, seed=33)


TWO, THREE, DECADE = (25, 50), (25, 50, 100), (10, 100)
CASES: dict[str, tuple[Callable[[], nx.Graph], tuple[int, ...]]] = {
    "torus 4x5": (lambda: grid(4, 5, periodic=True), TWO),
    "torus 5x6": (lambda: grid(5, 6, periodic=True), THREE),
    "torus 3x3x3": (lambda: grid(3, 3, 3, periodic=True), DECADE),
    "mesh 4x6": (lambda: grid(4, 6, periodic=False), TWO),
    "mesh 5x6": (lambda: grid(5, 6, periodic=False), THREE),
    "hypercube of 16": (lambda: nx.hypercube_graph(4), TWO),
    "hypercube of 32": (lambda: nx.hypercube_graph(5), DECADE),
    "random graph of 12": (lambda: drawn(12, 3), DECADE),
    "random graph of 24": (lambda: drawn(24, 4), TWO),
    "random graph of 40": (lambda: drawn(40, 4), DECADE),
}
"""By name: a graph, and the GiB/s that its links have, drawn evenly; `DECADE`: any between two."""


def case(name: str) -> Topology:
    """A network in the synthesizer's model: no latency, and 1 µs for which a message holds it."""
    make, rates = CASES[name]
    rng = np.random.default_rng([33, list(CASES).index(name)])
    graph = nx.convert_node_labels_to_integers(make(), ordering="sorted")
    pairs = sorted((min(edge), max(edge)) for edge in graph.edges)
    if rates is DECADE:
        rate = 10 * 10 ** rng.random(len(pairs))
    else:
        rate = rng.choice(rates, len(pairs)).astype(float)
    made = Topology.from_links(
        name,
        servers=len(graph),
        switches=0,
        links=pairs,
        bandwidth_bytes_per_s=rate * GIB,
        capacity=[1] * len(pairs),
    )
    links = len(made.source)
    held = np.full(links, LATENCY_US * 1e-6)
    return dataclasses.replace(made, latency_s=np.zeros(links), overhead_s=held)


def in_our_model(topology: Topology) -> Topology:
    """The same network, on which a message arrives 1 µs after it has left its link."""
    late = np.full(len(topology.source), LATENCY_US * 1e-6)
    return dataclasses.replace(topology, latency_s=late)


def synthesized(
    program: Path, topology: Topology, size: float, chunks: int
) -> tuple[float, np.ndarray]:
    """[s] of the best all-gather by its own account, and [T, 5] its arrivals, as it prints them."""
    rate = (topology.bandwidth_bytes_per_s / GIB).tolist()
    links = zip(topology.source.tolist(), topology.target.tolist(), rate, strict=True)
    said = [f"{topology.num_servers} {len(topology.source)}"]
    said += [f"{source} {target} {each!r} {LATENCY_US}" for source, target, each in links]
    command = [str(program), repr(size), str(chunks), str(SEEDS_OF_CHUNKS[chunks]), "0"]
    done = subprocess.run(
        command, input="\n".join(said), stdout=subprocess.PIPE, text=True, check=True
    )
    first, *rows = done.stdout.splitlines()
    return float(first) * 1e-6, np.array([[float(x) for x in row.split()] for row in rows])


def as_schedule(topology: Topology, arrivals: np.ndarray, chunks: int) -> tuple[Schedule, int]:
    """Its arrivals as an all-reduce, links in its order, and how many start before they can."""
    servers = topology.num_servers
    pieces = servers * chunks
    here = np.full((pieces, servers), np.inf)  # when a server has a chunk, by the synthesizer
    here[np.arange(pieces), np.arange(pieces) % servers] = 0.0
    for _, end, _, target, chunk in arrivals:
        here[int(chunk), int(target)] = end
    known = here[arrivals[:, 4].astype(int), arrivals[:, 2].astype(int)]
    too_soon = int((known > arrivals[:, 0] + 1e-4).sum())
    free: dict[tuple[int, int], int] = {}
    reached = {(piece, piece % servers): 0 for piece in range(pieces)}
    rows = []
    for _, _, *ends in arrivals.tolist():  # in which order each source has what it sends
        source, target, chunk = map(int, ends)
        at = max(reached[chunk, source], free.get((source, target), 0))
        reached[chunk, target] = free[source, target] = at + 1
        rows.append((at, chunk, COPY, (source, target)))
    root = np.arange(pieces) % servers
    gather = Schedule.from_rows(topology, rows, collective="all_gather", root=root)
    made = compose(reverse(gather), gather)
    verify(made).raise_if_invalid()
    return made, too_soon


def greedy(program: Path, topology: Topology, size: float) -> dict[str, Any]:
    """The synthesizer's best, by its own account and played in both models."""
    ours, tried = in_our_model(topology), []
    for chunks in SEEDS_OF_CHUNKS:
        gather_s, arrivals = synthesized(program, topology, size, chunks)
        schedule, too_soon = as_schedule(topology, arrivals, chunks)
        tried.append(
            {
                "chunks": chunks,
                "said_ms": 2e3 * gather_s,
                "played_ms": 1e3 * seconds(schedule, size, "events"),
                "in_our_model_ms": 1e3 * seconds(schedule.replace(topology=ours), size, "events"),
                "too_soon": too_soon / schedule.num_transfers * 2,
            }
        )
    said, played, in_ours = (
        min(tried, key=lambda one: one[key]) for key in ("said_ms", "played_ms", "in_our_model_ms")
    )
    return {
        "greedy_said_ms": said["said_ms"],
        "greedy_played_ms": played["played_ms"],
        "greedy_in_our_model_ms": in_ours["in_our_model_ms"],
        "greedy_chunks": said["chunks"],
        "greedy_too_soon": said["too_soon"],
        "greedy_tried": tried,
    }


def measure(name: str, size: float, program: Path, limit_s: float) -> dict[str, Any]:
    """In a process of its own: one network, one size."""
    topology = case(name)
    theirs = greedy(program, topology, size)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    theirs["greedy_s"] = used.ru_utime + used.ru_stime
    for warm in ("mesh:2x3", case("random graph of 12")):
        gw.solve(warm, objective="seconds", gradient_bytes=1e6, time_limit=0.5)  # compiles
    time.monotonic = time.process_time  # of which time limits are, from here on
    used_s, solution = solved(
        topology,
        clock.now,
        objective="seconds",
        gradient_bytes=size,
        seed=SEED,
        time_limit=limit_s,
    )
    played = solution.schedule.replace(topology=in_our_model(topology))
    in_ours_ms = 1e3 * seconds(played, size, "events")
    names = ("network", "servers", "ms", "least_ms", "gap", "winner", "pieces")
    row = {"gradient_bytes": size, **figures(solution, *names), "in_our_model_ms": in_ours_ms}
    row |= {"seconds": used_s, "limit_s": limit_s, **theirs}
    row["over_said"] = row["ms"] / row["greedy_said_ms"] - 1
    row["over_played"] = row["ms"] / row["greedy_played_ms"] - 1
    row["over_in_our_model"] = in_ours_ms / row["greedy_in_our_model_ms"] - 1
    return row


def main() -> None:
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument("--program", type=Path, default=Path("greedy"), help="TACOS, built")
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--limit", type=float, default=TIME_LIMIT_S)
    parser.add_argument(
        "--so-far", action="store_true", help="measure nothing: record what there is"
    )
    parser.add_argument("--dry", action="store_true", help="keep and record nothing")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.one[0], float(asked.one[1]), asked.program, asked.limit)))
        return
    kept = Unfinished(NAME, resume=asked.resume) if not asked.dry else None
    there = {(row["network"], row["gradient_bytes"]) for row in kept.rows()} if kept else set()
    for name in asked.cases:
        for size in SIZES:
            if asked.so_far or (name, size) in there:
                continue
            one = [
                "--one",
                name,
                repr(size),
                "--program",
                str(asked.program),
                "--limit",
                str(asked.limit),
            ]
            row = printed_json([sys.executable, __file__, *one])
            show({key: value for key, value in row.items() if key != "greedy_tried"})
            if kept:
                kept.add(row)
    if kept and (asked.so_far or asked.cases == list(CASES)):
        rows = sorted(
            kept.rows(), key=lambda row: (list(CASES).index(row["network"]), row["gradient_bytes"])
        )
        record(NAME, seeds=[SEED], latency_us=LATENCY_US, rows=rows)
        if not asked.so_far:
            kept.end()


if __name__ == "__main__":
    main()
