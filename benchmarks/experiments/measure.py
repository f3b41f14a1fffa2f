"""`gradweave topology measure` on emulated networks, against the truth that the lab set.

python benchmarks/experiments/measure.py

Needs root, as experiments/lab.py; the load of the last minute is recorded with each network. Twelve
servers each: the command runs in their namespaces as torchrun would start it. What it wrote is
compared with the truth: each link where both have it; the rates of every pair alone and of all
pairs of a tournament at once, shared fairly, on either; and the schedule with the least seconds for
16 MB made from either, both played on the truth. The truth has the measured overhead of a message,
which the lab does not set. With ``--lab`` both schedules are run in the lab too.

What is done is kept in a file beside the results until all is; ``--resume`` goes on with it.
"""

import argparse
import dataclasses
import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.record import record, show
from benchmarks.unequal_networks import network
from benchmarks.unfinished import Unfinished
from gradweave.lab.commands import server_commands
from gradweave.lab.network import EmulatedNetwork
from gradweave.probe.traffic import Flow, tournament
from gradweave.processes.children import Children
from gradweave.schedulers.ordering.lower import earliest_rounds
from gradweave.topology.capacity import capacities_from_bandwidths

MB = 1_000_000
SIZE = 16 * MB
REPETITIONS = 3
PATIENCE_S = 300
TOURNAMENT = 7
"""Seed of the rounds by which rates are compared; the measurement's own have others."""


def star() -> gw.Topology:
    """Twelve servers on a switch, one at a half and one at a quarter."""
    slow = {3: 50.0, 7: 25.0}
    return network(
        "star of 12, two slow", 12, 1, [(s, 12, 0.0, slow.get(s, 100.0)) for s in range(12)]
    )


