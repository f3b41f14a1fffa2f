"""All-gathers and all-to-alls on the machines of TE-CCL, beside its published solutions.

    taskset -c 0 python benchmarks/experiments/te_ccl.py [--resume]

TE-CCL (Liu et al., "Rethinking machine learning collective communication as a multi-commodity flow
problem", SIGCOMM 2024) ships solved files, whose figures benchmarks/peers/te_ccl_published.csv has:
of each instance the fastest of its modes is taken here, with that mode's time of the solver. Its
machines, as its sources have them:

- DGX-2: 16 GPUs on a switch at 125 GB/s, .35 µs a link. Between two, each odd GPU sends to the even
  one below it in the other at 12.5 GB/s, 2.6 µs; nothing goes the other way.
- NDv2: DGX-1's mesh of links of 50 and 25 GB/s, .7 µs. Between several, GPU 1 sends and GPU 0
  receives, at 12.5 GB/s and 1.3 µs.

A size is that of the output: all of what is gathered, or what each GPU sends to all in an
all-to-all. TE-CCL counts time in epochs and rounds messages up to them; here seconds are those of
the event model, in which messages cost nothing beside bytes and latency. `gradweave.solve` has
60 s of one core. A published figure more than 1% below our bound cannot be of the same instance;
within that, epochs have rounded latencies away.
"""

import csv
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from command_line import parser_of
from record import record, show
from timing import timed
from unfinished import Unfinished

import gradweave as gw
from gradweave.schedule import Job

COMMAND = "taskset -c 0 python benchmarks/experiments/te_ccl.py"
PUBLISHED = Path(__file__).parents[1] / "peers" / "te_ccl_published.csv"
SIZES = {"1KB": 10**3, "64KB": 64 * 10**3, "1MB": 10**6, "16MB": 16 * 10**6, "1GB": 10**9}
TIME_LIMIT_S = 60.0
GB, US = 1e9, 1e-6
NEVER = 1e3
"""Bytes per second of a link that TE-CCL has in one direction only, in the other."""
NAMES = {"AllGather": "all_gather", "AlltoAll": "all_to_all"}


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


def dgx2(chassis: int) -> Machine:
    gpus = 16 * chassis
    made = Machine(gpus, chassis)
    for gpu in range(gpus):
        made.link(gpu, gpus + gpu // 16, (125 * GB, 125 * GB), 0.35 * US)
    for sends in range(1, gpus, 2):
        made.link(sends, (sends - 1 + 16) % gpus, (12.5 * GB, NEVER), 2.6 * US)
    return made


def ndv2(chassis: int) -> Machine:
    box, gpus = gw.topology.dgx1v(), 8 * chassis
    made = Machine(gpus, 1)
    most = box.bandwidth_bytes_per_s.max()
    ends = zip(box.source.tolist(), box.target.tolist(), box.bandwidth_bytes_per_s, strict=True)
    for source, target, bandwidth in ends:
        rate = (50 if bandwidth == most else 25) * GB
        for first in range(0, gpus, 8):
            if source < target:
                made.link(first + source, first + target, (rate, rate), 0.7 * US)
    for first in range(0, gpus, 8):
        made.link(first + 1, gpus, (12.5 * GB, NEVER), 0.65 * US)
        made.link(first, gpus, (NEVER, 12.5 * GB), 0.65 * US)
    return made


MACHINES = {"DGX2": dgx2, "NDv2": ndv2}


def published() -> dict[tuple[str, int, str, str], dict[str, Any]]:
    """The fastest of its modes, by machine, chassis, collective and size."""
    best: dict[tuple[str, int, str, str], dict[str, Any]] = {}
    with PUBLISHED.open() as file:
        for row in csv.DictReader(file):
            key = row["topology"], int(row["chassis"][0]), row["collective"], row["size"]
            found = {
                "published_s": float(row["finish_s"]),
                "published_solver_s": float(row["solver_s"]),
                "published_demands": row["demands_listed"] or None,
            }
            if key not in best or found["published_s"] < best[key]["published_s"]:
                best[key] = found
    return best


def measure(topology: gw.Topology, name: str, size: int) -> dict[str, Any]:
    took, found = timed(
        lambda: gw.solve(topology, jobs=[Job(name, size)], time_limit=TIME_LIMIT_S),
        time.process_time,
    )
    return {
        "seconds": found.seconds,
        "bound_s": found.bound.seconds,
        "gap": found.gap,
        "why": found.bound.reason(),
        "found_by": found.strategy.name,
        "pieces": found.schedule.pieces,
        "processor_s": took,
    }


def main() -> None:
    asked = parser_of(__doc__, resumes=True).parse_args()
    kept = Unfinished("te_ccl", COMMAND, resume=asked.resume)
    done = {(row["machine"], row["chassis"], row["collective"], row["size"]) for row in kept.rows()}
    for key, theirs in published().items():
        machine, chassis, collective, size = key
        if key in done or size not in SIZES:
            continue
        topology = MACHINES[machine](chassis).topology(f"{machine}, {chassis} chassis")
        row: dict[str, Any] = dict(
            zip(("machine", "chassis", "collective", "size"), key, strict=True)
        )
        row |= {"gpus": topology.num_servers, **theirs}
        row |= measure(topology, NAMES[collective], SIZES[size])
        row["published_over_bound"] = row["published_s"] / row["bound_s"]
        row["over_published"] = row["seconds"] / row["published_s"]
        kept.add(row)
        show(row)
    record("te_ccl", COMMAND, time_limit_s=TIME_LIMIT_S, rows=kept.rows())
    kept.end()


if __name__ == "__main__":
    main()
