"""Every link of the nine networks of Table 2 lost, one at a time, and the schedule re-planned.

    taskset -c 0 python benchmarks/experiments/replan.py

Links whose loss disconnects the network, such as a Jellyfish server's only one, are left out and
counted. After compilation.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from record import record
from timing import timed

import gradweave as gw
from gradweave.errors import TopologyError
from gradweave.report import TABLE_2
from gradweave.topology.faults import without_links

TIME_LIMIT_S = 9.0


def moves(schedule: gw.Schedule) -> set[tuple[int, ...]]:
    columns = (schedule.op, schedule.piece, schedule.source, schedule.target)
    return set(zip(*(column.tolist() for column in columns), strict=True))


def replanned(network: gw.Topology, before: gw.Schedule) -> dict[str, Any]:
    rounds, bounds, seconds, kept = [], [], [], []
    disconnecting = 0
    for link in range(len(network.source)):
        ends = int(network.source[link]), int(network.target[link])
        if ends[0] > ends[1]:
            continue
        try:
            remaining = without_links(network, [ends]).topology
        except TopologyError:
            disconnecting += 1
            continue
        solve = partial(gw.solve, remaining, start_from=before, time_limit=TIME_LIMIT_S)
        solve_s, after = timed(solve)
        seconds.append(solve_s)
        assert gw.verify.verify(after.schedule, forwarding_servers=False).valid
        rounds.append(after.rounds)
        bounds.append(after.bound.rounds)
        kept.append(len(moves(before) & moves(after.schedule)) / before.num_transfers)
    return {
        "links": len(rounds),
        "falls_apart": disconnecting,
        "optimal": sum(a == b for a, b in zip(rounds, bounds, strict=True)),
        "worst_above": max(a - b for a, b in zip(rounds, bounds, strict=True)),
        "slowest_s": max(seconds),
        "mean_s": sum(seconds) / len(seconds),
        "transfers_kept": sum(kept) / len(kept),
    }


def main() -> None:
    small = gw.topology.bcube(n=3, k=1)
    replanned(small, gw.solve(small).schedule)  # compiles
    rows = []
    for case in TABLE_2:
        network = case.network(0)
        rows.append({"label": case.label, **replanned(network, gw.solve(network).schedule)})
        print(rows[-1], flush=True)
    record("replan", "taskset -c 0 python benchmarks/experiments/replan.py", seeds=[0], rows=rows)


if __name__ == "__main__":
    main()
