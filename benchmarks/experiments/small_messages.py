"""Small gradients: seconds beside the bound on latency, on twelve networks.

    taskset -c 0 python benchmarks/experiments/small_messages.py

1 KiB to 64 KiB, event model. The networks were chosen before anything was measured on them: one
switch, rings, meshes, tori and hypercubes of servers, BCube, DCell, Jellyfish, a leaf–spine network
with half the bandwidth above, two boxes of GPUs, a wide area and a random graph whose links all
differ; two numbers of servers of three are no powers of two. Links have 10 µs of latency and 1 µs
of overhead a message, but for the boxes, the wide area and the random graph, which have their own.

`solve` with the objective seconds and its defaults; what its strategies find without those that
came with the bound; and textbook collectives, each by id and with near partners, whole and in 2, 4
and 8 parts, whichever is fastest. Beside the bound stands the one that it replaces: the farthest
server, messages that all are as near as one link, and bytes.

On networks of up to eight servers the same for messages of next to no bytes; with three or four
servers beside the optimum of an all-reduce in one piece, by exhaustive search.
"""

from typing import Any

import numpy as np

import gradweave as gw
from benchmarks.exhaustive_messages import least_time
from benchmarks.experiment import Rows, grid, run
from benchmarks.solutions import figures, solved
from benchmarks.unequal_networks import random_graph, wide_areas
from gradweave.bounds.seconds.latency import MessageTimes, latency_bound, slowest, spread_times
from gradweave.schedulers import (
    Binomial,
    DoubleTree,
    HalvingDoubling,
    Postal,
    RecursiveDoubling,
    Scheduler,
    to_spec,
)
from gradweave.schedulers.solving.variants import split
from gradweave.topology import Topology

FAMILIES = tuple(
    f"{family},latency=10us"
    for family in (
        "star:12",
        "ring:8",
        "mesh:3x5",
        "torus:4x4",
        "hypercube:4",
        "bcube:n=4,k=1",
        "dcell:n=4,k=1",
        "jellyfish:reference=J15",
        "leaf_spine:leaves=4,spines=2,servers_per_leaf=4,oversubscription=2",
    )
)
SIZES = tuple(1024.0 * times for times in (1, 4, 16, 64))
PARTS = (1, 2, 4, 8)
SEED = 0
MEETS = 1e-4
"""The thousandth of a byte that small messages have, and rounding."""
TEXTBOOK: dict[str, tuple[Scheduler, ...]] = {
    "halving_doubling": (HalvingDoubling(), HalvingDoubling("near")),
    "recursive_doubling": (RecursiveDoubling(), RecursiveDoubling("near")),
    "binomial": (Binomial(), Binomial("near")),
    "bine": (Binomial(partners="bine"),),
    "double_tree": (DoubleTree(), DoubleTree("near")),
}
_FEW = ("star:3", "star:4", "star:5", "star:6", "star:8", "ring:4", "ring:5")
SMALL = (
    *(f"{family},latency={latency}us" for family in _FEW for latency in (0, 1, 10)),
    *("mesh:1x3", "mesh:1x4", "mesh:1x5", "mesh:2x3", "hypercube:3"),
    *("complete:3", "complete:4", "complete:5", "dgx1v"),
)
SEARCHED = (
    *(f"{family},latency={latency}us" for family in _FEW for latency in (0, 1, 10)),
    *("mesh:1x3", "mesh:1x4", "complete:3"),
)
"""Of these, those of up to four servers exhaustively."""
MOST_SEARCHED = 4


def networks() -> list[Topology]:
    abilene = next(one for one in wide_areas() if one.name == "Abilene")
    return [
        *map(gw.topology.from_spec, FAMILIES),
        gw.topology.from_spec("a100:boxes=2"),
        abilene,
        random_graph(np.random.default_rng([33, 0])),
    ]


def is_new(scheduler: Scheduler) -> bool:
    options = scheduler.options()
    return isinstance(scheduler, Postal) or options.get("radix", 2) > 2


