"""The exact optimum of 100 tiny demands, beside the bound and the plans of `gradweave.solve`.

    python benchmarks/experiments/exact_demands.py

Networks of 3 to 5 servers, with links from server to server or over one or two switches, of 1, 2 or
4 times 10 GB/s, 1 µs and an overhead of 1 µs a message; a link takes one transfer a round. Demands:
each of the eight collectives in turn, among all servers or, where others relay, some of them; 2.4
kB, 24 kB or 240 kB in all, or from each server. The strategy `exact` proves the least seconds of
schedules in one or two equal pieces of each block, along trees; the lesser is the optimum here.
`gradweave.solve` has 1 s, and may cut as it likes, so that it can be below. All-to-alls, scatters
and gathers once more in rounds, blocks in two parts, beside `plan_unicast` and its bound.

Seconds are of the event model; the searches' are of processor time, after compilation.
"""

import dataclasses
import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.timing import timed
from gradweave.schedulers import ExactDemand
from gradweave.schedulers.flows.unicast import plan_unicast
from gradweave.schedules import Demand, collective
from gradweave.schedules.demand import NAMES, ROOTED
from gradweave.topology import Link, Topology

INSTANCES = 100
SIZES = (2_400, 24_000, 240_000)
PIECES = (1, 2)
ROUND_PIECES = 2
PLAN_S = 1.0
EFFORT = 10.0
MAX_HOPS = 10_000
SAME = 1e-3
"""By how much a time may be longer that counts as the same."""
LINK = Link(bandwidth_bytes_per_s=1e10, latency_s=1e-6, overhead_s=1e-6)


def network(rng: np.random.Generator, seed: int) -> Topology:
    """A random connected network: a random tree, and links beside it."""
    servers, switches = int(rng.integers(3, 6)), int(rng.integers(0, 3))
    count = servers + switches
    links: set[tuple[int, int]] = set()
    if not switches:
        order = rng.permutation(servers).tolist()
        links |= {(order[int(rng.integers(at))], order[at]) for at in range(1, servers)}
        links |= {tuple(rng.permutation(servers)[:2].tolist()) for _ in range(servers // 2)}
    else:
        links |= {(server, servers + int(rng.integers(switches))) for server in range(servers)}
        links |= {(servers, at) for at in range(servers + 1, count)}
    pairs = sorted({(min(pair), max(pair)) for pair in links})
    return Topology.from_links(
        f"tiny {seed}",
        servers=servers,
        switches=switches,
        links=pairs,
        link=LINK,
        bandwidth_bytes_per_s=LINK.bandwidth_bytes_per_s * rng.choice([1, 2, 4], len(pairs)),
    )


def instance(seed: int) -> tuple[Topology, Demand]:
    """A random network, and a collective on it."""
    rng = np.random.default_rng(seed)
    topology, name = network(rng, seed), NAMES[seed % len(NAMES)]
    size = int(rng.choice(SIZES))
    group, relays = topology.servers, topology.servers[:0]
    if rng.random() < 0.25 and len(group) > 3:
        group, relays = np.sort(rng.permutation(group)[:3]), topology.servers
    root = int(group[0]) if name in ROOTED else None
    return topology, collective(name, group, size, root=root, relays=relays)


def proved(topology: Topology, demand: Demand) -> dict[str, Any]:
    """The least seconds over numbers of pieces, if each is proved; and with which."""
    best, pieces, sure = math.inf, 0, True
    for count in PIECES:
        strategy = ExactDemand(pieces=count, effort=EFFORT, max_hops=MAX_HOPS)
        proof = strategy.prove(topology, demand, below=best)
        sure &= proof.decided
        if proof.time < best:
            best, pieces = proof.time, count
    return {"exact_us": 1e6 * best, "pieces": pieces, "proved": sure}


def rounds(topology: Topology, demand: Demand) -> dict[str, Any]:
    """The same in rounds, of blocks of one size each."""
    same = dataclasses.replace(demand, bytes=np.full(len(demand), 2 * 10**3))
    exact = ExactDemand(ROUND_PIECES, "rounds", effort=EFFORT, max_hops=MAX_HOPS)
    proof = exact.prove(topology, same)
    plan = plan_unicast(topology, same, "rounds", pieces=ROUND_PIECES)
    return {
        "rounds": plan.time,
        "exact_rounds": proof.time,
        "rounds_bound": plan.least,
        "rounds_proved": proof.decided,
    }


def measured(seed: int) -> dict[str, Any]:
    """One instance."""
    topology, demand = instance(seed)
    plan_s, found = timed(
        lambda: gw.solve(topology, jobs=demand, time_limit=PLAN_S), time.process_time
    )
    exact_s, exact = timed(lambda: proved(topology, demand), time.process_time)
    in_rounds = rounds(topology, demand) if demand.unicast else {}
    return {
        "collective": demand.jobs[0],
        "servers": topology.num_servers,
        "switches": len(topology.switches),
        "group": len(demand.servers),
        "bytes": demand.total_bytes,
        "us": 1e6 * found.seconds,
        "by": found.scheduler.name,
        "bound_us": 1e6 * found.bound.seconds,
        **exact,
        **in_rounds,
        "plan_s": plan_s,
        "exact_s": exact_s,
    }


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By collective."""
    made = []
    for name in NAMES:
        some = [row for row in rows if row["collective"] == name]
        over = [row["us"] / row["exact_us"] - 1 for row in some]
        counted = [row for row in some if "rounds" in row]
        made.append(
            {
                "collective": name,
                "instances": len(some),
                "proved": sum(row["proved"] for row in some),
                "as_good": sum(one <= SAME for one in over),
                "below": sum(one < -SAME for one in over),
                "mean_over": statistics.mean(over),
                "worst_over": max(over),
                "exact_over_bound": statistics.mean(
                    row["exact_us"] / row["bound_us"] - 1 for row in some
                ),
                "in_rounds": len(counted) or None,
                "rounds_proved": sum(row["rounds_proved"] for row in counted) if counted else None,
                "rounds_same": sum(row["rounds"] == row["exact_rounds"] for row in counted)
                if counted
                else None,
                "bound_same": sum(row["rounds_bound"] == row["exact_rounds"] for row in counted)
                if counted
                else None,
                "exact_s": statistics.mean(row["exact_s"] for row in some),
            }
        )
    return made


if __name__ == "__main__":
    run(
        __doc__,
        Rows(grid(seed=range(INSTANCES)), measured),
        warm=lambda: [measured(seed) for seed in (0, 7)],
        processor_time=True,
        finish=lambda rows: {"by_collective": summary(rows)},
        seeds=list(range(INSTANCES)),
    )