def two_racks() -> gw.Topology:
    """Two racks of six behind a trunk of two servers' speed."""
    links = [(s, 12 + s // 6, 0.0, 80.0) for s in range(12)]
    return network("two racks of 6, trunk 3:1", 12, 2, [*links, (12, 13, 0.0, 160.0)])


def four_racks() -> gw.Topology:
    """Four racks of three, each with an uplink of one and a half servers' speed to a core."""
    links = [(s, 12 + s // 3, 0.0, 80.0) for s in range(12)]
    up = [(12 + rack, 16, 0.0, 120.0 if rack else 60.0) for rack in range(4)]
    return network("four racks of 3, one uplink at half", 12, 5, [*links, *up])


def three_sites() -> gw.Topology:
    """Three sites of four servers, each two with a link of their own, 5 to 15 ms long."""
    links = [(s, 12 + s // 4, 0.0, 60.0) for s in range(12)]
    between = [(12, 13, 5.0, 50.0), (12, 14, 15.0, 20.0), (13, 14, 10.0, 30.0)]
    return network("three sites of 4, 5–15 ms", 12, 3, [*links, *between])


NETWORKS = (star, two_racks, four_racks, three_sites)


def measured(truth: gw.Topology) -> tuple[gw.Topology, dict[str, Any], float]:
    """What the command wrote, what it says of how, and its wall time."""
    with tempfile.TemporaryDirectory() as folder:
        output, log = Path(folder, "net.json"), Path(folder, "log")
        command = [sys.executable, "-m", "gradweave", "topology", "measure", str(output)]
        with EmulatedNetwork(truth, log=Path(folder, "delays")) as lab:
            begun = time.monotonic()
            with Children(server_commands(lab, command), log) as children:
                for process in children.processes:
                    if process.wait(PATIENCE_S):
                        raise SystemExit(log.read_text()[-2000:])
            took = time.monotonic() - begun
        how = json.loads(output.read_text())["graph"]["measured"]
        return dataclasses.replace(gw.topology.read(output), name="measured"), how, took


def fair(topology: gw.Topology, flows: Sequence[Flow]) -> np.ndarray:
    """[flows] max–min fair rates by progressive filling, on shortest routes."""
    routes = [gw.topology.shortest_route(topology, *flow) for flow in flows]
    links = [topology.find_links(route[:-1], route[1:]) for route in routes]
    left, rates = topology.bandwidth_bytes_per_s.copy(), np.zeros(len(flows))
    growing = set(range(len(flows)))
    while growing:
        users = np.zeros(len(left))
        for flow in growing:
            users[links[flow]] += 1
        share = np.where(users > 0, left / np.maximum(users, 1), np.inf)
        rates[list(growing)] += share.min()
        left -= users * share.min()
        full = share <= share.min() * (1 + 1e-9)
        growing = {flow for flow in growing if not full[links[flow]].any()}
    return rates


def errors(truth: gw.Topology, found: gw.Topology, loads: Sequence[Sequence[Flow]]) -> list[float]:
    """Of each flow's rate, as a fraction of the truth's."""
    return [
        float(error)
        for load in loads
        for error in np.abs(fair(found, load) / fair(truth, load) - 1)
    ]


def groups(topology: gw.Topology) -> set[frozenset[int]]:
    """Servers that share each switch of some."""
    shared: dict[int, set[int]] = {}
    for a, b in zip(topology.source.tolist(), topology.target.tolist(), strict=True):
        if topology.is_server[a] and not topology.is_server[b]:
            shared.setdefault(b, set()).add(a)
    return {frozenset(some) for some in shared.values()}


def link_errors(truth: gw.Topology, found: gw.Topology) -> list[float]:
    """Of each link's bandwidth, where both have a link between the same servers or groups."""

    def by_ends(topology: gw.Topology) -> dict[tuple[frozenset[int], frozenset[int]], float]:
        beside: dict[int, frozenset[int]] = {
            int(node): frozenset(
                int(other)
                for other in topology.source[topology.target == node]
                if topology.is_server[other]
            )
            for node in topology.switches
        }
        beside |= {int(node): frozenset([int(node)]) for node in topology.servers}
        ends = zip(topology.source.tolist(), topology.target.tolist(), strict=True)
        rates = topology.bandwidth_bytes_per_s.tolist()
        return {(beside[a], beside[b]): rate for (a, b), rate in zip(ends, rates, strict=True)}

    known, got = by_ends(truth), by_ends(found)
    return [abs(got[ends] / known[ends] - 1) for ends in known.keys() & got.keys()]


def on(truth: gw.Topology, schedule: gw.Schedule) -> gw.Schedule:
    """The same transfers by the truth's shortest routes.

    In the same rounds, where its links have lanes for those; else one a link and round.
    """
    ends = list(zip(schedule.source.tolist(), schedule.target.tolist(), strict=True))
    known = {pair: gw.topology.shortest_route(truth, *pair) for pair in set(ends)}
    routes = [known[pair] for pair in ends]
    there = schedule.replace(
        topology=truth,
        route_nodes=np.concatenate(routes),
        route_offsets=np.cumsum([0, *map(len, routes)]),
    )
    return there if gw.verify(there).valid else there.replace(round=earliest_rounds(there))


def chosen(topology: gw.Topology) -> gw.Schedule:
    solution = gw.solve(topology, objective="seconds", gradient_bytes=SIZE, time_limit=15)
    return solution.schedule


def in_lab(truth: gw.Topology, schedules: dict[str, gw.Schedule]) -> dict[str, float]:
    """Median seconds of each schedule in the lab."""
    from gradweave.lab.measure import laboratory

    with laboratory(truth) as lab:
        return {
            name: lab.measure(name, schedule, SIZE, REPETITIONS, lambda _: None).measured_s
            for name, schedule in schedules.items()
        }


def row(truth: gw.Topology, lab: bool) -> dict[str, Any]:
    """One network."""
    load = os.getloadavg()[0]
    lanes = capacities_from_bandwidths(truth.bandwidth_bytes_per_s, truth.name, rounded=True)
    truth = dataclasses.replace(truth, capacity=lanes)  # as a measured file's
    found, how, took = measured(truth)
    servers = range(truth.num_servers)
    alone = [[pair] for pair in itertools.permutations(servers, 2)]
    rounds = [
        [flow for a, b in pairs for flow in ((a, b), (b, a))]
        for pairs in tournament(truth.num_servers, TOURNAMENT)
    ]
    dear = dataclasses.replace(
        truth, overhead_s=np.full(len(truth.source), float(found.overhead_s[0]))
    )
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        by_truth, by_found = pool.map(chosen, (dear, found))
    by_found = on(dear, by_found)
    seconds = [gw.simulator.seconds(schedule, SIZE, "events") for schedule in (by_truth, by_found)]
    links = link_errors(truth, found)
    result = {
        "network": truth.name,
        "load": load,
        "command_s": took,
        "measured_s": how["seconds"],
        "steps": how["steps"],
        "groups": len(groups(truth)),
        "groups_found": len(groups(truth) & groups(found)),
        "links": len(truth.source),
        "links_found": len(links),
        "worst_link_error": max(links, default=None),
        "pairs_alone": _summary(errors(truth, found, alone)),
        "pairs_together": _summary(errors(truth, found, rounds)),
        "overhead_s": float(found.overhead_s[0]),
        "schedule_of_truth_s": seconds[0],
        "schedule_of_measured_s": seconds[1],
        "least_s": gw.bounds.least_seconds(dear, SIZE).seconds,
    }
    if lab:
        runs = in_lab(truth, {"truth": by_truth, "measured": by_found})
        result |= {"lab_truth_s": runs["truth"], "lab_measured_s": runs["measured"]}
    return result


def _summary(values: Sequence[float]) -> dict[str, float]:
    return {"median": float(np.median(values)), "worst": max(values)}


def main() -> None:
    """Measures what is not kept yet, and records when all is."""
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument("--lab", action="store_true", help="run both schedules in the lab, too")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--finish", action="store_true", help="record what an ended run kept")
    asked = parser.parse_args()
    command = "python benchmarks/experiments/measure.py" + " --lab" * asked.lab
    goes_on = asked.resume or asked.finish or asked.one is not None
    kept = Unfinished("measure", command, resume=goes_on, libraries=("torch",))
    for number, make in enumerate(NETWORKS):
        truth = make()
        if asked.finish or any(one["network"] == truth.name for one in kept.rows()):
            continue
        if asked.one is None:  # a fresh process has none of the last one's threads
            again = [sys.executable, __file__, "--one", str(number), *["--lab"] * asked.lab]
            subprocess.run(again, check=True)
        elif asked.one == number:
            done = row(truth, asked.lab)
            kept.add(done)
            show(done)
    if asked.one is None:
        record("measure", command, libraries=("torch",), gradient_bytes=SIZE, rows=kept.rows())
        kept.end()


if __name__ == "__main__":
    main()
