"""Stock gloo and Open MPI on emulated networks, by name and in the order of `gradweave ranks`.

python benchmarks/experiments/rank_order_lab.py

Needs root, as experiments/lab.py; the load of the last minute is recorded with each network. Three
oversubscribed networks of eight hosts, named in two ways: in turn from one rack after the other,
and by chance, seed 0. Every server is a namespace, and one process in each joins as a launcher
would have it: torch.distributed's own gloo with ranks given, and mpirun of Open MPI with a hostfile
that `gradweave ranks` writes. The libraries choose algorithms themselves. Open MPI is told to yield
when it waits, as it does where processes share cores, and links are slow, since eight processes
that poll share a core here.
"""

import dataclasses
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.experiment import Rows, run
from benchmarks.lab_mpi import PATIENCE_S, mpi_json
from benchmarks.unequal_networks import network
from gradweave.lab.commands import PORT, server_commands
from gradweave.lab.network import EmulatedNetwork
from gradweave.processes.children import Children

MB = 1_000_000
SIZE = MB // 2
REPETITIONS = 3
SEED = 0
"""Of the hosts' names."""

GLOO = """
import json, os, sys, time
import torch
import torch.distributed as dist
orders, size, repetitions, addresses, port = json.loads(sys.argv[1])
server = int(os.environ["RANK"])
for number, order in enumerate(orders):
    rank, where = order.index(server), f"tcp://{addresses[order[0]]}:{port + number}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=len(order))
    data = torch.ones(size // 4)
    dist.all_reduce(torch.ones(1))
    runs = []
    for _ in range(repetitions + 1):
        dist.barrier()
        begun = time.perf_counter()
        dist.all_reduce(data)
        took = torch.tensor([time.perf_counter() - begun])
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        runs.append(took.item())
    if rank == 0:
        print(json.dumps({"order": number, "runs": runs[1:]}), flush=True)
    dist.destroy_process_group()
"""
OPEN_MPI = """
import json, sys, time
import numpy as np
from mpi4py import MPI
size, repetitions = json.loads(sys.argv[1])
world = MPI.COMM_WORLD
data, total = np.ones(size // 4, np.float32), np.empty(size // 4, np.float32)
runs = []
for _ in range(repetitions + 1):
    world.Barrier()
    begun = time.perf_counter()
    world.Allreduce(data, total)
    runs.append(world.allreduce(time.perf_counter() - begun, op=MPI.MAX))
if world.rank == 0:
    print(json.dumps({"runs": runs[1:]}))
"""


