"""The least time that a collective can take, for parts of any size."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.cut_linear_program import NONE_LATE, Late, Volumes, solve_linear_program
from gradweave.bounds.distances import node_distances
from gradweave.bounds.duals import Duals, duals_of_sets
from gradweave.errors import OptionError
from gradweave.schedule.ready import ReadyAt, ready_times
from gradweave.schedule.schedule import COLLECTIVES, Collective
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_seconds

MAX_NODES = 512
"""Nodes up to which the linear program is solved; beyond, cuts around single servers bound the
time."""
MAX_LINKS = 20_000
"""Link directions up to which it is."""
MAX_BITS = 2048
"""Of a share's denominator."""
MAX_STARTS = 64
"""Servers from and to which distances are measured; fewer than all bound no more."""
MAX_TIMES = 4
"""Different times other than 0 at which servers get ready that the linear program tells apart; of
more, some are taken for earlier ones, which bounds no more."""

Shares = Literal["any", "equal"] | Sequence[Fraction | float]


@dataclasses.dataclass(frozen=True)
class LeastSeconds:
    """No schedule built from trees takes less time, and why."""

    collective: Collective
    gradient_bytes: float
    latency_s: float
    """What a gradient of one byte takes: contributions travel to a root, the sum to all servers."""
    bandwidth_s: float
    """What the gradient's bytes take to cross, with the latency that they must wait for then."""
    duals: Duals
    """The certificate of `bandwidth_s`."""
    volumes: Volumes | None
    """What solves the linear program, without latency; None where it was not solved."""

    @property
    def seconds(self) -> float:
        """The larger of the two. Their sum would be no bound: bytes cross while others travel."""
        return max(self.latency_s, self.bandwidth_s)

    @property
    def kind(self) -> Literal["latency", "programme", "cuts"]:
        """Which of the two is larger, and how the bandwidth's was found.

        ``latency``; ``programme``, the linear program's optimum, which is the least that trees can
        take; or ``cuts``, some of those that bound it, where the network is too large or the search
        for more was ended. Recorded results and scripts have these words: they stay.
        """
        if self.latency_s >= self.bandwidth_s:
            return "latency"
        return "programme" if self.volumes is not None and self.volumes.attained else "cuts"

    def __str__(self) -> str:
        far = "contributions take that long to a root, and the sum on to all"
        why = far if self.kind == "latency" else str(self.duals)
        kind = "linear program" if self.kind == "programme" else self.kind
        return f"at least {format_seconds(self.seconds)} ({kind}), since {why}"


def least_seconds(
    topology: Topology,
    gradient_bytes: float,
    collective: Collective = "all_reduce",
    *,
    overlap: bool = True,
    shares: Shares = "any",
    ready_at_s: ReadyAt | None = None,
) -> LeastSeconds:
    """The least time for a collective built from trees, with parts of any size.

    Each part is summed at its root and copied from there, over routes through switches that neither
    copy nor add; a link direction carries its bandwidth. `throughput` is the same for equal parts
    and stages apart, as an exact fraction; here servers may root different shares, stages overlap,
    and switches are held to what they receive. Capacities do not enter, nor do costs of messages.

    Args:
        topology: the network.
        gradient_bytes: size of the whole gradient.
        collective: a stage, or both.
        overlap: whether both stages of an all-reduce may run at once.
        shares: the part of the gradient that each server roots, in order of id: whatever takes
            least, equal parts, or numbers that sum to one (fractions exactly, floats nearly).
        ready_at_s: [N] seconds at which each server's own gradient is ready, in order of id; 0 if
            not given. Time counts from 0, and nothing that a server contributes is sent earlier;
            others may combine theirs, and it may receive. Only with stages that overlap.

    Returns:
        The bound with its certificate, and shares and volumes that take it.

    Raises:
        OptionError: for a size or shares that make no sense, or an unknown collective.

    Source: Edmonds 1973 (arborescences); Zhao et al., "ForestColl" (switches);
        docs/concepts/bounds.md.

    >>> import gradweave as gw
    >>> least = gw.bounds.least_seconds(gw.topology.ring(4), 1e9)
    >>> least.seconds, least.kind
    (0.060001, 'programme')
    >>> float(least.volumes.shares.sum())
    1.0
    """
    if collective not in COLLECTIVES:
        raise OptionError(
            f"collective: expected one of {', '.join(COLLECTIVES)}, got {collective!r}"
        )
    if not 0 <= gradient_bytes < math.inf:
        raise OptionError(
            f"gradient_bytes: expected a finite number, zero or more, got {gradient_bytes}"
        )
    given = checked_shares(shares, topology.num_servers)
    ready = ready_times(topology, ready_at_s)
    late = _late(ready, gradient_bytes)
    stages: tuple[Collective, ...] = (collective,)
    if collective == "all_reduce":
        stages = ("reduce_scatter", "all_gather")
    apart = len(stages) == 2 and not overlap
    if apart and ready.any():
        raise OptionError("least_seconds: ready_at_s: expected stages that overlap")
    volumes, duals = _without_latency(topology, stages, apart, given, late)
    return LeastSeconds(
        collective,
        gradient_bytes,
        _latency(topology, stages, given, tuple(ready.tolist())),
        float(duals.seconds(gradient_bytes)),
        duals,
        volumes,
    )


