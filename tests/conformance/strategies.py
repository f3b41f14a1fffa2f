"""The table of strategies: a new one is one more row."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

from gradweave.schedulers import (
    Binomial,
    CentralParameterServer,
    DoubleTree,
    Grown,
    HalvingDoubling,
    Hierarchical,
    Learned,
    Merged,
    Packed,
    ParameterServer,
    Planned,
    Postal,
    RecursiveDoubling,
    Ring,
    Scheduler,
    Symmetric,
    Timed,
    solve,
)
from gradweave.topology import Topology
from tests.conformance.networks import NETWORKS


def every_other(servers: int) -> int:
    """Transfers of a stage in which every server sends or gets every piece but its own once."""
    return servers * (servers - 1)


@dataclasses.dataclass(frozen=True)
class Strategy:
    """A strategy with its options, and what may be expected of it."""

    make: Callable[[Topology], Scheduler]
    transfers_in_stage: Callable[[int], int] | None = every_other
    """From the number of servers; None where it depends on the network's shape."""
    none_on: frozenset[str] = frozenset()
    """Networks on which there is none to find, and it must say so."""
    own_pieces: bool = False
    """Whether it decides how many pieces there are and who roots them."""
    one_stage: bool = False
    """Whether an all-reduce may do without copies."""
    up_to: int = 1000
    """Servers of the largest networks on which every collective is tried, and more than once: on
    larger ones, where a schedule takes it seconds, an all-reduce is."""


NO_CYCLE_BOTH_WAYS = frozenset(
    (
        *("bcube:n=3,k=1", "bcube:n=5,k=1", "dcell:n=5,k=1", "mesh:3x3", "irregular", "lopsided"),
        # Servers with one port must leave by the port by which they are entered.
        *(f"jellyfish:reference=J{switches}" for switches in (10, 15, 20)),
        *("fat_tree:4", "star:5", "jellyfish:switches=5,degree=3,servers_per_switch=2,seed=1"),
        "hyperx:2x3",
    )
)

NO_FREE_GROUP = frozenset(
    ("jellyfish:reference=J15", "jellyfish:reference=J20", "mesh:3x3", "irregular", "lopsided")
)
"""No automorphism of these, or powers of one, moves all servers."""


NO_GROUPS = frozenset(
    (
        *(f"bcube:n={n},k=1" for n in (3, 4, 5)),
        *(f"dcell:n={n},k=1" for n in (4, 5, 6)),  # groups, but no two servers on a switch across
        *(f"jellyfish:reference=J{switches}" for switches in (10, 15, 20)),
        *("ring:8", "mesh:3x3", "torus:3x3", "hypercube:3", "star:5", "complete:4", "complete:2"),
        *("circulant:n=8,jumps=1.3", "hyperx:2x3", "irregular", "lopsided"),
    )
)
"""Networks that do not consist of groups of equally many servers."""


@dataclasses.dataclass(frozen=True)
class Solved(Scheduler):
    """What `solve` finds where no strategy is named, as one more of them."""

    name: ClassVar[str] = "solved"

    def make(self, topology, collective, seed, stop):
        return solve(topology, objective="rounds", collective=collective, seed=seed).schedule


