"""`solve` for seconds with and without `planned` first, on unequal networks, in 1 s and in 10 s.

    python benchmarks/experiments/planned_first.py

Some networks of planned_plans.py, 4 GB; by the clock on the wall, one search after the other.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from command_line import parser_of
from planned_plans import networks
from record import record, show

import gradweave as gw
from gradweave.bounds import least_seconds
from gradweave.schedulers.solve.seconds import FOR_SECONDS

CHOSEN = (("racks", 4), ("wide area", 9), ("boxes", 2), ("random graph", 7), ("wide area", 6))
LIMITS_S = (1.0, 10.0)
SIZE = 4e9


def solved(topology: gw.Topology, limit: float, *, first: bool) -> tuple[float, str]:
    """Seconds of the schedule found, and by which strategy."""
    strategies = [one for one in FOR_SECONDS if first or one.name != "planned"]
    found = gw.solve(
        topology,
        objective="seconds",
        gradient_bytes=SIZE,
        time_limit=limit,
        schedulers=strategies,
    )
    assert found.timing is not None
    return found.timing.seconds, found.scheduler.name


def main() -> None:
    parser_of(__doc__).parse_args()
    solved(gw.topology.star(5), 1.0, first=True)  # compiles
    rows: list[dict[str, Any]] = []
    made = {(kind, number): topology for kind, number, topology in networks()}
    for kind, number in CHOSEN:
        topology = made[kind, number]
        least = least_seconds(topology, SIZE).seconds
        row: dict[str, Any] = {"network": topology.name, "servers": topology.num_servers}
        for limit in LIMITS_S:
            for name, first in (("without", False), ("with", True)):
                taken, by = solved(topology, limit, first=first)
                row[f"{name}, {limit:g} s"] = taken / least - 1
                row[f"{name}, {limit:g} s, by"] = by
        rows.append(row)
        show(row)
    record(
        "planned_first",
        seeds=[2032],
        limits_s=LIMITS_S,
        rows=rows,
    )


if __name__ == "__main__":
    main()