def _late(ready: NDArray[np.float64], gradient_bytes: float) -> Late:
    """Times for the linear program: no more than it tells apart, none later than given."""
    if not ready.any() or not gradient_bytes:
        return NONE_LATE
    times = np.unique(ready[ready > 0])
    kept = times[np.unique(np.linspace(0, len(times) - 1, MAX_TIMES).astype(np.int64))]
    kept = np.concatenate([[0.0], kept])
    earlier = kept[np.searchsorted(kept, ready, side="right") - 1]
    return Late(tuple(earlier.tolist()), gradient_bytes)


def checked_shares(shares: Shares, servers: int) -> tuple[Fraction, ...] | None:
    """[N] as fractions that sum to one; None where any will do.

    Args:
        shares: what was asked for.
        servers: N.

    Raises:
        OptionError: for shares that make no sense.
    """
    if isinstance(shares, str):
        if shares not in ("any", "equal"):
            raise OptionError(f"shares: expected any, equal or numbers, got {shares!r}")
        return None if shares == "any" else (Fraction(1, servers),) * servers
    if len(shares) != servers:
        raise OptionError(f"shares: expected {servers}, one for each server, got {len(shares)}")
    exact = [_fraction(share, rank) for rank, share in enumerate(shares)]
    total = sum(exact, Fraction(0))
    if not math.isclose(total, 1, rel_tol=1e-9):
        raise OptionError(f"shares: expected a sum of 1, got {float(total):g}")
    return tuple(share / total for share in exact)


def _fraction(share: Fraction | float, rank: int) -> Fraction:
    try:
        exact = Fraction(share)
    except (TypeError, ValueError, OverflowError):
        exact = Fraction(-1)
    if not 0 <= exact <= 1 or exact.denominator.bit_length() > MAX_BITS:
        shown = f"{share!r:.40}" if exact < 0 else f"{float(exact):g}"
        raise OptionError(
            f"shares: expected a number from 0 to 1 of at most {MAX_BITS} bits for the server of "
            f"rank {rank}, got {shown}"
        )
    return exact


@functools.lru_cache(maxsize=8)  # a search for the least time asks for it again and again
def _without_latency(
    topology: Topology,
    stages: tuple[Collective, ...],
    apart: bool,
    shares: tuple[Fraction, ...] | None,
    late: Late,
) -> tuple[Volumes | None, Duals]:
    if topology.num_nodes <= MAX_NODES and len(topology.source) <= MAX_LINKS:
        solved = solve_linear_program(topology, stages, apart, shares, late)
        if solved is not None:
            return solved
    return None, _single_servers(topology, stages, apart, shares, late)


