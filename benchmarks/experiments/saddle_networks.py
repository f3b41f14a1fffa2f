"""Saddle points: error against iterations, bytes, and seconds on three networks.

    python benchmarks/experiments/saddle_networks.py

The problem of `saddle.py`'s messages with 128 + 128 numbers in single precision, 16 workers, of
squared distance 1 at the start; rate 0.1/L. Each method with each way of averaging; messages of 32
bits, and of 4 on the ring.

Seconds are those of communication alone, by `gradweave.simulator` in its model of fairly shared
links. In a communication every worker sends to all its neighbours at once over shortest routes, and
the next iteration begins when the last message has arrived; of sequences that change each step has
its own time. The mean of all is an all-reduce by the schedule that `gradweave.solve` finds for the
network and the message. Computing is not counted: each row says how often the operator is called.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import networkx as nx
import numpy as np

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.experiments.saddle import (
    BITS,
    METHODS,
    RING,
    STRENGTH,
    N,
    clusters,
    in_single_precision,
    lipschitz,
)
from benchmarks.pictures import Picture, figure_with
from gradweave import aggregate, saddle, simulator
from gradweave.aggregate import MixingMatrix
from gradweave.schedules import COPY, Schedule
from gradweave.topology import Topology, shortest_route

SIZE, ITERATIONS, EVERY = 128, 3000, 20
GOALS = (3e-2, 1e-6)
"""Of ‖z̄ − z*‖², which begins at 1."""
SOLVE_SECONDS = 10.0
NETWORKS = {
    "one switch": "star:16,bandwidth=100Gbit/s,latency=1us",
    "torus": "torus:4x4,bandwidth=1Gbit/s,latency=50us",
    "wide area": "ring:16,bandwidth=10Mbit/s,latency=5ms",
}
TORUS = nx.convert_node_labels_to_integers(nx.grid_2d_graph(4, 4, periodic=True))


def matchings() -> MixingMatrix:
    return aggregate.changing_matchings(nx.complete_graph(N), 256)


AVERAGES: dict[str, tuple[Callable[[], MixingMatrix], int]] = {
    "mean of all": (lambda: MixingMatrix.complete(N), 1),
    "torus": (lambda: MixingMatrix.metropolis_hastings(TORUS), 1),
    "ring": (lambda: RING, 1),
    "ring, H = 4": (lambda: RING, 4),
    "four changing clusters": (clusters, 1),
    "changing matchings": (matchings, 1),
}
"""How workers average, and iterations to a communication."""
NAMES = ("extra-gradient, as published", "tracked", "prox-skip")


@functools.cache
def network(name: str) -> Topology:
    return gw.topology.from_spec(NETWORKS[name])


@functools.cache
def route(name: str, source: int, target: int) -> tuple[int, ...]:
    return shortest_route(network(name), source, target)


def gossip_seconds(name: str, weights: np.ndarray, message: int) -> float:
    """Of one communication in which worker i hears all j with W_ij other than 0."""
    servers = network(name).servers.tolist()
    targets, sources = np.nonzero(weights * (1 - np.eye(N)))
    rows = [
        (0, source, COPY, route(name, servers[source], servers[target]))
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True)
    ]
    sent = Schedule.from_rows(network(name), rows, collective="all_gather")
    return simulator.seconds(sent, N * message, "fair")


@functools.cache
def mean_of_all(name: str, message: int) -> tuple[float, float]:
    """Seconds, and bytes that the busiest worker sends, of an all-reduce."""
    found = gw.solve(
        network(name), objective="seconds", gradient_bytes=message, time_limit=SOLVE_SECONDS
    )
    sent = simulator.traffic(found.schedule, message).sent_bytes.max()
    return simulator.seconds(found.schedule, message, "fair"), float(sent)


@functools.cache
def of_steps(name: str, average: str, message: int) -> np.ndarray:
    """[T] seconds of each communication of the period."""
    if average == "mean of all":
        return np.array([mean_of_all(name, message)[0]])
    weights = AVERAGES[average][0]().weights
    return np.array([gossip_seconds(name, step, message) for step in weights])


def until(name: str, average: str, message: int, iterations: np.ndarray) -> np.ndarray:
    """Seconds of communication in the first iterations."""
    steps = of_steps(name, average, message)
    turns = np.resize(steps, iterations.max() // AVERAGES[average][1] + 1)
    ends = np.concatenate([[0.0], np.cumsum(turns)])
    return ends[iterations // AVERAGES[average][1]]


def measure(method: str, average: str, bits: int) -> dict[str, Any]:
    of = in_single_precision(saddle.bilinear(N, SIZE, 0.3, strength=STRENGTH))
    few = aggregate.MaxNorm(bits=BITS, block=None)
    options = {"rule": aggregate.ChocoSGD(0.6), "compressor": few} if bits == BITS else {}
    make, local_steps = AVERAGES[average]
    rate = 0.1 / lipschitz(of)
    solver = saddle.Solver(of, METHODS[method](rate), make(), local_steps=local_steps, **options)
    found = saddle.find_saddle_point(solver, ITERATIONS, every=EVERY, strictness="ignore")
    message, sent = solver.message_bytes, float(found.sent_bytes.max()) / ITERATIONS
    if average == "mean of all":
        sent = mean_of_all("one switch", message)[1]
    return {
        "calls": METHODS[method].calls,
        "message_bytes": message, "bytes_per_iteration": sent,
        "seconds_per_communication": {
            name: float(of_steps(name, average, message).mean()) for name in NETWORKS
        },
        "reached": {str(goal): reached(found.curve, average, message, goal) for goal in GOALS},
        "curve": found.curve.tolist(),
    }  # fmt: skip


def reached(curve: np.ndarray, average: str, message: int, goal: float) -> dict[str, Any] | None:
    """Iterations and seconds to a goal; None where it is not reached."""
    below = np.flatnonzero(curve <= goal)
    if not below.size:
        return None
    iterations = np.array([(below[0] + 1) * EVERY])
    seconds = {name: float(until(name, average, message, iterations)[0]) for name in NETWORKS}
    return {"iterations": int(iterations[0]), "seconds": seconds}


COLOURS = dict(
    zip(
        AVERAGES,
        ("black", "tab:blue", "tab:red", "tab:orange", "tab:green", "tab:purple"),
        strict=True,
    )
)
STYLES = dict(zip(NAMES, (":", "--", "-"), strict=True))


def draw(result: dict[str, Any], path: Path) -> None:
    rows = result["rows"]
    figure, panels = figure_with((15, 4), 1, 5, sharey=True, dpi=130)
    iterations = np.arange(1, ITERATIONS // EVERY + 1) * EVERY
    for row in rows:
        if row["method"] == "tracked":  # in the table
            continue
        sent = iterations * row["bytes_per_iteration"] / 2**20
        along = [iterations, sent]
        along += [
            until(name, row["average"], row["message_bytes"], iterations) for name in NETWORKS
        ]
        label = f"{row['method'].partition(',')[0]}, {row['average']}"
        few = row["bits"] == BITS
        for panel, x in zip(panels, along, strict=True):
            panel.plot(
                x, row["curve"], STYLES[row["method"]], lw=2.2 if few else 1,
                color="tab:pink" if few else COLOURS[row["average"]],
                label=f"{label}, {BITS} bits" if few else label,
            )  # fmt: skip
    names = ["iterations", "MiB sent by the busiest worker", *(f"s, {name}" for name in NETWORKS)]
    for panel, name in zip(panels, names, strict=True):
        panel.set(xlabel=name, xscale="log", yscale="log", ylim=(1e-9, 2))
    panels[0].set_ylabel("‖z̄ − z*‖²")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=7,
        frameon=False,
    )  # fmt: skip
    figure.savefig(path)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    cases = [
        *grid(average=AVERAGES, method=NAMES, bits=[32]),
        *grid(average=["ring"], method=NAMES, bits=[BITS]),
    ]
    run(
        __doc__,
        Rows(cases, measure),
        picture=Picture("saddle_networks", draw),
        libraries=("jax", "jaxlib", "optax"),
        seeds=[0],
        networks=NETWORKS,
        size=SIZE,
        every=EVERY,
        goals=GOALS,
    )
