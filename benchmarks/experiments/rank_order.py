"""Orders of ranks beside the exact best ring on 200 networks, and of 128 servers in seconds.

python benchmarks/experiments/rank_order.py

Four kinds of networks of 5 to 12 hosts, 50 of each: racks of unequal sizes behind thin trunks,
graphs of switches whose links differ, servers linked directly, and sparse ones of those. The
gradient is 25 MB, the library gloo, whose messages cost nothing here, so that links alone decide.

What a ring takes in the steady state, its busiest link or a piece's way round, is never more than
what it takes when it is played, where each link carries one message at a time, as here. So rings
are compared by branch and bound in ascending order of that, and played, until no ring that is left
can be 2 % faster than the order in question; `exact_s` is the fastest that was played, or what all
others take at least, whichever is less. Of networks of up to 6 hosts every ring is played as well.
Both are judged: the order that `gradweave ranks` finds, and the one that its annealing alone finds,
which it uses beyond 12 hosts.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np

import gradweave as gw
from benchmarks.experiment import Row, Rows, run
from gradweave.ranks.libraries import OwnAllReduce, own_all_reduces
from gradweave.ranks.pattern import routes_of
from gradweave.ranks.search_kernel import every_ring, steady_seconds
from gradweave.ranks.starts import twins

MB = 1_000_000
SIZE = 25 * MB
COUNT = 200
RATES = (1.0, 2.5, 4.0, 10.0)
"""Gbit/s of links."""
GBIT = 125e6
KEPT = 2_000
"""Rings kept of each network, best first."""
PLAYED = 300
"""Of these, played at most."""
WITHIN = 1.02
SLACK = 0.01
"""More than what `every_ring` adds to a ring's time to tell those apart that take as long."""
ALL_PLAYED = 6
"""Hosts up to which every ring is played."""


def made(
    name: str, servers: int, switches: int, links: dict[tuple[int, int], float]
) -> gw.Topology:
    """A network of links with their Gbit/s; each carries one message at a time."""
    return gw.Topology.from_links(
        name,
        servers=servers,
        switches=switches,
        links=list(links),
        bandwidth_bytes_per_s=np.array(list(links.values())) * GBIT,
    )


def racks(rng: np.random.Generator, servers: int) -> tuple[int, dict[tuple[int, int], float]]:
    """Racks of unequal sizes on one core, hosts in no order."""
    count = int(rng.integers(2, 5))
    place = np.concatenate([np.arange(count), rng.integers(0, count, servers - count)])
    rate = float(rng.choice(RATES))
    links = {(s, servers + int(rack)): rate for s, rack in enumerate(rng.permutation(place))}
    for rack in range(count):
        links[servers + rack, servers + count] = rate * float(rng.choice([0.25, 0.5, 1.0, 2.0]))
    return count + 1, links


def switched(rng: np.random.Generator, servers: int) -> tuple[int, dict[tuple[int, int], float]]:
    """Hosts on a random graph of switches."""
    count = int(rng.integers(2, 6))
    pairs = [(s, servers + int(rng.integers(count))) for s in range(servers)]
    pairs += [(servers + int(rng.integers(s)), servers + s) for s in range(1, count)]
    for _ in range(int(rng.integers(0, 4))):
        a, b = sorted(rng.choice(count, 2, replace=False).tolist())
        pairs.append((servers + a, servers + b))
    return count, {pair: float(rng.choice(RATES)) for pair in pairs}


def direct(rng: np.random.Generator, servers: int) -> tuple[int, dict[tuple[int, int], float]]:
    """Hosts linked to each other: a random cycle and as many links more."""
    return 0, _joined(rng, servers, servers)


def sparse(rng: np.random.Generator, servers: int) -> tuple[int, dict[tuple[int, int], float]]:
    """Hosts linked to each other: a random tree and few links more, so that many forward."""
    pairs = {(int(rng.integers(s)), s): float(rng.choice(RATES)) for s in range(1, servers)}
    for _ in range(int(rng.integers(1, 5))):
        a, b = sorted(rng.choice(servers, 2, replace=False).tolist())
        pairs.setdefault((a, b), float(rng.choice(RATES)))
    return 0, pairs


def _joined(rng: np.random.Generator, servers: int, more: int) -> dict[tuple[int, int], float]:
    way = rng.permutation(servers).tolist()
    ends = [tuple(sorted(pair)) for pair in itertools.pairwise([*way, way[0]])]
    ends += [tuple(sorted(rng.choice(servers, 2, replace=False).tolist())) for _ in range(more)]
    return {(a, b): float(rng.choice(RATES)) for a, b in ends}


KINDS = {"racks": racks, "switches": switched, "direct": direct, "sparse": sparse}


def networks() -> Iterator[tuple[str, gw.Topology]]:
    """All of them, by kind in turn."""
    for seed in range(COUNT):
        kind = list(KINDS)[seed % len(KINDS)]
        rng = np.random.default_rng([35, seed])
        servers = 5 + seed // len(KINDS) % 8
        switches, links = KINDS[kind](rng, servers)
        yield kind, made(f"{kind} {seed}", servers, switches, links)


