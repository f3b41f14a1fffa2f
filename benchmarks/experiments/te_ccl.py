"""All-gathers and all-to-alls on the machines of TE-CCL, beside its published solutions.

    taskset -c 0 python benchmarks/experiments/te_ccl.py

TE-CCL (Liu et al., "Rethinking machine learning collective communication as a multi-commodity flow
problem", SIGCOMM 2024) ships solved files, whose figures benchmarks/peers/te_ccl_published.csv has:
of each instance the fastest of its modes is taken here, with that mode's time of the solver. Its
machines, as `teccl/topologies` of its repository has them:

- DGX-1: 8 GPUs joined by links of 50 and 25 GB/s, here with the .7 µs that NDv2 has for them. No
  solved file.
- DGX-2: 16 GPUs on a switch at 125 GB/s, .35 µs a link. Between two, each odd GPU sends to the even
  one below it in the other at 12.5 GB/s, 2.6 µs; nothing goes the other way.
- NDv2: DGX-1's mesh of links of 50 and 25 GB/s, .7 µs. Between several, each box's GPU 0 sends and
  its GPU 1 receives (the matrices there have a column for each sender), at 12.5 GB/s and 1.3 µs:
  between two by a link each way, between four by a switch. Its sources take node 0 for a switch. Of
  four chassis it is; of two that is GPU 0: its solved files have 15 GPUs. Both are here, `NDv2`
  with 16 and `NDv2 as solved` with those 15.
- Mesh: 4 × 4 and 6 × 6 GPUs at 100 GB/s, no latency; neighbours are those whose numbers differ by 1
  or by a row's length, the last of a row and the first of the next, too. 100 GB from each GPU.

Its two machines "Internal" are proprietary, and removed from its repository.

A size is that of the output: all of what is gathered, or what each GPU sends to all in an
all-to-all. TE-CCL counts time in epochs and rounds messages up to them; switches copy; what leaves
a switch takes no time. Here seconds are those of the event model, in which messages cost nothing
beside bytes and latency. `gradweave.solve` has 20 s of processor time, after compilation. A
published figure more than 1% below our bound cannot be of the same instance; within that, epochs
have rounded latencies away.
"""

import csv
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.experiment import Rows, run
from benchmarks.timing import timed
from gradweave.schedules import Job

PUBLISHED = Path(__file__).parents[1] / "peers" / "te_ccl_published.csv"
SIZES = {"1KB": 10**3, "64KB": 64 * 10**3, "1MB": 10**6, "16MB": 16 * 10**6, "1GB": 10**9}
TIME_LIMIT_S = 20.0
GB, US = 1e9, 1e-6
NEVER = 1e3
"""Bytes per second of a link that TE-CCL has in one direction only, in the other."""
NAMES = {"AllGather": "all_gather", "AlltoAll": "all_to_all"}
MESHES = {4: (8.0, 1.36), 6: (18.0, 28.8)}
"""By the side, seconds of the solved file (`teccl/examples/schedules`), and of its solver."""
MESH_BYTES = 10**11


class Machine:
    """Link directions, one after the other."""

    def __init__(self, gpus: int, switches: int) -> None:
        self.is_server = [True] * gpus + [False] * switches
        self.links: list[tuple[int, int, float, float]] = []

    def link(self, one: int, other: int, rates: tuple[float, float], latency: float) -> None:
        """Both directions: bytes per second from one to the other, and back."""
        self.links += [(one, other, rates[0], latency), (other, one, rates[1], latency)]

    def topology(self, name: str) -> gw.Topology:
        source, target, rate, latency = zip(*self.links, strict=True)
        return gw.Topology(
            name=name,
            is_server=np.array(self.is_server),
            source=np.array(source),
            target=np.array(target),
            bandwidth_bytes_per_s=np.array(rate),
            latency_s=np.array(latency),
            capacity=np.ones(len(source), np.int64),
            overhead_s=np.zeros(len(source)),
        )


def dgx1(chassis: int) -> Machine:
    made = Machine(8 * chassis, 0)
    _join_boxes(made, chassis)
    return made


