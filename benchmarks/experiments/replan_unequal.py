"""Re-planning in seconds after a fault of networks whose links differ: what is kept, and its cost.

    python benchmarks/experiments/replan_unequal.py

Twelve networks of benchmarks/unequal_networks.py on which no choice was made, the first two of each
kind with at most 20 servers, and a schedule of `packed` for 256 MB on each. Its busiest link is
slowed to half, and of the links that may be lost without cutting a server off the busiest is lost.
Planned again with `packed` alone, from scratch, and with the schedule before to start from
(`gw.solve(…, start_from=before)`).

Kept is the part of the bytes, and of the transfers, that go as they did; gaps are to the bound in
seconds of the network as it is then. Seconds are processor time, after compilation.
"""

import itertools
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.experiment import Rows, grid, run
from benchmarks.timing import timed
from benchmarks.unequal_networks import COUNT, KINDS, unequal_network
from gradweave.errors import TopologyError
from gradweave.schedulers import Packed
from gradweave.schedulers.repairing.kept import kept_of
from gradweave.topology.faults import slowed, without_links

SIZE = 256e6
MAX_SERVERS, OF_EACH = 20, 2
"""Of the networks that are taken, and how many of a kind: as many as are measured in minutes."""
Ends = tuple[int, int]


def planned_again(before: gw.Schedule, left: gw.Topology) -> dict[str, Any]:
    """Repaired, and from scratch."""
    packed = Packed(gradient_bytes=SIZE)
    anew_s, anew = timed(partial(packed.schedule, left), time.process_time)
    solve = partial(gw.solve, left, objective="seconds", gradient_bytes=SIZE, schedulers="packed")
    solve_s, found = timed(partial(solve, start_from=before), time.process_time)
    assert found.timing is not None and found.kept is not None and found.repair is not None
    least_s, as_before_s = found.timing.bound.seconds, found.repair.as_before_s
    return {
        "kept": found.kept.bytes_share,
        "transfers_kept": found.kept.transfers / found.kept.of,
        "gap": found.timing.seconds / least_s - 1,
        "repaired": found.repair.chosen,
        "as_before_gap": None if as_before_s is None else as_before_s / least_s - 1,
        "search_s": solve_s,
        "anew_kept": kept_of(before, anew).bytes_share,
        "anew_gap": gw.simulator.seconds(anew, SIZE, "events") / least_s - 1,
        "anew_s": anew_s,
    }


def faults(before: gw.Schedule) -> Iterator[tuple[str, Ends, gw.Topology]]:
    """The busiest link slowed; the busiest that may be lost, if any, lost."""
    network, (links, transfer) = before.topology, before.route_links
    share = before.share[before.piece[transfer]]
    busy = np.bincount(links, share, len(network.source)) / network.bandwidth_bytes_per_s
    order = np.argsort(-busy, kind="stable")
    ends = [(int(network.source[link]), int(network.target[link])) for link in order]
    yield "slowed", ends[0], slowed(network, {ends[0]: 0.5}).topology
    for each in ends:
        try:
            left = without_links(network, [each]).topology
        except TopologyError:
            continue
        yield "lost", each, left
        return


def measured(seed: int) -> list[dict[str, Any]]:
    kind, network = unequal_network(seed)
    before = Packed(gradient_bytes=SIZE).schedule(network)
    about = {"kind": kind, "network": network.name, "servers": network.num_servers}
    return [
        about | {"fault": fault, "link": list(ends)} | planned_again(before, left)
        for fault, ends, left in faults(before)
    ]


def compile_all() -> None:
    """Once through, over links and over switches."""
    for spec, link in (("complete:4", (0, 1)), ("star:4", (0, 4))):
        network = slowed(gw.topology.from_spec(spec), {link: 0.7}).topology
        for _, _, left in faults(Packed(gradient_bytes=SIZE).schedule(network)):
            planned_again(Packed(gradient_bytes=SIZE).schedule(network), left)


def chosen() -> list[int]:
    """The seeds."""
    seeds: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for seed in itertools.count(COUNT):
        kind, network = unequal_network(seed)
        if network.num_servers <= MAX_SERVERS and len(seeds[kind]) < OF_EACH:
            seeds[kind].append(seed)
        if min(map(len, seeds.values())) == OF_EACH:
            return sorted(itertools.chain.from_iterable(seeds.values()))
    raise AssertionError("seeds do not end")


if __name__ == "__main__":
    run(
        __doc__,
        Rows(lambda: grid(seed=chosen()), measured),
        warm=compile_all,
        seeds=chosen(),
        gradient_bytes=SIZE,
    )
