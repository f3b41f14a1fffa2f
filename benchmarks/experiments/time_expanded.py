"""The bound where latency and bytes add up, beside today's: three wide areas and small networks.

    taskset -c 0 python benchmarks/experiments/time_expanded.py [--resume]

`gradweave.solve` with ``objective="seconds"`` for two seconds, and both bounds: the one that it
states, which is the largest of what latency, messages and bytes need, and
`gradweave.bounds.time_expanded` with its defaults, where that is larger. Schedules that exchange
sums, or whose routes pass servers, are not covered by the latter: their gap stays as it is stated.
Times of search and bound are processor time of one process.
"""

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from command_line import parser_of
from record import record, show
from solutions import figures, solved
from timing import timed
from unequal_networks import wide_areas
from unfinished import Unfinished

import gradweave as gw
from gradweave.bounds.of_schedule import liberties_of

NAME = "time_expanded"
LIMIT_S = 2.0
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
    return made


def measure(kind: str, name: str, network: gw.Topology, size: int) -> dict[str, Any]:
    """One network, one size."""
    options = {"objective": "seconds", "gradient_bytes": size, "time_limit": LIMIT_S, "seed": 0}
    seconds, solution = solved(network, **options)
    bound_s, bound = timed(lambda: gw.bounds.time_expanded(network, size), time.process_time)
    assert bound is not None
    plain = gw.bounds.least_seconds(network, size)
    row = {
        "kind": kind,
        **figures(solution, "network", "servers", "switches", "ms", "least_ms", "gap", "winner"),
        "network": name,
        "gradient_bytes": size,
        "seconds": seconds,
        "covered": not bound.holds_unless & liberties_of(solution.schedule),
        "expanded_ms": 1e3 * bound.seconds,
        "plain_ms": 1e3 * plain.seconds,
        "slots": bound.slots.count,
        "bound_s": bound_s,
    }
    least_ms = max(row["least_ms"], row["expanded_ms"] if row["covered"] else 0.0)
    return row | {"new_least_ms": least_ms, "new_gap": max(0.0, row["ms"] / least_ms - 1)}


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
    record(NAME, gradient_bytes=[WIDE_BYTES, *SMALL_BYTES], limit_s=LIMIT_S, rows=kept.rows())
    kept.end()


if __name__ == "__main__":
    main()