STRATEGIES: dict[str, Strategy] = {
    "portfolio": Strategy(lambda _: Solved()),
    "symmetric": Strategy(lambda _: Symmetric(restarts=10), none_on=NO_FREE_GROUP),
    "learned": Strategy(lambda _: Learned(samples=2)),
    "learned, fixed trees": Strategy(lambda _: Learned(samples=2, trees="fixed")),
    "grown": Strategy(lambda _: Grown(restarts=10)),
    "grown, two threads, one route": Strategy(lambda _: Grown(restarts=4, workers=2, routes=1)),
    "timed": Strategy(lambda _: Timed(restarts=2)),
    "timed, of a size": Strategy(lambda _: Timed(gradient_bytes=1e6, restarts=2, routes=1)),
    "packed, overlapping": Strategy(
        lambda _: Packed(pieces=8), transfers_in_stage=None, own_pieces=True, up_to=15
    ),
    "packed, of a size, overlapping": Strategy(
        lambda _: Packed(gradient_bytes=1e6, pieces=8),
        transfers_in_stage=None,
        own_pieces=True,
        up_to=15,
    ),
    "planned, overlapping": Strategy(
        lambda _: Planned(gradient_bytes=1e6),
        transfers_in_stage=None,
        own_pieces=True,
        up_to=25,
    ),
    "hierarchical, overlapping": Strategy(
        lambda _: Hierarchical(gradient_bytes=1e6, chunks=2),
        transfers_in_stage=None,
        none_on=NO_GROUPS,
        own_pieces=True,
        up_to=30,
    ),
    "merged": Strategy(lambda _: Merged()),
    "merged, random": Strategy(lambda _: Merged("random", tries=1, swap_passes=0)),
    "merged, deepest": Strategy(lambda _: Merged("deepest", tries=4, swap_passes=2)),
    "merged, overlap": Strategy(lambda _: Merged(overlap=True)),
    "merged, aggregating": Strategy(
        lambda _: Merged(aggregating_switches=True), transfers_in_stage=None
    ),
    "merged, aggregating, overlap": Strategy(
        lambda _: Merged(tries=2, aggregating_switches=True, overlap=True), transfers_in_stage=None
    ),
    "ring": Strategy(lambda _: Ring()),
    "ring, paper": Strategy(lambda _: Ring(steps="paper"), lambda servers: servers**2),
    "ring, hamiltonian": Strategy(
        lambda _: Ring(order="hamiltonian"),
        none_on=frozenset({"mesh:3x3", "irregular", "lopsided"}),
    ),
    "ring, both ways": Strategy(lambda _: Ring(directions=2)),
    "ring, hamiltonian, both ways": Strategy(
        lambda _: Ring(order="hamiltonian", directions=2), none_on=NO_CYCLE_BOTH_WAYS
    ),
    "ring, given order": Strategy(
        lambda topology: Ring(order=tuple(topology.servers[::-1].tolist()))
    ),
    "halving and doubling": Strategy(lambda _: HalvingDoubling(), transfers_in_stage=None),
    "halving and doubling, near": Strategy(
        lambda _: HalvingDoubling(order="near"), transfers_in_stage=None
    ),
    "recursive doubling": Strategy(
        lambda _: RecursiveDoubling(), transfers_in_stage=None, one_stage=True
    ),
    "recursive doubling, near": Strategy(
        lambda _: RecursiveDoubling(order="near"), transfers_in_stage=None, one_stage=True
    ),
    "all with all": Strategy(
        lambda _: RecursiveDoubling(radix=64),
        transfers_in_stage=None,
        one_stage=True,
        none_on=frozenset(NETWORKS) - {"complete:4", "complete:2"},
    ),
    "binomial": Strategy(lambda _: Binomial(), lambda servers: servers - 1),
    "binomial, near": Strategy(lambda _: Binomial(order="near"), lambda servers: servers - 1),
    "binomial, of radix 3": Strategy(lambda _: Binomial(radix=3), lambda servers: servers - 1),
    "binomial, bine": Strategy(lambda _: Binomial(partners="bine"), lambda servers: servers - 1),
    "double tree": Strategy(lambda _: DoubleTree(), lambda servers: 2 * (servers - 1)),
    "double tree, chains": Strategy(lambda _: DoubleTree(chains=True), transfers_in_stage=None),
    "ring, boxes": Strategy(lambda _: Ring(order="boxes")),
    "double tree, near": Strategy(
        lambda _: DoubleTree(order="near"), lambda servers: 2 * (servers - 1)
    ),
    "postal": Strategy(lambda _: Postal(tries=20), lambda servers: servers - 1, own_pieces=True),
    "postal, pair": Strategy(
        lambda _: Postal("pair", tries=20), lambda n: n - 1, own_pieces=True, one_stage=True
    ),
    "postal, cross, overlapping": Strategy(
        lambda _: Postal("cross", pieces=2, tries=20),
        transfers_in_stage=None,
        own_pieces=True,
        one_stage=True,
    ),
    "parameter server": Strategy(lambda _: ParameterServer()),
    "central": Strategy(lambda _: CentralParameterServer()),
    "central, last": Strategy(
        lambda topology: CentralParameterServer(server=int(topology.servers[-1]))
    ),
}
