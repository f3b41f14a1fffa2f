"""Faults, and the schedule re-planned: links lost, and links slowed by half.

    taskset -c 0 python benchmarks/experiments/replan.py

Every link of the nine networks of Table 2 lost, one at a time, re-planned in rounds. Links whose
loss disconnects the network, such as a Jellyfish server's only one, are left out and counted.

One link of seven networks at half its bandwidth half way through an all-reduce of 1 GB, by the
schedule of `packed` and by the one that all strategies find: as planned before, and re-planned.

One link of the same networks at half its bandwidth between two all-reduces of 1 GB, re-planned in
seconds: with all strategies, starting from the schedule before, and with `packed` alone. Beside
them the schedule before on the slower network, in its order and with its shares. Seconds of all
searches are processor time, after compilation.
"""

import time
from functools import partial
from typing import Any

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.timing import timed
from gradweave.bounds import least_seconds
from gradweave.errors import TopologyError
from gradweave.report import TABLE_2
from gradweave.schedulers import Packed, replan
from gradweave.schedulers.repairing.kept import kept_of
from gradweave.topology.faults import slowed as with_slow
from gradweave.topology.faults import without_links

TIME_LIMIT_S = 9.0
LIMIT_S = 10.0
"""Of a search while a schedule is under way."""
SIZE = 1e9
NETWORKS = {case.label: case for case in TABLE_2}
SLOWED = (
    ("star:8", (0, 8)),
    ("complete:8", (0, 1)),
    ("ring:8", (0, 1)),
    ("hypercube:3", (0, 1)),
    ("mesh:4x4", (5, 6)),
    ("torus:4x4", (0, 1)),
    ("bcube:n=4,k=1", (0, 16)),
)


def moves(schedule: gw.Schedule) -> set[tuple[int, ...]]:
    columns = (schedule.op, schedule.piece, schedule.source, schedule.target)
    return set(zip(*(column.tolist() for column in columns), strict=True))


def warm() -> None:
    of_each_link(gw.topology.bcube(n=3, k=1))
    replanned("ring:3", (0, 1))


def lost(label: str) -> dict[str, Any]:
    return of_each_link(NETWORKS[label].network(0))


def of_each_link(network: gw.Topology) -> dict[str, Any]:
    before = gw.solve(network).schedule
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
        solve_s, after = timed(solve, time.process_time)
        seconds.append(solve_s)
        assert gw.verify(after.schedule, forwarding_servers=False).valid
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


def slower_than(spec: str, link: tuple[int, int]) -> tuple[gw.Topology, gw.Topology]:
    """A network, and the same with a link at half its speed."""
    topology = gw.topology.from_spec(spec)
    return topology, with_slow(topology, {link: 0.5}).topology


def replanned(network: str, slowed: tuple[int, int]) -> dict[str, Any]:
    topology, slower = slower_than(network, slowed)
    solve = partial(gw.solve, objective="seconds", gradient_bytes=SIZE)
    first_s, first = timed(partial(solve, topology), time.process_time)
    again = partial(solve, slower, start_from=first.schedule)
    replan_s, after = timed(again, time.process_time)
    packed = Packed(gradient_bytes=SIZE)
    packed_s, alone = timed(partial(packed.schedule, slower), time.process_time)
    moved = first.schedule.replace(topology=slower)
    least = least_seconds(slower, SIZE).seconds
    assert after.timing is not None
    return {
        "bound_before_ms": 1e3 * least_seconds(topology, SIZE).seconds,
        "before_ms": 1e3 * first.timing.seconds,
        "bound_ms": 1e3 * least,
        "unrepaired_ms": 1e3 * gw.simulator.seconds(moved, SIZE, "events"),
        "replanned_ms": 1e3 * after.timing.seconds,
        "by": after.scheduler.name,
        "kept": after.kept.bytes_share,
        "packed_kept": kept_of(first.schedule, alone).bytes_share,
        "packed_ms": 1e3 * gw.simulator.seconds(alone, SIZE, "events"),
        "first_s": first_s,
        "replan_s": replan_s,
        "packed_s": packed_s,
    }


def under_way(network: str, slowed: tuple[int, int]) -> dict[str, Any]:
    topology, slower = slower_than(network, slowed)
    row: dict[str, Any] = {}
    for name, schedule in (
        ("packed", Packed(gradient_bytes=SIZE).schedule(topology)),
        ("solved", gw.solve(topology, objective="seconds", gradient_bytes=SIZE).schedule),
    ):
        intact_s = gw.simulator.seconds(schedule, SIZE, "events")
        search = partial(replan, schedule, slower, SIZE, intact_s / 2, time_limit=LIMIT_S)
        search_s, after = timed(search, time.process_time)
        row[name] = {
            "intact_ms": 1e3 * intact_s,
            "as_before_ms": 1e3 * after.as_before_s,
            "replanned_ms": 1e3 * after.seconds,
            "replanned_share": after.replanned_share,
            "search_s": search_s,
        }
    least = [least_seconds(one, SIZE).seconds for one in (topology, slower)]
    # Half of the gradient at either pace: no bound, but what the change alone would cost.
    return row | {"half_at_either_ms": 1e3 * sum(least) / 2}


if __name__ == "__main__":
    run(
        __doc__,
        Rows(grid(label=NETWORKS), lost),
        Rows([{"network": spec, "slowed": link} for spec, link in SLOWED], replanned, "slowed"),
        Rows([{"network": spec, "slowed": link} for spec, link in SLOWED], under_way, "under_way"),
        warm=warm,
        seeds=[0],
        gradient_bytes=SIZE,
    )
