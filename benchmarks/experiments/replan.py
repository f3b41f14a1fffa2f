"""Every link of the nine networks of Table 2 lost, one at a time, and the schedule re-planned.

    taskset -c 0 python benchmarks/experiments/replan.py

Links without which the network falls apart, such as a Jellyfish server's only one, are left out
and counted. Compiled code is warmed up first.
"""

import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from record import record

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
    falls_apart = 0
    for link in range(len(network.source)):
        ends = int(network.source[link]), int(network.target[link])
        if ends[0] > ends[1]:
            continue
        try:
            left = without_links(network, [ends]).topology
        except TopologyError:
            falls_apart += 1
            continue
        begin = time.perf_counter()
        after = gw.solve(left, start_from=before, time_limit=TIME_LIMIT_S)
        seconds.append(time.perf_counter() - begin)
        assert gw.verify.verify(after.schedule, forwarding_servers=False).valid
        rounds.append(after.rounds)
        bounds.append(after.bound.rounds)
        kept.append(len(moves(before) & moves(after.schedule)) / before.num_transfers)
    return {
        "links": len(rounds),
        "falls_apart": falls_apart,
        "optimal": sum(a == b for a, b in zip(rounds, bounds, strict=True)),
        "worst_above": max(a - b for a, b in zip(rounds, bounds, strict=True)),
        "slowest_s": max(seconds),
        "mean_s": sum(seconds) / len(seconds),
        "transfers_kept": sum(kept) / len(kept),
    }


def main() -> None:
    warm = gw.topology.bcube(n=3, k=1)
    replanned(warm, gw.solve(warm).schedule)
    rows = []
    for case in TABLE_2:
        network = case.network(0)
        rows.append({"label": case.label, **replanned(network, gw.solve(network).schedule)})
        print(rows[-1], flush=True)
    record("replan", "taskset -c 0 python benchmarks/experiments/replan.py", seeds=[0], rows=rows)


if __name__ == "__main__":
    main()
