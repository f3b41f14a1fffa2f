"""The minimum time of a collective, for parts of any size."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.classes import SUMS_MEET_ANYWHERE, SWITCHES_ADD, class_of
from gradweave.bounds.distances import node_distances
from gradweave.bounds.seconds.cut_linear_program import (
    NONE_LATE,
    Late,
    Volumes,
    solve_linear_program,
)
from gradweave.bounds.seconds.duals import Duals, duals_of_sets
from gradweave.errors import OptionError
from gradweave.schedules.ready import ReadyAt, ready_times
from gradweave.schedules.schedule import Collective, check_collective
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.topology import Topology
from gradweave.topology.units import as_size, format_seconds

MAX_NODES = 512
"""Nodes up to which the linear program is solved; beyond, cuts around single servers bound the
time."""
MAX_LINKS = 20_000
"""Link directions up to which the linear program is solved."""
MAX_BITS = 2048
"""Bits of a share's denominator."""
MAX_STARTS = 64
"""Number of servers from and to which distances are measured; a subset only weakens the bound."""
MAX_TIMES = 4
"""Number of release times other than 0 that the linear program distinguishes. The others are
rounded down to one of these, so the bound stays valid."""

Shares = Literal["any", "equal"] | Sequence[Fraction | float]


@dataclasses.dataclass(frozen=True)
class LeastSeconds:
    """A lower bound on the time of any schedule built from trees, and the reason."""

    collective: Collective
    gradient_bytes: float
    latency_s: float
    """Time for a gradient of one byte: contributions travel to a root, the sum to all servers."""
    bandwidth_s: float
    """Time for the gradient's bytes to cross, including the latency that these must wait for."""
    duals: Duals
    """The certificate of `bandwidth_s`."""
    volumes: Volumes | None
    """The solution of the linear program, without latency, or None if it was not solved."""

    @property
    def seconds(self) -> float:
        """The larger of the bounds by latency and by bandwidth.

        Their sum is not a bound: while some bytes are on the way, others already cross the links.
        """
        return max(self.latency_s, self.bandwidth_s)

    @property
    def kind(self) -> Literal["latency", "programme", "cuts"]:
        """Which of the two bounds is larger, and the method that gave the bound by bandwidth.

        ``latency``; ``programme``, the linear program's optimum, which is the minimum over trees;
        or ``cuts``, a relaxation with only some constraints, if the network is too large or the
        search for cuts ended early. These words must not change: recorded results and scripts have
        them.
        """
        if self.latency_s >= self.bandwidth_s:
            return "latency"
        return "programme" if self.volumes is not None and self.volumes.attained else "cuts"

    @property
    def holds_unless(self) -> frozenset[str]:
        """Liberties that void the bound if a schedule takes one; see `gradweave.bounds.classes`."""
        return frozenset({SUMS_MEET_ANYWHERE, SWITCHES_ADD})

    def __str__(self) -> str:
        far = "contributions take that long to a root, and the sum on to all"
        why = far if self.kind == "latency" else str(self.duals)
        kind = "linear program" if self.kind == "programme" else self.kind
        least = f"at least {format_seconds(self.seconds)} ({kind}){class_of(self.holds_unless)}"
        return f"{least}, since {why}"


def least_seconds(
    topology: TopologyLike,
    gradient_bytes: float | str,
    collective: Collective = "all_reduce",
    *,
    overlap: bool = True,
    shares: Shares = "any",
    ready_at_s: ReadyAt | None = None,
) -> LeastSeconds:
    """The minimum time for a collective built from trees, with parts of any size.

    Each part is summed at its root and copied from there, over routes through switches that neither
    copy nor add; a link direction carries its bandwidth. `throughput` is the same for equal parts
    and separate stages, as an exact fraction. Here servers may root different shares, stages may
    overlap, and switches send no more than they receive. Capacities and message overheads are left
    out.

    Args:
        topology: the network.
        gradient_bytes: size of the whole gradient.
        collective: a stage, or both.
        overlap: whether both stages of an all-reduce may run at once.
        shares: the part of the gradient that each server roots, in order of id: ``any`` for the
            best split, equal parts, or numbers that sum to one (fractions exactly, floats nearly).
        ready_at_s: [N] seconds at which each server's gradient is ready, in order of id; 0 if not
            given. Time counts from 0, and a server's contribution is not sent before it is ready;
            the server may receive and combine others' contributions earlier. Requires `overlap`.

    Returns:
        The bound with its certificate, and shares and volumes that attain it.

    Raises:
        OptionError: for an invalid size or shares, or an unknown collective.

    Source: Edmonds 1973 (arborescences); Zhao et al., "ForestColl" (switches);
        docs/concepts/bounds.md.

    >>> import gradweave as gw
    >>> least = gw.bounds.least_seconds(gw.topology.ring(4), 1e9)
    >>> least.seconds, least.kind
    (0.060001, 'programme')
    >>> float(least.volumes.shares.sum())
    1.0
    """
    topology = as_topology(topology)
    gradient_bytes = as_size(gradient_bytes)
    check_collective(collective)
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
    """Release times for the linear program: few enough, and none later than given."""
    if not ready.any() or not gradient_bytes:
        return NONE_LATE
    times = np.unique(ready[ready > 0])
    kept = times[np.unique(np.linspace(0, len(times) - 1, MAX_TIMES).astype(np.int64))]
    kept = np.concatenate([[0.0], kept])
    earlier = kept[np.searchsorted(kept, ready, side="right") - 1]
    return Late(tuple(earlier.tolist()), gradient_bytes)


def checked_shares(shares: Shares, servers: int) -> tuple[Fraction, ...] | None:
    """[N] shares as fractions that sum to one, or None if any split will do.

    Args:
        shares: the caller's choice.
        servers: N.

    Raises:
        OptionError: for invalid shares.
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


@functools.lru_cache(maxsize=8)  # a search for the minimum time asks for it repeatedly
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
    """The best of a few simple proofs: all servers' ports, or the links of one server.

    A set that copies leave and its complement, which sums enter, have the same links; a set that
    counts for both stages has one direction of its links for each.
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
    """The last server to be ready sends its whole contribution, and sums with it enter another.

    Sums enter the other server for its share, copies for the rest; likewise out of the last server.
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
    """The minimum latency from all servers to a root, from it to all, or both in sequence.

    With given shares, it is the largest over the servers that root something.
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
    """[S, N] minimum latency from some servers to each server, over any path.

    Args:
        topology: the network.
        links: [L] for each link direction, the direction whose latency to use instead of its own.
            With `topology.opposite`, the result has latencies to the servers instead of from them.
    """
    chosen = topology.servers[measured(topology)]
    latency = topology.latency_s if links is None else topology.latency_s[links]
    least = node_distances(chosen, latency, (topology.target, topology.source), topology.num_nodes)
    return least[topology.servers].T


def measured(topology: Topology) -> NDArray[np.int64]:
    """[S] ranks of the servers from which `latencies` measures."""
    count = topology.num_servers
    return np.linspace(0, count - 1, min(count, MAX_STARTS)).astype(np.int64)
