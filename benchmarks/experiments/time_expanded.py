"""The bound where latency and bytes add up, and without it: wide areas, small and unequal networks.

    taskset -c 0 python benchmarks/experiments/time_expanded.py [--resume]

`gradweave.solve` with ``objective="seconds"``, for two seconds, or for twenty on 24 unequal
networks that no choice was made on, at 25 MB. ``gap`` is over the largest bound of latency,
messages or bytes, ``new_gap`` over the stated one, which includes the slots of time where they
apply: not to schedules that exchange sums, or whose routes pass servers, and not above 64 servers.
Limits are processor time of one process.
"""

import statistics
import time
from typing import Any

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.record import record, show
from benchmarks.solutions import figures, solved
from benchmarks.unequal_networks import unequal_network, wide_areas
from benchmarks.unfinished import Unfinished

NAME = "time_expanded"
LIMIT_S, UNEQUAL_LIMIT_S = 2.0, 20.0
FIRST, UNEQUAL = 20261201, 24
"""Seed of the first unequal network, and their number."""
WIDE = ("six cities", "ten cities, three fastest links each", "Abilene")
WIDE_BYTES = 25_000_000
SMALL = ("star:8", "torus:3x3", "a100:boxes=1", "a100:boxes=2")
SMALL_BYTES = (1 << 14, 1 << 17, 1 << 20)


def cases() -> list[tuple[str, str, gw.Topology, int]]:
    """Kind, name, network and bytes of each."""
    by_name = {one.name: one for one in wide_areas()}
    made = [("wide area", name, by_name[name], WIDE_BYTES) for name in WIDE]
    made += [
        ("small", spec, gw.topology.from_spec(spec), size) for spec in SMALL for size in SMALL_BYTES
    ]
    drawn = [unequal_network(FIRST + place)[1] for place in range(UNEQUAL)]
    return made + [("unequal", one.name, one, WIDE_BYTES) for one in drawn]


def measure(kind: str, name: str, network: gw.Topology, size: int) -> dict[str, Any]:
    """One network, one size."""
    limit_s = UNEQUAL_LIMIT_S if kind == "unequal" else LIMIT_S
    options = {"objective": "seconds", "gradient_bytes": size, "time_limit": limit_s, "seed": 0}
    seconds, solution = solved(network, **options)
    assert solution.timing is not None
    parts = solution.timing.bound.parts
    plain_s = max(part.seconds for part in parts if part.name != "slots")
    return {
        "kind": kind,
        **figures(solution, "network", "servers", "switches", "ms", "winner"),
        "network": name,
        "gradient_bytes": size,
        "seconds": seconds,
        "plain_ms": 1e3 * plain_s,
        "gap": solution.timing.seconds / plain_s - 1,
        "least_ms": 1e3 * solution.timing.bound.seconds,
        "new_gap": solution.timing.gap,
    }


def of_kind(kind: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
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


def main() -> None:
    """Measures and records."""
    asked = parser_of(__doc__, resumes=True).parse_args()
    for warm in ("star:3", "ring:3"):
        gw.solve(warm, objective="seconds", gradient_bytes=1e6)  # compiles
        gw.bounds.time_expanded(gw.topology.from_spec(warm), 1e6)
    time.monotonic = time.process_time  # of which time limits are, from here on
    kept = Unfinished(NAME, resume=asked.resume)
    done = {(row["network"], row["gradient_bytes"]) for row in kept.rows()}
    for kind, name, network, size in cases():
        if (name, size) not in done:
            row = measure(kind, name, network, size)
            kept.add(row)
            show({key: row[key] for key in ("network", "gradient_bytes", "gap", "new_gap")})
    rows = kept.rows()
    summaries = [of_kind(kind, rows) for kind in ("wide area", "small", "unequal")]
    limits = {"limit_s": LIMIT_S, "unequal_limit_s": UNEQUAL_LIMIT_S, "seed": FIRST}
    record(
        NAME, gradient_bytes=[WIDE_BYTES, *SMALL_BYTES], **limits, rows=rows, summaries=summaries
    )
    kept.end()


if __name__ == "__main__":
    main()
