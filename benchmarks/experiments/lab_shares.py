"""Shares of the gradient on emulated unequal networks: measured, predicted, and beside gloo.

python benchmarks/experiments/lab_shares.py

Needs root and an otherwise idle machine, as experiments/lab.py: a network is measured only while
the load of the last minute is below 1.5, and the load is recorded with it.

Schedules are chosen for what a message costs here, by all strategies, and by those alone whose
pieces are of one size with as many for each server. That cost was measured with two processes
(benchmarks/results/message_cost.json); here all servers share the cores.
"""

import dataclasses
import os
import sys
from collections.abc import Iterator
from typing import Any

import gradweave as gw
from benchmarks.experiment import Rows, run
from benchmarks.experiments.lab_delays import MB, measured
from benchmarks.record import load
from benchmarks.unequal_networks import network, wide_areas
from gradweave.schedulers.solving.portfolio import FOR_SECONDS

QUIET = 1.5
"""Load of the last minute above which nothing is measured."""
SIZE = 16 * MB
REPETITIONS = {SIZE: 3}
WIDE_AREA_RATE = 1 / 40
"""Of the published bandwidths, so that the delay line carries all links at once."""


def slow_star(part: float) -> gw.Topology:
    """Eight servers on a switch, the first at a part of 100 Mbit/s."""
    links = [(s, 8, 0.0, 100.0 * (1 if s else part)) for s in range(8)]
    return network(f"star of 8, one server at {part:g}", 8, 1, links)


def two_racks() -> gw.Topology:
    """Two racks of four servers, and a trunk of less than one server's speed between them."""
    links = [(s, 8 + s // 4, 0.0, 100.0) for s in range(8)]
    return network("two racks of 4, trunk at 0.6", 8, 2, [*links, (8, 9, 0.0, 60.0)])


def six_cities() -> gw.Topology:
    """The published table of six cities, in a fortieth of its bandwidths."""
    cities = next(one for one in wide_areas() if one.name == "six cities")
    rates = cities.bandwidth_bytes_per_s * WIDE_AREA_RATE
    return dataclasses.replace(cities, bandwidth_bytes_per_s=rates)


def slow_ring() -> gw.Topology:
    """A ring of eight servers with one link at a quarter of its speed."""
    links = [(s, (s + 1) % 8, 0.0, 100.0 * (0.25 if s == 2 else 1)) for s in range(8)]
    return network("ring of 8, one link at 0.25", 8, 0, links)


def graph() -> gw.Topology:
    """Eight servers, thirteen links of 10 to 100 Mbit/s."""
    links = [
        *((0, 1, 10), (0, 4, 16), (0, 5, 80), (1, 2, 50), (1, 6, 100), (2, 3, 25), (2, 7, 63)),
        *((3, 4, 40), (3, 5, 100), (4, 6, 32), (5, 7, 20), (6, 7, 40), (1, 3, 13)),
    ]
    name = "graph of 8, links over a decade"
    return network(name, 8, 0, [(a, b, 0.0, float(rate)) for a, b, rate in links])


NETWORKS = (
    *(lambda part=part: slow_star(part) for part in (0.5, 0.25)),
    two_racks,
    six_cities,
    slow_ring,
    graph,
)


def contenders(topology: gw.Topology) -> Iterator[tuple[str, gw.Schedule | None, int]]:
    """Names, schedules and sizes; overheads count in the choice alone, the lab measures its own."""
    alone = load("message_cost")["own"]["gloo"]["overhead_s"]
    cost = alone * max(topology.num_servers / (os.cpu_count() or 1), 1)
    dear = dataclasses.replace(topology, overhead_s=topology.overhead_s * 0 + cost)
    alike = [one for one in FOR_SECONDS if not one.traits.own_pieces]
    for name, schedulers in (("with shares", None), ("equal pieces", alike)):
        solution = gw.solve(
            dear, objective="seconds", gradient_bytes=SIZE, schedulers=schedulers, time_limit=60
        )
        yield name, solution.schedule.replace(topology=topology), SIZE
    yield "gloo", None, SIZE


def measure(network: gw.Topology) -> dict[str, Any]:
    """One network: its emulation, rows, bound, and the load at which it was measured."""
    topology, load = network, os.getloadavg()[0]
    if load > QUIET:
        sys.exit(f"{topology.name}: the load is {load:.2f}, more than {QUIET:g}")
    schedules = list(contenders(topology))
    emulated, rows = measured(topology, schedules, REPETITIONS)
    return {
        "load": load,
        "bound_s": gw.bounds.least_seconds(topology, SIZE).seconds,
        "emulated": emulated,
        "rows": rows,
    }


if __name__ == "__main__":
    run(
        __doc__,
        Rows(lambda: [{"network": make()} for make in NETWORKS], measure, "networks"),
        gradient_bytes=SIZE,
    )