def _single_servers(
    topology: Topology,
    stages: tuple[Collective, ...],
    apart: bool,
    shares: tuple[Fraction, ...] | None,
    late: Late,
) -> Duals:
    """The best of a few proofs: through all servers' ports, or out of or into one server.

    A set that copies leave and the rest of the nodes, which sums enter, have the same links; a set
    for both stages has one direction of them for each.
    """
    ends = topology.source, topology.target
    bandwidth = [
        np.bincount(end, topology.bandwidth_bytes_per_s, topology.num_nodes) for end in ends
    ]
    narrowest = [int(topology.servers[np.argmin(sums[topology.servers])]) for sums in bandwidth]
    sides = [(True,), (False,), (True, False)]
    choices = [([server], side) for server in narrowest for side in sides]
    choices += [(topology.servers.tolist(), side) for side in sides[:2]]
    proofs = []
    for (servers, inside), turned in itertools.product(choices, (False, True)):
        sets: list[tuple[Collective, NDArray[np.bool_], int, float]] = [
            (stage, (np.arange(topology.num_nodes) == server) == (side != (turned and k)), 1, 0.0)
            for server, side in itertools.product(servers, inside)
            for k, stage in enumerate(stages)
        ]
        proofs.append(
            duals_of_sets(topology, stages, apart, shares, sets, ready_at_s=late.ready_at_s)
        )
    if late.ready_at_s and len(stages) == 2:
        proofs += [_after_the_last(topology, shares, late, server) for server in narrowest]
    return max(proofs, key=lambda duals: duals.seconds_without_latency(late.gradient_bytes))


def _after_the_last(
    topology: Topology, shares: tuple[Fraction, ...] | None, late: Late, server: int
) -> Duals:
    """All that the last server to be ready contributes leaves it, and sums with it enter another.

    Of what the other roots, sums enter; of the rest, copies; and likewise out of the last one.
    """
    last = int(np.argmax(late.ready_at_s))
    since, node = late.ready_at_s[last], np.arange(topology.num_nodes)
    leaves = server == topology.servers[last]
    inside = (node == server) != leaves
    sets: list[tuple[Collective, NDArray[np.bool_], int, float]] = [
        ("reduce_scatter", inside, 1, since),
        ("all_gather", ~inside, 1, since),
    ]
    stages: tuple[Collective, ...] = ("reduce_scatter", "all_gather")
    return duals_of_sets(topology, stages, False, shares, sets, ready_at_s=late.ready_at_s)


@functools.lru_cache(maxsize=8)
def _latency(
    topology: Topology,
    stages: tuple[Collective, ...],
    shares: tuple[Fraction, ...] | None,
    ready_at_s: tuple[float, ...],
) -> float:
    """The least latency from all servers to a root, from it to all, or both one after the other.

    Where a server roots something, its own counts.
    """
    total = np.array(ready_at_s)
    if "reduce_scatter" in stages:
        ready = total[measured(topology)]
        total = np.maximum(total, (latencies(topology) + ready[:, None]).max(axis=0))
    if "all_gather" in stages:
        total += latencies(topology, topology.opposite).max(axis=0)
    if shares is None:
        return float(total.min())
    return float(max(time for time, share in zip(total, shares, strict=True) if share))


def latencies(topology: Topology, links: NDArray | None = None) -> NDArray[np.float64]:
    """[S, N] least latency from some servers to each server, by any way.

    Args:
        topology: the network.
        links: [L] whose latency each link direction has; `opposite` for the way back. Its own if
            not given.
    """
    chosen = topology.servers[measured(topology)]
    latency = topology.latency_s if links is None else topology.latency_s[links]
    least = node_distances(chosen, latency, (topology.target, topology.source), topology.num_nodes)
    return least[topology.servers].T


def measured(topology: Topology) -> NDArray[np.int64]:
    """[S] ranks of the servers from which `latencies` are measured."""
    count = topology.num_servers
    return np.linspace(0, count - 1, min(count, MAX_STARTS)).astype(np.int64)
