"""The bound where latency and bytes add up, and without it: wide areas, small and unequal networks.

    taskset -c 0 python benchmarks/experiments/time_expanded.py [--resume]

`gradweave.solve` with ``objective="seconds"``, for two seconds, or for twenty on 24 unequal
networks that no choice was made on, at 25 MB. ``gap`` is over the largest bound of latency,
messages or bytes, ``new_gap`` over the stated one, which includes the slots of time where they
apply: not to schedules that exchange sums, or whose routes pass servers, and not above 64 servers.
Limits are processor time of one process.
"""

import statistics
from typing import Any

import gradweave as gw
from benchmarks.experiment import Case, Row, Rows, run
from benchmarks.solutions import figures, solved
from benchmarks.unequal_networks import unequal_network, wide_areas
from gradweave.topology.spec import as_topology

LIMIT_S, UNEQUAL_LIMIT_S = 2.0, 20.0
FIRST, UNEQUAL = 20261201, 24
"""Seed of the first unequal network, and their number."""
WIDE = ("six cities", "ten cities, three fastest links each", "Abilene")
WIDE_BYTES = 25_000_000
SMALL = ("star:8", "torus:3x3", "a100:boxes=1", "a100:boxes=2")
SMALL_BYTES = (1 << 14, 1 << 17, 1 << 20)


def cases() -> list[Case]:
    """Kind, network and bytes of each."""
    by_name = {one.name: one for one in wide_areas()}
    made: list[tuple[str, gw.Topology | str, int]] = []
    made += [("wide area", by_name[name], WIDE_BYTES) for name in WIDE]
    made += [("small", spec, size) for spec in SMALL for size in SMALL_BYTES]
    made += [("unequal", unequal_network(FIRST + k)[1], WIDE_BYTES) for k in range(UNEQUAL)]
    return [dict(zip(("kind", "network", "gradient_bytes"), one, strict=True)) for one in made]


def measure(kind: str, network: gw.Topology | str, gradient_bytes: int) -> Row:
    """One network, one size."""
    network = as_topology(network)
    limit_s = UNEQUAL_LIMIT_S if kind == "unequal" else LIMIT_S
    options: dict[str, Any] = {"objective": "seconds", "time_limit": limit_s, "seed": 0}
    seconds, solution = solved(network, gradient_bytes=gradient_bytes, **options)
    assert solution.timing is not None
    parts = solution.timing.bound.parts
    plain_s = max(part.seconds for part in parts if part.name != "slots")
    return {
        **figures(solution, "servers", "switches", "ms", "winner"),
        "seconds": seconds,
        "plain_ms": 1e3 * plain_s,
        "gap": solution.timing.seconds / plain_s - 1,
        "least_ms": 1e3 * solution.timing.bound.seconds,
        "new_gap": solution.timing.gap,
    }


def of_kind(kind: str, rows: list[Row]) -> Row:
    """Mean and largest gaps of a kind of network, and how many bounds the slots raise."""
    gaps = [[row[key] for row in rows if row["kind"] == kind] for key in ("gap", "new_gap")]
    return {
        "kind": kind,
        "networks": len(gaps[0]),
        "raised": sum(new < old for old, new in zip(*gaps, strict=True)),
        "gap": statistics.mean(gaps[0]),
        "new_gap": statistics.mean(gaps[1]),
        "largest": max(gaps[0]),
        "new_largest": max(gaps[1]),
    }


def summaries(rows: list[Row]) -> Row:
    """Of each kind."""
    return {"summaries": [of_kind(kind, rows) for kind in ("wide area", "small", "unequal")]}


def compile_loops() -> None:
    for warm in ("star:3", "ring:3"):
        gw.solve(warm, objective="seconds", gradient_bytes=1e6)
        gw.bounds.time_expanded(gw.topology.from_spec(warm), 1e6)


if __name__ == "__main__":
    run(
        __doc__,
        Rows(cases, measure),
        warm=compile_loops,
        processor_time=True,
        finish=summaries,
        gradient_bytes=[WIDE_BYTES, *SMALL_BYTES],
        limit_s=LIMIT_S,
        unequal_limit_s=UNEQUAL_LIMIT_S,
        seed=FIRST,
    )
