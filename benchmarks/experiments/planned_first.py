"""`solve` for seconds with `planned` and without: what is found after 2 and 5 s.

    taskset -c 0 python benchmarks/experiments/planned_first.py [--resume]

Unequal networks of anytime.py on which no choice was made, 256 MB. Without `planned`; with it at
the place that it has, with one plan (50 ms); and with plans drawn around that one for half a second
as well. Time limits are processor time, compilation left out.
"""

import statistics
import time
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.command_line import parser_of
from benchmarks.intervals import mean_between
from benchmarks.record import record, show
from benchmarks.unequal_networks import COUNT, unequal_network
from benchmarks.unfinished import Unfinished
from gradweave.schedulers import Planned
from gradweave.schedulers.scheduler import Scheduler
from gradweave.schedulers.solving.portfolio import FOR_SECONDS

NUMBER, SIZE, LIMITS_S = 24, 256e6, (2.0, 5.0)
OTHERS = tuple(one for one in FOR_SECONDS if not isinstance(one, Planned))
AFTER = 1
"""Strategies before `planned`."""
DRAWN_S = 0.5


def variants() -> dict[str, list[Scheduler]]:
    """Strategies in the order in which they are tried."""
    one, more = Planned(), Planned(effort=DRAWN_S)
    return {
        "without": list(OTHERS),
        "one_plan": [*OTHERS[:AFTER], one, *OTHERS[AFTER:]],
        "drawn": [*OTHERS[:AFTER], one, more, *OTHERS[AFTER:]],
    }


def main() -> None:
    asked = parser_of(__doc__, resumes=True).parse_args()
    for warm in ("mesh:2x3", "leaf_spine:leaves=2,spines=1,servers_per_leaf=2,oversubscription=3"):
        for strategies in variants().values():
            gw.solve(warm, objective="seconds", gradient_bytes=1e6, schedulers=strategies)
    time.monotonic = time.process_time  # of which time limits are, from here on
    kept = Unfinished("planned_first", resume=asked.resume)
    done = {row["seed"] for row in kept.rows()}
    for seed in range(COUNT, COUNT + NUMBER):
        if seed in done:
            continue
        kind, topology = unequal_network(seed)
        row: dict[str, Any] = {"seed": seed, "kind": kind, "network": topology.name}
        for limit_s in LIMITS_S:
            for name, strategies in variants().items():
                found = gw.solve(
                    topology,
                    objective="seconds",
                    gradient_bytes=SIZE,
                    time_limit=limit_s,
                    schedulers=strategies,
                )
                assert found.timing is not None
                row[f"{name}, {limit_s:g} s"] = found.timing.gap
        kept.add(row)
        show(row)
    rows = kept.rows()
    record("planned_first", limits_s=LIMITS_S, summaries=summaries(rows), rows=rows)
    kept.end()


def summaries(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean gaps, and what the others gain on the search without, with its interval."""
    rng, lines = np.random.default_rng(0), []
    for limit_s in LIMITS_S:
        gaps = {
            name: np.array([row[f"{name}, {limit_s:g} s"] for row in rows]) for name in variants()
        }
        line: dict[str, Any] = {"limit_s": limit_s, "networks": len(rows)}
        for name, of in gaps.items():
            line[name], line[f"{name}_median"] = float(of.mean()), statistics.median(of.tolist())
        for name, before in (("one_plan", "without"), ("drawn", "one_plan")):
            gains = gaps[before] - gaps[name]
            line[f"{name}_gain"] = float(gains.mean())
            line[f"{name}_gain_between"] = mean_between(gains, rng)
        lines.append(line)
    return lines


if __name__ == "__main__":
    main()
