"""Boxes of GPUs on rails and on leaf–spine: seconds of an all-reduce beside the certified bound.

    python benchmarks/experiments/boxes_in_seconds.py

`gradweave.solve` with ``objective="seconds"``, its defaults and a time limit of 60 s, beside the
ring of all servers in order of id and `hierarchical` in one chunk and one order, which overlaps
least. A100, H100 and MI250 kinds (`box_networks.py`), 2 to 128 boxes, 16 MB to 10 GB; 16 boxes with
one card at half speed; and 1,024 boxes by `hierarchical` alone. Seconds of the search are processor
time.
"""

import itertools
import resource
from collections.abc import Sequence
from typing import Any

import gradweave as gw
from benchmarks.box_networks import KINDS
from benchmarks.box_networks import boxes as gpus
from benchmarks.experiment import Case, Rows, run
from gradweave.bounds.seconds.least_seconds import latencies
from gradweave.bounds.seconds_bound import seconds_bound
from gradweave.schedulers import Hierarchical, Ring
from gradweave.simulator import seconds
from gradweave.topology import Topology

COUNTS = (2, 8, 32, 128)
SIZES = (1e9, 100e6, 10e9, 16e6)
FABRICS = ("rails", "leaf–spine")
LARGEST = 1024
"""Boxes for which one strategy makes a schedule."""
TIME_LIMIT_S = 60.0
MOST_OF_RING = 256
"""Servers up to which the ring is played: it has as many transfers as their square, twice, and on
leaf–spine many wait for each."""
SEED = 0


def cases() -> list[Case]:
    """Quick and telling ones first, 1,024 boxes last."""

    def of(sizes: Sequence[float]) -> list[Case]:
        return [
            {"kind": kind, "boxes": count, "fabric": fabric, "slow": 1.0, "gradient_bytes": size}
            for count, size, kind, fabric in itertools.product(COUNTS, sizes, KINDS, FABRICS)
        ]

    slow = {"boxes": 16, "fabric": "rails", "slow": 0.5, "gradient_bytes": SIZES[0]}
    largest = {"kind": "A100", "boxes": LARGEST, "fabric": "rails", "gradient_bytes": 1e9}
    slowed = [{"kind": kind} | slow for kind in ("A100", "H100")]
    return [*of(SIZES[:1]), *slowed, *of(SIZES[1:]), largest]


def processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(
    kind: str, boxes: int, fabric: str, gradient_bytes: float, slow: float = 1.0
) -> dict[str, Any]:
    if boxes == LARGEST:
        return largest(kind, boxes, fabric, gradient_bytes)
    network = gpus(kind, boxes, fabric, slow=slow)
    size, begun = gradient_bytes, processor_s()
    solution = gw.solve(
        network,
        objective="seconds",
        gradient_bytes=size,
        seed=SEED,
        time_limit=TIME_LIMIT_S,
    )
    used, timing = processor_s() - begun, solution.timing
    assert timing is not None
    bound = timing.bound
    row = {
        "servers": network.num_servers,
        "ms": 1e3 * timing.seconds,
        "least_ms": 1e3 * bound.seconds,
        "gap": timing.gap,
        "latency": 2 * float(latencies(network).max()) / bound.seconds,
        "winner": solution.scheduler.name,
        "transfers": solution.schedule.num_transfers,
        "seconds": used,
    }
    return row | simple(network, size)


def simple(network: Topology, size: float) -> dict[str, float | None]:
    """Milliseconds of the simplest things."""
    one = Hierarchical(gradient_bytes=size, chunks=1, orders=1).schedule(network, seed=SEED)
    ring = None
    if network.num_servers <= MOST_OF_RING:
        ring = 1e3 * seconds(Ring().schedule(network, seed=SEED), size, "events")
    return {"ring_ms": ring, "one_chunk_ms": 1e3 * seconds(one, size, "events")}


def largest(kind: str, count: int, fabric: str, size: float) -> dict[str, Any]:
    """A schedule, verified."""
    network, begun = gpus(kind, count, fabric), processor_s()
    schedule = Hierarchical(gradient_bytes=size).schedule(network, seed=SEED)
    used, taken = processor_s() - begun, seconds(schedule, size, "events")
    least = seconds_bound(network, "all_reduce", size).seconds
    return {
        "ms": 1e3 * taken, "least_ms": 1e3 * least, "gap": taken / least - 1,
        "transfers": schedule.num_transfers, "seconds": used,
        "seconds_with_timing_and_bound": processor_s() - begun,
    }  # fmt: skip


if __name__ == "__main__":
    run(
        __doc__,
        Rows(cases, measure),
        warm=lambda: measure("A100", 2, "rails", 1e6, 1.0),
        seeds=[SEED],
    )