def two_racks() -> gw.Topology:
    """Two racks of four hosts, and a trunk of one host's speed."""
    links = [(s, 8 + s // 4, 0.0, 2.5) for s in range(8)]
    return network("two racks of 4, 4:1", 8, 2, [*links, (8, 9, 0.0, 2.5)])


def four_racks() -> gw.Topology:
    """Four racks of two hosts on one core, each with an uplink of half a host's speed."""
    links = [(s, 8 + s // 2, 0.0, 2.5) for s in range(8)]
    up = [(8 + rack, 12, 0.0, 1.25) for rack in range(4)]
    return network("four racks of 2, 4:1", 8, 5, [*links, *up])


def two_pods() -> gw.Topology:
    """Two pods of two racks of two hosts: racks at one host's speed, pods at half of one."""
    links = [(s, 8 + s // 2, 0.0, 2.5) for s in range(8)]
    up = [(8 + rack, 12 + rack // 2, 0.0, 2.5) for rack in range(4)]
    return network(
        "two pods of 2 racks of 2, 2:1 and 4:1", 8, 6, [*links, *up, (12, 13, 0.0, 1.25)]
    )


NETWORKS = (two_racks, four_racks, two_pods)
NAMINGS = {
    "in turn": lambda racks: np.arange(8).reshape(racks, -1).T.ravel(),
    "by chance": lambda racks: np.random.default_rng(SEED).permutation(8),
}
"""Servers in order of their names, given the number of racks; servers are numbered rack by rack."""


def named(topology: gw.Topology, naming: str) -> gw.Topology:
    """The network with its hosts named."""
    racks = len({int(leaf) for leaf in topology.target[: topology.num_servers]})
    names = [""] * 8 + [f"switch{s}" for s in range(len(topology.switches))]
    for number, server in enumerate(NAMINGS[naming](racks).tolist()):
        names[server] = f"host{number}"
    return dataclasses.replace(topology, labels=tuple(names))


def by_name(topology: gw.Topology) -> tuple[int, ...]:
    """Servers in order of their names."""
    return tuple(sorted(topology.servers.tolist(), key=lambda server: topology.labels[server]))


def gloo_runs(lab: EmulatedNetwork, orders: Sequence[Sequence[int]]) -> list[list[float]]:
    """Seconds of each repetition in each order."""
    topology = lab.topology
    addresses = [lab.address(0, server) for server in topology.servers.tolist()]
    given = json.dumps([orders, SIZE, REPETITIONS, addresses, PORT])
    starts = server_commands(lab, [sys.executable, "-c", GLOO, given])
    found: dict[int, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with Children(starts, log) as children:
            while len(found) < len(orders):
                message = children.receive(PATIENCE_S)
                if message is None or message[1] is None:
                    raise SystemExit(log.read_text()[-2000:])
                found[message[1]["order"]] = message[1]["runs"]
    return [found[number] for number in range(len(orders))]


def mpi_runs(lab: EmulatedNetwork, orders: Sequence[Sequence[int]]) -> list[list[float]]:
    """Seconds of each repetition in each order."""
    return [mpi_run(lab, order) for order in orders]


def mpi_run(lab: EmulatedNetwork, order: Sequence[int]) -> list[float]:
    """Seconds of each repetition, by mpirun with the order's hostfile."""
    server_commands(lab, [])  # makes the network forward
    return mpi_json(lab, order, OPEN_MPI, [SIZE, REPETITIONS])["runs"]


def measure(network: gw.Topology) -> dict[str, Any]:
    """One network: both libraries, by either naming and in the order found."""
    topology = network
    load = os.getloadavg()[0]
    kinds = {naming: named(topology, naming) for naming in NAMINGS}
    found = {library: gw.ranks.optimize(topology, library, SIZE) for library in ("gloo", "openmpi")}
    orders = {naming: by_name(kind) for naming, kind in kinds.items()}
    runs: dict[str, dict[str, list[float]]] = {}
    with EmulatedNetwork(topology) as lab:
        for library, one in found.items():
            asked = {**orders, "ordered": one.ranks}
            runner = gloo_runs if library == "gloo" else mpi_runs
            runs[library] = dict(zip(asked, runner(lab, list(asked.values())), strict=True))
    rows = []
    for library, one in found.items():
        ordered_s = statistics.median(runs[library]["ordered"])
        for naming, kind in kinds.items():
            predicted = gw.ranks.optimize(kind, library, SIZE).by_name_s
            named_s = statistics.median(runs[library][naming])
            rows.append(
                {
                    "library": library,
                    "algorithm": one.algorithm,
                    "named": naming,
                    "by_name_runs_s": runs[library][naming],
                    "runs_s": runs[library]["ordered"],
                    "by_name_s": named_s,
                    "seconds": ordered_s,
                    "times_as_fast": named_s / ordered_s,
                    "predicted_by_name_s": predicted,
                    "predicted_s": one.seconds,
                    "bound_s": one.bound.seconds,
                }
            )
            print(topology.name, rows[-1], flush=True)
    return {"load": load, "rows": rows}


if __name__ == "__main__":
    run(
        __doc__,
        Rows(lambda: [{"network": make()} for make in NETWORKS], measure, "networks"),
        libraries=("torch", "mpi4py", "openmpi"),
        gradient_bytes=SIZE,
        repetitions=REPETITIONS,
        seed=SEED,
    )