def exact(topology: gw.Topology, reduce: OwnAllReduce, seconds: float) -> tuple[float, int, bool]:
    """The exact best, or what no ring takes less than; rings played; whether that is proved.

    Args:
        topology: the network.
        reduce: gloo's ring.
        seconds: of the order that is judged; rings that take as long need not be played.
    """
    routes = routes_of(reduce.network(topology))
    pattern = reduce.pattern(topology.num_servers)
    costs, rings, complete = every_ring(
        routes,
        float(pattern.size[0]),
        float(pattern.piece[0]),
        float(pattern.times[0]),
        twins(topology),
        KEPT,
        seconds * (1 + SLACK),  # the rest cannot be faster
        np.zeros(1, bool),
    )
    assert complete
    ranks = [np.array(reduce.travel(ring.tolist()), np.int64) for ring in rings]
    steady = np.array([steady_seconds(one, routes, pattern) for one in ranks])
    # Of those that were not kept; `every_ring` counts what all links carry besides, a little.
    others = costs[-1] / (1 + SLACK) if len(rings) == KEPT else math.inf
    best, played = math.inf, 0
    for place in np.argsort(steady, kind="stable"):
        least = min(float(steady[place]), others)
        if min(best, seconds) <= WITHIN * least or played == PLAYED:
            lowest = min(best, least, seconds)
            return lowest, played, bool(min(best, seconds) <= WITHIN * lowest)
        best = min(best, reduce.seconds(topology, topology.servers[ranks[place]].tolist()))
        played += 1
    lowest = min(best, seconds, others)
    return lowest, played, bool(min(best, seconds) <= WITHIN * lowest)


def row(network: gw.Topology, **_: Any) -> dict[str, Any]:
    """One network: both orders, the exact best, and the bound."""
    topology = network
    (reduce,) = own_all_reduces("gloo", topology.num_servers, SIZE, "ideal")
    found = gw.ranks.optimize(topology, "gloo", SIZE, runtime="ideal")
    with mock.patch("gradweave.ranks.search.EXACT_SERVERS", 2):
        annealed = gw.ranks.optimize(topology, "gloo", SIZE, runtime="ideal")
    best_s = min(found.seconds, annealed.seconds)
    exact_s, played, proved = exact(topology, reduce, best_s)
    every_s = None
    if topology.num_servers <= ALL_PLAYED:
        first, *others = topology.servers.tolist()
        every_s = min(
            reduce.seconds(topology, (first, *rest)) for rest in itertools.permutations(others)
        )
        assert every_s >= exact_s * (1 - 1e-9)
        exact_s = every_s
    else:
        exact_s = max(exact_s, min(found.bound.seconds, best_s))
    return {
        "servers": topology.num_servers,
        "seconds": found.seconds,
        "annealed_s": annealed.seconds,
        "exact_s": exact_s,
        "every_ring_played_s": every_s,
        "played": played,
        "proved": proved,
        "bound_s": found.bound.seconds,
        "by_id_s": found.by_id_s,
        "over_exact": found.seconds / exact_s - 1,
        "annealed_over_exact": annealed.seconds / exact_s - 1,
        "bound_over_exact": found.bound.seconds / exact_s - 1,
        "by_id_over_exact": found.by_id_s / exact_s - 1,
    }


LARGE = (
    "leaf_spine:leaves=8,spines=1,servers_per_leaf=16,oversubscription=4",
    "leaf_spine:leaves=16,spines=4,servers_per_leaf=8,oversubscription=2",
    "fat_tree:k=8",
    "torus:8x16",
    "jellyfish:switches=64,degree=4,servers_per_switch=2",
)


def shuffled(spec: str) -> gw.Topology:
    """A network whose ids have nothing to do with where its servers are."""
    net = gw.topology.from_spec(spec)
    order = np.random.default_rng(0).permutation(net.num_servers)
    new = np.concatenate([order, np.arange(net.num_servers, net.num_nodes)])
    return dataclasses.replace(
        net, name=f"{spec}, shuffled", source=new[net.source], target=new[net.target]
    )


def large_row(network: str, library: str) -> dict[str, Any]:
    """One search: its wall time, beside what it found."""
    topology = shuffled(network)
    begun = time.perf_counter()
    found = gw.ranks.optimize(topology, library, SIZE, runtime="ideal")
    return {
        "servers": topology.num_servers,
        "algorithm": found.algorithm,
        "seconds": found.seconds,
        "by_id_s": found.by_id_s,
        "bound_s": found.bound.seconds,
        "gap": found.gap,
        "wall_s": time.perf_counter() - begun,
    }


def finish(rows: list[Row], _: list[Row]) -> Row:
    def within(gap: str) -> int:
        return sum(one[gap] <= WITHIN - 1 for one in rows)

    played = [one for one in rows if one["every_ring_played_s"] is not None]
    return {
        "networks": len(rows),
        "within_two_percent": within("over_exact"),
        "annealed_within_two_percent": within("annealed_over_exact"),
        "worst_over_exact": max(one["over_exact"] for one in rows),
        "worst_annealed_over_exact": max(one["annealed_over_exact"] for one in rows),
        "every_ring_played": len(played),
        "bound_never_above": all(
            one["bound_s"] <= one["every_ring_played_s"] * (1 + 1e-9) for one in played
        ),
    }


if __name__ == "__main__":
    run(
        __doc__,
        Rows(lambda: [{"kind": kind, "network": one} for kind, one in networks()], row),
        Rows(
            lambda: [
                {"network": spec, "library": library}
                for spec in LARGE
                for library in ("gloo", "openmpi", "nccl")
            ],
            large_row,
            "many_servers",
        ),
        warm=lambda: gw.ranks.optimize("ring:20", "nccl", SIZE),
        finish=finish,
        gradient_bytes=SIZE,
    )
