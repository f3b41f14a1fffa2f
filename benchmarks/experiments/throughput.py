"""Grown all-gathers of c pieces per server against the optimal throughput, as c grows.

    python benchmarks/experiments/throughput.py

Capacities are the bandwidths in their greatest common unit, so in one round each unit of bandwidth
carries one piece. An all-gather of c pieces per server in T(c) rounds then takes T(c)/c per piece,
whose minimum is 1/x*. Compared are T(c)/c of each seed, the free-tree bound of c pieces over c
(which counts whole rounds and depth), and 1/x*.
"""

import statistics
from fractions import Fraction
from pathlib import Path
from typing import Any

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.pictures import Picture, figure_with
from benchmarks.random_networks import random_network
from gradweave.schedulers import Grown

NETWORKS = {
    "ring 8": gw.topology.from_spec("ring:8"),
    "mesh 4×4": gw.topology.from_spec("mesh:4x4"),
    "mesh 3×3": gw.topology.from_spec("mesh:3x3"),
    "torus 4×4": gw.topology.from_spec("torus:4x4"),
    "hypercube 3": gw.topology.from_spec("hypercube:3"),
    "BCube(3,1)": gw.topology.from_spec("bcube:n=3,k=1"),
    "DCell(4,1)": gw.topology.from_spec("dcell:n=4,k=1"),
    "DGX-1V": gw.topology.from_spec("dgx1v"),
    "MI250, 16 dies": gw.topology.from_spec("mi250"),
    "4 boxes of 8 A100": gw.topology.from_spec("a100:boxes=4"),
    "random, 11 servers": random_network(63),
    "random, 8 servers, 4 switches": random_network(56),
}
PIECES = (1, 2, 4, 8, 16)
SEEDS = (0, 1, 2)


def measure(label: str) -> list[dict[str, Any]]:
    network = NETWORKS[label]
    best = gw.bounds.throughput(network)
    assert all(
        Fraction(bandwidth) == best.unit_bytes_per_s * capacity
        for bandwidth, capacity in zip(
            network.bandwidth_bytes_per_s.tolist(), network.capacity.tolist(), strict=True
        )
    ), "capacities are not bandwidths in their greatest common unit"
    measured = []
    for pieces in PIECES:
        schedules = [
            Grown(pieces_per_server=pieces).schedule(network, collective="all_gather", seed=seed)
            for seed in SEEDS
        ]
        rounds = [schedule.rounds for schedule in schedules]
        assert min(rounds) >= best.time_per_piece * pieces
        bound = gw.bounds.free_trees(network, "all_gather", pieces_per_server=pieces)
        measured.append(
            {
                "topology": network.name,
                "servers": network.num_servers,
                "pieces_per_server": pieces,
                "rounds": rounds,
                "bound": bound.rounds,
                "bound_kind": bound.kind,
                "least_time_per_piece": str(best.time_per_piece),
            }
        )
    return measured


def draw(result: dict[str, Any], path: Path) -> None:
    measured = result["rows"]
    columns = 4
    lines = -(-len(NETWORKS) // columns)
    figure, grid = figure_with((11, 2.5 * lines), lines, columns, squeeze=False)
    grid = grid.ravel()
    for axes, label in zip(grid, NETWORKS, strict=False):
        mine = [row for row in measured if row["label"] == label]
        pieces = [row["pieces_per_server"] for row in mine]
        least = float(Fraction(mine[0]["least_time_per_piece"]))
        bound = [row["bound"] / c for row, c in zip(mine, pieces, strict=True)]
        times = [statistics.median(row["rounds"]) / c for row, c in zip(mine, pieces, strict=True)]
        axes.axhline(least, color="#444444", lw=1, ls="--", label="1/x*, best possible")
        axes.plot(pieces, bound, color="#d95f02", lw=1, marker="_", ms=11, label="bound / c")
        axes.plot(pieces, times, color="#1b6ca8", lw=0, marker="o", ms=5, label="grown: rounds / c")
        axes.set_xscale("log", base=2)
        axes.set_xticks(pieces, [str(c) for c in pieces])
        axes.set_ylim(least * 0.97, max(max(times) * 1.04, least * 1.25))
        axes.set_title(f"{label}: {mine[0]['least_time_per_piece']}", fontsize=9)
        axes.tick_params(labelsize=8)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=9, loc="outside upper center", ncols=3)
    figure.supxlabel("pieces per server, c", fontsize=9)
    figure.supylabel("rounds of an all-gather / c", fontsize=9)
    figure.savefig(path)


if __name__ == "__main__":
    run(
        __doc__,
        Rows(grid(label=NETWORKS), measure),
        warm=lambda: Grown(restarts=1).schedule(gw.topology.ring(4)),
        picture=Picture("throughput", draw),
        seeds=list(SEEDS),
        scheduler=gw.schedulers.to_spec(Grown()),
    )