def dgx2(chassis: int) -> Machine:
    gpus = 16 * chassis
    made = Machine(gpus, chassis)
    for gpu in range(gpus):
        made.link(gpu, gpus + gpu // 16, (125 * GB, 125 * GB), 0.35 * US)
    for sends in range(1, gpus, 2):
        made.link(sends, (sends - 1 + 16) % gpus, (12.5 * GB, NEVER), 2.6 * US)
    return made


def ndv2(chassis: int) -> Machine:
    if chassis != 2:
        return ndv2_by_switch(chassis)
    made = Machine(16, 0)
    _join_boxes(made, chassis)
    for sends, receives in ((0, 9), (8, 1)):
        made.link(sends, receives, (12.5 * GB, NEVER), 1.3 * US)
    return made


def ndv2_by_switch(chassis: int) -> Machine:
    gpus = 8 * chassis
    made = Machine(gpus, 1)
    _join_boxes(made, chassis)
    for first in range(0, gpus, 8):
        made.link(first, gpus, (12.5 * GB, NEVER), 0.65 * US)
        made.link(first + 1, gpus, (NEVER, 12.5 * GB), 0.65 * US)
    return made


def ndv2_as_solved(chassis: int) -> Machine:
    made = ndv2(chassis)
    made.is_server[0] = False
    return made


def _join_boxes(made: Machine, chassis: int) -> None:
    """The links within each box of 8 GPUs."""
    box = gw.topology.gpu_boxes("dgx1v")
    most = box.bandwidth_bytes_per_s.max()
    ends = zip(box.source.tolist(), box.target.tolist(), box.bandwidth_bytes_per_s, strict=True)
    for source, target, bandwidth in ends:
        rate = (50 if bandwidth == most else 25) * GB
        for first in range(0, 8 * chassis, 8):
            if source < target:
                made.link(first + source, first + target, (rate, rate), 0.7 * US)


def mesh(side: int) -> Machine:
    gpus = side * side
    made = Machine(gpus, 0)
    for gpu in range(gpus):
        for other in (gpu + 1, gpu + side):
            if other < gpus:
                made.link(gpu, other, (100 * GB, 100 * GB), 0.0)
    return made


MACHINES = {"DGX1": dgx1, "DGX2": dgx2, "NDv2": ndv2, "NDv2 as solved": ndv2_as_solved}


@dataclasses.dataclass(frozen=True)
class Instance:
    """One collective on one machine."""

    machine: str
    chassis: int
    collective: str
    size: str
    topology: gw.Topology
    job: Job
    theirs: dict[str, Any]
    """What is published of it."""

    @property
    def case(self) -> dict[str, Any]:
        names = ("machine", "chassis", "collective", "size")
        return {name: getattr(self, name) for name in names}


def published() -> dict[tuple[str, int, str, str], dict[str, Any]]:
    """The fastest of its modes, by machine, chassis, collective and size."""
    best: dict[tuple[str, int, str, str], dict[str, Any]] = {}
    with PUBLISHED.open() as file:
        for row in csv.DictReader(file):
            key = row["topology"], int(row["chassis"][0]), row["collective"], row["size"]
            found = of_published(float(row["finish_s"]), float(row["solver_s"]))
            if key not in best or found["published_s"] < best[key]["published_s"]:
                best[key] = found
    return best


def of_published(seconds: float | None, solver_s: float | None) -> dict[str, Any]:
    return {"published_s": seconds, "published_solver_s": solver_s}


def instances() -> Iterator[Instance]:
    """All that are published, and DGX-1's."""
    keys = published()
    keys |= {("DGX1", 1, one, size): of_published(None, None) for one in NAMES for size in SIZES}
    for (machine, chassis, collective, size), theirs in keys.items():
        if size in SIZES:
            yield instance(machine, chassis, collective, size, theirs)
            if (machine, chassis) == ("NDv2", 2):
                yield instance("NDv2 as solved", chassis, collective, size, theirs)
    for side, theirs in MESHES.items():
        name, job = f"Mesh {side}×{side}", Job("all_gather", MESH_BYTES * side * side)
        topology, known = mesh(side).topology(name), of_published(*theirs)
        yield Instance(name, 1, "AllGather", "100GB each", topology, job, known)


def instance(
    machine: str, chassis: int, collective: str, size: str, theirs: dict[str, Any]
) -> Instance:
    """Of one size; each GPU has an even part of it, whether all GPUs take part or not."""
    made = MACHINES[machine](chassis)
    topology = made.topology(f"{machine}, {chassis} chassis")
    parts = (16 if machine == "DGX2" else 8) * chassis
    moved = round(SIZES[size] * topology.num_servers / parts)
    job = Job(NAMES[collective], moved)
    return Instance(machine, chassis, collective, size, topology, job, theirs)


def warm() -> None:
    for name in NAMES.values():
        gw.solve(gw.topology.from_spec("star:4"), jobs=Job(name, 10**6))


def measure(**case: Any) -> dict[str, Any]:
    one = next(one for one in instances() if one.case == case)
    row = {"gpus": one.topology.num_servers, **one.theirs} | found(one.topology, one.job)
    if one.theirs["published_s"] is not None:
        row["published_over_bound"] = row["published_s"] / row["bound_s"]
        row["over_published"] = row["seconds"] / row["published_s"]
    return row


def found(topology: gw.Topology, job: Job) -> dict[str, Any]:
    took, found = timed(
        lambda: gw.solve(topology, jobs=[job], time_limit=TIME_LIMIT_S), time.process_time
    )
    return {
        "seconds": found.seconds,
        "bound_s": found.bound.seconds,
        "gap": found.gap,
        "why": found.bound.reason(),
        "found_by": found.scheduler.name,
        "pieces": found.schedule.pieces,
        "processor_s": took,
    }


if __name__ == "__main__":
    run(
        __doc__,
        Rows(lambda: [one.case for one in instances()], measure),
        warm=warm,
        processor_time=True,
        time_limit_s=TIME_LIMIT_S,
    )
