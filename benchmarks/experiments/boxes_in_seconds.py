"""Boxes of GPUs on rails and on leaf–spine: seconds of an all-reduce beside the certified bound.

    python benchmarks/experiments/boxes_in_seconds.py [--minutes M] [--resume] [--kinds K …]

`gradweave.solve` with ``objective="seconds"``, its defaults and a time limit of 60 s, beside the
ring of all servers in order of id and `hierarchical` in one chunk and one order, which overlaps
least. A100, H100 and MI250 kinds (`box_networks.py`), 2 to 128 boxes, 16 MB to 10 GB; 16 boxes with
one card at half speed; and 1,024 boxes by `hierarchical` alone. Seconds of the search are processor
time. Each row is kept as soon as it is measured; `--resume` measures those that are not there, and
`--minutes` ends before all are, with those that there are recorded.
"""

import resource
import time
from collections.abc import Iterator
from typing import Any

import gradweave as gw
from benchmarks.box_networks import KINDS, boxes
from benchmarks.command_line import parser_of
from benchmarks.record import record
from benchmarks.unfinished import Unfinished
from gradweave.bounds.seconds.least_seconds import latencies
from gradweave.bounds.seconds_bound import seconds_bound
from gradweave.schedulers import Hierarchical, Ring
from gradweave.simulator import seconds
from gradweave.topology import Topology

NAME = "boxes_in_seconds"
COUNTS = (2, 8, 32, 128)
SIZES = (1e9, 100e6, 10e9, 16e6)
FABRICS = ("rails", "leaf–spine")
TIME_LIMIT_S = 60.0
MOST_OF_RING = 256
"""Servers up to which the ring is played: it has as many transfers as their square, twice, and on
leaf–spine many wait for each."""
SEED = 0


def cases() -> Iterator[dict[str, Any]]:
    """Quick and telling ones first."""

    def case(kind: str, count: int, fabric: str, slow: float, size: float) -> dict[str, Any]:
        return {
            "kind": kind, "boxes": count, "fabric": fabric, "slow": slow, "gradient_bytes": size
        }  # fmt: skip

    for first in (True, False):
        for count in COUNTS:
            for size in SIZES[:1] if first else SIZES[1:]:
                for kind in KINDS:
                    for fabric in FABRICS:
                        yield case(kind, count, fabric, 1.0, size)
        for kind in ("A100", "H100") if first else ():
            yield case(kind, 16, "rails", 0.5, SIZES[0])


def processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(case: dict[str, Any]) -> dict[str, Any]:
    network = boxes(case["kind"], case["boxes"], case["fabric"], slow=case["slow"])
    size, begun = case["gradient_bytes"], processor_s()
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
    row = case | {
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


def largest(count: int = 1024, size: float = 1e9) -> dict[str, Any]:
    """A schedule of 1,024 boxes, verified."""
    network, begun = boxes("A100", count, "rails"), processor_s()
    schedule = Hierarchical(gradient_bytes=size).schedule(network, seed=SEED)
    used, taken = processor_s() - begun, seconds(schedule, size, "events")
    least = seconds_bound(network, "all_reduce", size).seconds
    return {
        "kind": "A100", "boxes": count, "fabric": "rails", "gradient_bytes": size,
        "ms": 1e3 * taken, "least_ms": 1e3 * least, "gap": taken / least - 1,
        "transfers": schedule.num_transfers, "seconds": used,
        "seconds_with_timing_and_bound": processor_s() - begun,
    }  # fmt: skip


def main() -> None:
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), help="of boxes")
    parser.add_argument("--largest", action="store_true", help="1,024 boxes, too")
    asked = parser.parse_args()
    unfinished = Unfinished(NAME, resume=asked.resume, from_record=True)
    begun = time.monotonic()
    rows = unfinished.rows()
    known = ("kind", "boxes", "fabric", "slow", "gradient_bytes")
    done = {tuple(row.get(key) for key in known) for row in rows}
    measure({"kind": "A100", "boxes": 2, "fabric": "rails", "slow": 1.0, "gradient_bytes": 1e6})
    for case in cases():
        if tuple(case[key] for key in known) in done or case["kind"] not in asked.kinds:
            continue
        if time.monotonic() - begun > 60 * asked.minutes:
            break
        row = measure(case)
        print(row, flush=True)
        unfinished.add(row)
    if asked.largest:
        row = largest()
        print(row, flush=True)
        unfinished.add(row)
    place = {tuple(case[key] for key in known): at for at, case in enumerate(cases())}
    rows = unfinished.rows()
    rows.sort(key=lambda row: place.get(tuple(row.get(key) for key in known), len(place)))
    record(NAME, seeds=[SEED], rows=rows)
    if len(rows) >= len(place):
        unfinished.end()


if __name__ == "__main__":
    main()
