"""All-reduces on ten networks of random bandwidths, beside those of a public greedy synthesizer.

    python benchmarks/experiments/greedy_synthesizer.py

The synthesizer is TACOS (Won et al., "TACOS: topology-aware collective algorithm synthesizer for
distributed machine learning", MICRO 2024), built as benchmarks/peers/greedy_synthesizer.cpp says.
It is run with 1 to 16 chunks a server and several seeds of each, the best taken; an all-reduce is
its all-gather reversed, then its all-gather. `gradweave.solve` has ``objective="seconds"``, its
defaults and a time limit of 5 s of processor time. Both schedule for the synthesizer's model, in
which a message holds its link for 1 µs and then its bytes; both schedules are played in ours too,
in which it arrives 1 µs later still. Where the synthesizer's replacement of a chunk that came by
another link has it send what its source did not have yet, playing it takes longer than it says.
"""

import dataclasses
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.solutions import figures, solved
from gradweave.common import clock
from gradweave.schedules import COPY, Schedule, compose, reverse
from gradweave.simulator import seconds
from gradweave.topology import Topology
from gradweave.verifier import verify

GIB, MIB = 2.0**30, 2.0**20
SIZES = (64 * MIB, GIB)
LATENCY_US = 1.0
SEEDS_OF_CHUNKS = {1: 20, 2: 10, 4: 5, 8: 2, 16: 1}
"""Its time grows with the square of the chunks: so many runs of each take about as long."""
TIME_LIMIT_S = 5.0
PROGRAM = Path("greedy").resolve()
"""The compiled synthesizer, in the folder in which the experiment starts."""
SEED = 0


def lattice(*sizes: int, periodic: bool) -> nx.Graph:
    return nx.grid_graph(sizes, periodic=periodic)


def drawn(servers: int, degree: int) -> nx.Graph:
    return nx.random_regular_graph(degree, servers, seed=33)


TWO, THREE, DECADE = (25, 50), (25, 50, 100), (10, 100)
CASES: dict[str, tuple[Callable[[], nx.Graph], tuple[int, ...]]] = {
    "torus 4x5": (lambda: lattice(4, 5, periodic=True), TWO),
    "torus 5x6": (lambda: lattice(5, 6, periodic=True), THREE),
    "torus 3x3x3": (lambda: lattice(3, 3, 3, periodic=True), DECADE),
    "mesh 4x6": (lambda: lattice(4, 6, periodic=False), TWO),
    "mesh 5x6": (lambda: lattice(5, 6, periodic=False), THREE),
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


def synthesized(topology: Topology, size: float, chunks: int) -> tuple[float, np.ndarray]:
    """[s] of the best all-gather by its own account, and [T, 5] its arrivals, as it prints them."""
    rate = (topology.bandwidth_bytes_per_s / GIB).tolist()
    links = zip(topology.source.tolist(), topology.target.tolist(), rate, strict=True)
    said = [f"{topology.num_servers} {len(topology.source)}"]
    said += [f"{source} {target} {each!r} {LATENCY_US}" for source, target, each in links]
    command = [str(PROGRAM), repr(size), str(chunks), str(SEEDS_OF_CHUNKS[chunks]), "0"]
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


def greedy(topology: Topology, size: float) -> dict[str, Any]:
    """The synthesizer's best, by its own account and played in both models."""
    ours, tried = in_our_model(topology), []
    for chunks in SEEDS_OF_CHUNKS:
        gather_s, arrivals = synthesized(topology, size, chunks)
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


def warm() -> None:
    for one in ("mesh:2x3", case("random graph of 12")):
        gw.solve(one, objective="seconds", gradient_bytes=1e6, time_limit=0.5)


def measure(network: str, gradient_bytes: float) -> dict[str, Any]:
    topology, size = case(network), gradient_bytes
    theirs = greedy(topology, size)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    theirs["greedy_s"] = used.ru_utime + used.ru_stime
    used_s, solution = solved(
        topology,
        clock.now,
        objective="seconds",
        gradient_bytes=size,
        seed=SEED,
        time_limit=TIME_LIMIT_S,
    )
    played = solution.schedule.replace(topology=in_our_model(topology))
    in_ours_ms = 1e3 * seconds(played, size, "events")
    names = ("servers", "ms", "least_ms", "gap", "winner", "pieces")
    row = {**figures(solution, *names), "in_our_model_ms": in_ours_ms}
    row |= {"seconds": used_s, "limit_s": TIME_LIMIT_S, **theirs}
    row["over_said"] = row["ms"] / row["greedy_said_ms"] - 1
    row["over_played"] = row["ms"] / row["greedy_played_ms"] - 1
    row["over_in_our_model"] = in_ours_ms / row["greedy_in_our_model_ms"] - 1
    return row


if __name__ == "__main__":
    run(
        __doc__,
        Rows(grid(network=CASES, gradient_bytes=SIZES), measure),
        warm=warm,
        alone=True,
        processor_time=True,
        seeds=[SEED],
        latency_us=LATENCY_US,
    )
