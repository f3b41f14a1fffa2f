"""Broadcasts of middle sizes: what the bound gains from pieces that are passed on whole.

    taskset -c 1 python benchmarks/experiments/pipelines.py

The plans of the broadcasts and reductions that `jobs_together.py` has recorded, above two bounds:
that of bytes and messages, in which pieces may be as small as one likes, and the larger of it and
`pipeline_bound`; where the joint program's duals proved more than both, that stands for both. And
on small networks, beside both and the plan that `gradweave.solve` finds in 2 s, the least seconds
of schedules in up to some equal pieces along trees, proved by `exact`.

Event model, defaults of the families; time limits are of processor time, after compilation.
"""

import statistics
import time
from typing import Any

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.record import load, record, show
from gradweave.schedulers import ExactDemand
from gradweave.schedules import Job, collective, demand_of

NAME = "pipelines"
COMMAND = f"taskset -c 1 python benchmarks/experiments/{NAME}.py"
PLAN_S, EFFORT = 2.0, 10.0
SMALL = {"mesh:1x3": 4, "mesh:1x4": 4, "star:3": 4, "star:4": 3, "ring:4": 2}
"""Networks, and how many equal pieces there are at most."""
SIZES = (10**4, 10**5, 10**6, 10**7)


def of_plans() -> list[dict[str, Any]]:
    """Recorded plans above both bounds."""
    rows = []
    for row in load("jobs_together")["rooted"]:
        net = gw.topology.from_spec(row["network"])
        job = Job(row["kind"], row["size"], root=int(net.servers[0]))
        bound = gw.bounds.demand_bound(net, demand_of(net, [job]))
        took, recorded_s = row["ms"] / 1e3, row["least_ms"] / 1e3
        least = max(bound.seconds, recorded_s)
        before = recorded_s if recorded_s > bound.seconds * (1 + 1e-9) else bound.seconds_of_parts
        rows.append(
            {key: row[key] for key in ("network", "kind", "size", "ms")}
            | {"before_ms": 1e3 * before, "least_ms": 1e3 * least}
            | {"before_gap": took / before - 1, "gap": took / least - 1}
        )
    return rows


def small(spec: str, size: int) -> dict[str, Any]:
    """One broadcast on a small network, with the exact optimum of few pieces."""
    net = gw.topology.from_spec(spec)
    demand = collective("broadcast", net.servers, size, root=0)
    bound = gw.bounds.demand_bound(net, demand)
    found = gw.solve(net, jobs=demand, time_limit=PLAN_S)
    best, pieces, sure = float("inf"), 0, True
    for count in range(1, SMALL[spec] + 1):
        proof = ExactDemand(pieces=count, effort=EFFORT, max_hops=10_000).prove(
            net, demand, below=best
        )
        sure &= proof.decided
        if proof.time < best:
            best, pieces = proof.time, count
    return {
        "network": spec,
        "size": size,
        "parts_us": 1e6 * bound.seconds_of_parts,
        "bound_us": 1e6 * bound.seconds,
        "exact_us": 1e6 * best,
        "pieces": pieces,
        "most": SMALL[spec],
        "proved": sure,
        "us": 1e6 * found.seconds,
        "by": found.scheduler.name,
        "plan_pieces": found.schedule.pieces,
        "over_bound": found.seconds / bound.seconds - 1,
        "over_exact": found.seconds / best - 1,
    }


def main() -> None:
    parser_of(__doc__).parse_args()
    small("star:3", 10**4)  # compiles
    time.monotonic = time.process_time  # of which time limits are, from here on
    plans, tiny = of_plans(), []
    for spec in SMALL:
        for size in SIZES:
            tiny.append(small(spec, size))
            show(tiny[-1])
    record(
        NAME,
        COMMAND,
        plans=plans,
        small=tiny,
        by_size=[
            {
                "size": size,
                **{
                    f"{what}_{gap}": statistic(row[gap] for row in plans if row["size"] == size)
                    for gap in ("before_gap", "gap")
                    for what, statistic in (("mean", statistics.mean), ("worst", max))
                },
            }
            for size in sorted({row["size"] for row in plans})
        ],
    )


if __name__ == "__main__":
    main()