def bound_before(network: Topology, bandwidth_s: float) -> float:
    """The bound that messages and latency gave so far, beside that of bytes."""
    overhead = float(network.overhead_s.min())
    farthest = overhead + float(MessageTimes.of(network).distance.max())
    carried = network.bandwidth_bytes_per_s / slowest(network)
    ports = max(
        float(np.bincount(end, carried, network.num_nodes)[network.servers].max())
        for end in (network.source, network.target)
    )
    latency = float(network.latency_s[network.is_server[network.source]].min())
    spread = spread_times(latency, overhead, ports, network.num_servers)[-1]
    return max(farthest, float(spread), bandwidth_s)


def textbook(network: Topology, gradient_bytes: float) -> dict[str, float]:
    """Milliseconds of each, in the parts that suit it best."""
    return {
        name: min(
            1e3 * gw.simulator.seconds(split(made, parts), gradient_bytes, "events")
            for made in (one.schedule(network, seed=SEED) for one in strategies)
            for parts in PARTS
        )
        for name, strategies in TEXTBOOK.items()
    }


def measure(network: Topology, gradient_bytes: float) -> dict[str, Any]:
    seconds, solution = solved(
        network, objective="seconds", gradient_bytes=gradient_bytes, seed=SEED
    )
    assert solution.timing is not None
    bound = solution.timing.bound
    before = bound_before(network, bound.seconds_by("bytes"))
    others = [
        one.seconds
        for one in solution.attempts
        if one.seconds is not None and not is_new(one.scheduler)
    ]
    times = textbook(network, gradient_bytes)
    for name, ms in times.items():
        assert ms * 1e-3 >= bound.seconds * (1 - 1e-9), f"{name} is below the bound"
    return {
        **figures(solution, "servers", "ms", "least_ms", "gap", "winner"),
        "kind": bound.kind if bound.kind != "messages" else latency_bound(network).kind,
        "least_ms_before": 1e3 * before,
        "gap_before": min(others) / before - 1,
        "gap_to_bound_before": solution.timing.seconds / before - 1,
        "without_new_ms": 1e3 * min(others),
        "gap_without_new": min(others) / bound.seconds - 1,
        "textbook_ms": times,
        "pieces": solution.schedule.pieces,
        "seconds": seconds,
    }


def measure_small(network: str) -> dict[str, Any]:
    topology = gw.topology.from_spec(network)
    found = gw.solve(topology, objective="seconds", gradient_bytes=1e-3, seed=SEED)
    assert found.timing is not None
    exact, proved = None, False
    if network in SEARCHED and topology.num_servers <= MOST_SEARCHED:
        exact, proved = least_time(topology, found.timing.seconds)
        assert proved and latency_bound(topology).seconds <= exact * (1 + 1e-6)
    return {
        "servers": topology.num_servers,
        "us": 1e6 * found.timing.seconds,
        "exact_us": 1e6 * exact if exact is not None else None,
        "least_us": 1e6 * found.timing.bound.seconds,
        "kind": latency_bound(topology).kind,
        "gap": found.timing.gap,
        "meets_bound": found.timing.gap < MEETS,
        "meets_exact": exact is not None and found.timing.seconds < exact * (1 + MEETS),
        "winner": to_spec(found.scheduler),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """By size and in all: mean and worst gaps, and how much slower the textbook is."""
    found = {}
    for size in (*SIZES, None):
        some = [row for row in rows if size in (None, row["gradient_bytes"])]
        found["all" if size is None else f"{size / 1024:g} KiB"] = {
            "mean_gap": float(np.mean([row["gap"] for row in some])),
            "worst_gap": max(row["gap"] for row in some),
            "under_15": sum(row["gap"] < 0.15 for row in some),
            "cases": len(some),
            "mean_gap_before": float(np.mean([row["gap_before"] for row in some])),
            "mean_gap_without_new": float(np.mean([row["gap_without_new"] for row in some])),
            "textbook_over_solve": {
                name: float(np.mean([row["textbook_ms"][name] / row["ms"] for row in some]))
                for name in TEXTBOOK
            },
        }
    return found


if __name__ == "__main__":
    run(
        __doc__,
        Rows(lambda: grid(network=networks(), gradient_bytes=SIZES), measure),
        Rows(grid(network=SMALL), measure_small, "small"),
        warm=lambda: measure(gw.topology.from_spec("ring:4"), 1024.0),
        finish=lambda rows, _: {"summary": summary(rows)},
        seeds=[SEED],
    )
