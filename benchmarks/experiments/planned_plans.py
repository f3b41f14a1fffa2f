"""60 unequal networks, 256 MB and 4 GB: what the plan of `planned` contributes, part by part.

    taskset -c 0 python benchmarks/experiments/planned_plans.py

Networks of benchmarks/unequal_networks.py from seeds that neither the training nor the other
experiment has; wide areas, which are published, and two halves are of kinds held out of training.
Each plan is decoded by the same compiled loops, in the same trees and pieces: the even one, the
learned one, the learned one's upper decisions or its order alone, and the shares, or shares and
prices, of the linear program that proves the bound. Beside them `packed`, ended after as long as
the strategy took with the learned plan, or when its first schedule is there. Milliseconds are of a
processor, after compilation, of the strategy the least of several runs, with its schedule's
columns. What is done is kept beside the results; ``--resume`` goes on with it.
"""

import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from command_line import parser_of
from record import printed, record, show
from timing import timed
from unequal_networks import KINDS, by_kind, wide_areas
from unfinished import Unfinished

import gradweave as gw
from gradweave.bounds import LeastSeconds, least_seconds
from gradweave.schedulers import Packed, Planned
from gradweave.schedulers.planned.decoding import Proposal, Wiring, even
from gradweave.schedulers.planned.planned import decode
from gradweave.schedulers.planned.policy import propose, read_weights
from gradweave.simulate import seconds

EACH = 10
SIZES = (256e6, 4e9)
CHEAPEST = 4.0
"""Logarithm of how much cheaper than the dearest links the bound's duals make the others."""
RUNS = 5
"""Of the strategy, of which the quickest counts: other work slows down its caches."""
PLANS = ("even", "learned", "upper", "order", "shares", "shares and prices")


def networks() -> Iterable[tuple[str, int, gw.Topology]]:
    """Kind, number and network."""
    for number in range(EACH):
        for kind, make in KINDS.items():
            if make is None:
                yield kind, number, wide_areas()[number]
            else:
                yield kind, number, make(np.random.default_rng([2032, number]))


def proposals(wiring: Wiring, least: LeastSeconds) -> dict[str, Any]:
    """What makes each plan."""
    plain, volumes = even(wiring.topology), least.volumes
    assert volumes is not None
    prices = np.max(least.duals.link_duals, axis=0).astype(np.float64)
    full = prices * wiring.links.bandwidth
    bias = np.log(np.maximum(full / full.max(), np.exp(-CHEAPEST)))

    def learned() -> Proposal:
        return propose(wiring, read_weights())

    return {
        "even": lambda: plain,
        "learned": learned,
        "upper": lambda: learned()._replace(order=plain.order),
        "order": lambda: plain._replace(order=learned().order),
        "shares": lambda: plain._replace(shares=volumes.shares),
        "shares and prices": lambda: plain._replace(shares=volumes.shares, bias=bias),
    }


def measure(kind: str, number: int, topology: gw.Topology, size: float) -> dict[str, Any]:
    """One network and size."""
    least = least_seconds(topology, size)
    row: dict[str, Any] = {
        "kind": kind,
        "number": number,
        "network": topology.name,
        "servers": topology.num_servers,
        "gradient_bytes": size,
        "latency_share": least.latency_s / least.seconds,
    }
    wiring = Wiring(topology, "all_reduce", size)
    for name, make in proposals(wiring, least).items():
        # A new one, so that the network's preparation is timed, too.
        fresh = Wiring(topology, "all_reduce", size)
        spent, decoded = timed(lambda made=make, on=fresh: decode(on, made()), time.process_time)
        row[name], row[f"{name} ms"] = decoded.seconds / least.seconds - 1, 1e3 * spent
    row["strategy ms"] = milliseconds(topology, size)
    limit = row["strategy ms"] / 1e3
    spent, packed = timed(
        lambda: Packed(gradient_bytes=size).schedule(topology, time_limit=limit),
        time.process_time,
    )
    row["packed"] = seconds(packed, size, "events") / least.seconds - 1
    row["packed ms"] = 1e3 * spent
    return row


def milliseconds(topology: gw.Topology, size: float) -> float:
    """Of the strategy, with its schedule's columns."""
    scheduler = Planned(gradient_bytes=size)
    runs = [
        timed(lambda: scheduler.decode(topology).schedule(), time.process_time)[0]
        for _ in range(RUNS)
    ]
    return 1e3 * min(runs)


def summary(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    line: dict[str, Any] = {"rows": name, "count": len(rows)}
    for plan in (*PLANS, "packed"):
        line[plan] = statistics.mean(row[plan] for row in rows)
        line[f"{plan} ms"] = statistics.mean(row[f"{plan} ms"] for row in rows)
    line["strategy ms"] = statistics.mean(row["strategy ms"] for row in rows)
    line["slowest ms"] = max(row["strategy ms"] for row in rows)
    line["worst"] = max(row["learned"] for row in rows)
    line["better than even"] = sum(row["learned"] < row["even"] for row in rows)
    return line


def main() -> None:
    parser = parser_of(__doc__, resumes=True)
    parser.add_argument("--finish", action="store_true", help="record what an ended run kept")
    asked = parser.parse_args()
    kept = Unfinished("planned_plans", resume=asked.resume or asked.finish)
    done = {(row["kind"], row["number"], row["gradient_bytes"]) for row in kept.rows()}
    if not asked.finish:
        for warm in (gw.topology.star(5), gw.topology.mesh((2, 3))):
            measure("warm", 0, warm, 1e9)  # compiles
        for kind, number, topology in networks():
            for size in SIZES:
                if (kind, number, size) not in done:
                    row = measure(kind, number, topology, size)
                    kept.add(row)
                    show(row)
    rows = kept.rows()
    lines = printed(summary(name, group) for name, group in [*by_kind(rows), ("all", rows)])
    record(
        "planned_plans",
        seeds=[2032],
        cases=2 * EACH * len(KINDS),
        summaries=lines,
        rows=rows,
    )
    if not asked.finish:
        kept.end()


if __name__ == "__main__":
    main()
