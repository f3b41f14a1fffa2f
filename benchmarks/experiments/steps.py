"""Steps against rounds: grown trees with and without a limit on transfers in a row.

    python benchmarks/experiments/steps.py

`gradweave.solve` for seconds by `grown:restarts=64` alone, so that nothing else hides the effect:
an all-gather on a DGX-1 (SCCL's example) and on a Jellyfish of 20 servers, time in the event model
against the gradient's size. Without: as long chains as the fewest rounds make. With: schedules of
as few transfers in a row as can be, or one more, are tried too.
"""

import dataclasses
from typing import Any

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.record import printed, record
from gradweave.schedulers.solving import seconds as search

NETWORKS = ("dgx1v", "jellyfish:reference=J20")
SIZES = (1e3, 1e4, 1e5, 2e5, 4e5, 1e6, 1e7)
SEED = 0


def solve(network: gw.Topology, size: float, stepped: int) -> dict[str, Any]:
    """The best schedule, with fewer steps tried on networks of up to so many servers."""
    search.TUNING = dataclasses.replace(search.TUNING, max_stepped_servers=stepped)
    solution = gw.solve(
        network,
        collective="all_gather",
        objective="seconds",
        gradient_bytes=size,
        schedulers="grown:restarts=64",
        seed=SEED,
    )
    assert solution.timing is not None
    return {
        "seconds": solution.timing.seconds,
        "steps": gw.simulator.steps(solution.schedule),
        "rounds": solution.rounds,
        "pieces": solution.schedule.pieces,
    }


def main() -> None:
    parser_of(__doc__).parse_args()
    networks = {spec: gw.topology.from_spec(spec) for spec in NETWORKS}
    rows = printed(
        {
            "network": spec,
            "gradient_bytes": size,
            "without": solve(network, size, 0),
            "with": solve(network, size, 128),
        }
        for spec, network in networks.items()
        for size in SIZES
    )
    record("steps", seeds=[SEED], collective="all_gather", rows=rows)


if __name__ == "__main__":
    main()
