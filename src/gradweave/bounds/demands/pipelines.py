"""Lower bounds for blocks whose whole pieces cross several cuts in sequence."""

import dataclasses
import functools
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import Name
from gradweave.topology.routes import hop_distances
from gradweave.topology.topology import Integers, Topology
from gradweave.topology.units import format_bandwidth, format_seconds, format_size

MAX_ENDS = 32
"""Number of servers at the far end that are tried, the farthest first."""

ROUNDING = 1e-9
"""Relative precision of the bound."""

_Number = TypeVar("_Number", float, Fraction)


@dataclasses.dataclass(frozen=True)
class PipelineBound:
    """A lower bound on moving a block between servers, in any number of pieces.

    Each piece crosses several cuts, each over at least one transfer, and crosses the next cut only
    after it has arrived whole. A transfer of s bytes at rate r holds its links for overhead + s/r.
    Let W be the bytes plus, for each of k pieces, the slowest rate times the overhead; B the bytes
    per second across a cut; and R the fastest rate. Bytes in flight over one cut cannot be in
    flight over the next. Averaged over the time T, that is Σ w² / (2 R T) ≥ W² / (2 R k T) at each
    cut except the last. So T (T − W / B) ≥ waits · W² / (2 B R k) for some k, with one wait for
    each cut except the last.

    Now let a root send to N − 1 others, whose ports carry B each on average, and the root's at
    most B. Bytes that the root has not yet sent as a whole piece must still reach all but one of
    them, so waits are (N − 2) / (N − 1), whatever the distance. A reduction is the same backwards
    in time.

    Source: the argument is ours. The exact optimum for a chain of equal links is W / B +
        (cuts − 1) · (W / k) / R, the makespan of a proportionate flow shop (Pinedo, "Scheduling",
        chapter 6), which exceeds W / B by about twice as much.
    """

    ends: tuple[int, ...]
    """Node ids: the server that has the block and the one that must receive it; only the root if
    all others count."""
    bytes: int
    """Bytes of the block."""
    waits: Fraction
    """How often bytes in flight delay the end: the number of cuts less one, or less than one."""
    across: Fraction
    """Maximum bytes per second across each cut."""
    fastest: Fraction
    """Bytes per second of the fastest transfer."""
    slowest: Fraction
    """Bytes per second of the slowest transfer."""
    overhead: Fraction
    """Minimum overhead of each transfer, in seconds."""
    besides: Fraction
    """Minimum seconds of latencies on the way, and of transfers between the cuts."""
    least: Fraction
    """Seconds without `besides`; see `holds`."""

    @property
    def seconds(self) -> float:
        """The bound in seconds."""
        return float(self.least + self.besides)

    def holds(self) -> bool:
        """Whether no number of pieces takes less than `least`; exact.

        With T = `least`, the inequality times k is a·k² + c·k + e ≥ 0. It holds for every positive
        k if c is not negative or c² is at most 4·a·e.
        """
        each, waits = self.slowest * self.overhead, self.waits / (2 * self.across * self.fastest)
        return _enough(self.least, self.bytes, waits, self.across, each)

    def reason(self, name: Name = str) -> str:
        """The bound in words.

        Args:
            name: (node id) -> display name.
        """
        size, rate = format_size(self.bytes), format_bandwidth(float(self.across))
        each = f"each message takes {format_seconds(float(self.overhead))} on top of its bytes"
        if len(self.ends) == 1:
            return (
                f"{size} must pass server {name(self.ends[0])} and the ports of all others at "
                f"{rate} each, others relay only whole pieces, and {each}"
            )
        here, there = map(name, self.ends)
        return (
            f"{size} must pass {self.waits + 1} cuts of {rate} from server {here} to server "
            f"{there} in whole pieces, and {each}"
        )


@functools.lru_cache(maxsize=64)  # a search asks for it at each of its steps
def pipeline_bound(
    topology: Topology, size: int, root: int, *, towards: bool = False
) -> PipelineBound | None:
    """The minimum time in which a block goes from one server to all others, or from all to it.

    Each cut separates the servers up to some number of transfers from the root, or from the
    farthest server, from those that are farther away.

    Args:
        topology: the network; one transfer covers any route between two servers.
        size: bytes of the block.
        root: node id of the server.
        towards: whether the block goes to the root.

    Returns:
        The best bound found, or None if there are only two servers.

    >>> import gradweave as gw
    >>> found = pipeline_bound(gw.topology.ring(8), 10**7, 0)
    >>> print(found.waits + 1, f"{found.seconds * 1e6:.0f} µs", found.holds())
    4 453 µs True
    """
    hops = hop_distances(topology).astype(np.int64)
    away = hops.T if towards else hops
    source, target = topology.source, topology.target
    if towards:
        source, target = target, source
    place = int(topology.rank[root])
    rate = topology.bandwidth_bytes_per_s.astype(np.float64)
    best = _spread(topology, size, root, (source, target))
    farthest = np.argsort(-away[place], kind="stable")[:MAX_ENDS]
    for end in farthest[away[place][farthest] > 1].tolist():
        far = int(away[place, end])
        for level in (np.minimum(away[place], far), np.clip(far - away[:, end], 0, far)):
            across = _across(topology, level, far, (source, target), rate)
            for most in np.unique(across).tolist():
                cuts = int((across <= most).sum())
                if cuts == 1:
                    continue
                pair = (root, int(topology.servers[end]))
                pair = pair[::-1] if towards else pair
                # The overheads of transfers across the cuts are in W; all others count on their
                # own.
                waits, besides = Fraction(cuts - 1), (far, far - cuts)
                found = _least(topology, size, pair, waits, most, besides)
                if best is None or found.seconds > best.seconds:
                    best = found
    return best


def _across(
    topology: Topology,
    level: Integers,
    far: int,
    ends: tuple[Integers, Integers],
    rate: NDArray[np.float64],
) -> NDArray[np.float64]:
    """[far] bytes per second from servers below each level to the others, the better of two cuts.

    Args:
        topology: the network.
        level: [N] level of each server.
        far: the largest level.
        ends: [L] nodes that bytes leave and enter.
        rate: [L] bytes per second.
    """
    of_node = np.zeros(topology.num_nodes, np.int64)
    found = np.full(far, np.inf)
    for of_switches in (-1, far):  # all switches before the cut, or all behind it
        of_node[:] = of_switches
        of_node[topology.servers] = level
        for number in range(far):
            crosses = (of_node[ends[0]] <= number) & (of_node[ends[1]] > number)
            found[number] = min(found[number], float(rate[crosses].sum()))
    return found


def _spread(
    topology: Topology, size: int, root: int, ends: tuple[Integers, Integers]
) -> PipelineBound | None:
    """The bound from the root's sends before others can relay, or None for two servers.

    Args:
        topology: the network.
        size: bytes of the block.
        root: node id.
        ends: [L] nodes that bytes leave and enter.
    """
    others, rate = topology.num_servers - 1, topology.bandwidth_bytes_per_s.astype(np.float64)
    if others < 2:
        return None
    into = topology.is_server[ends[1]] & (ends[1] != root)
    most = max(float(rate[ends[0] == root].sum()), float(rate[into].sum()) / others)
    return _least(topology, size, (root,), Fraction(others - 1, others), most, (1, 0))


def _least(
    topology: Topology,
    size: int,
    ends: tuple[int, ...],
    waits: Fraction,
    across: float,
    besides: tuple[int, int],
) -> PipelineBound:
    """The largest time that `holds`.

    Args:
        topology: the network.
        size: bytes of the block.
        ends: as in the bound.
        waits: as in the bound.
        across: bytes per second across a cut.
        besides: numbers of latencies and overheads to add.
    """
    rate = topology.bandwidth_bytes_per_s
    overhead, latency = (
        Fraction(float(one.min())) for one in (topology.overhead_s, topology.latency_s)
    )
    made = PipelineBound(
        ends=ends,
        bytes=size,
        waits=waits,
        across=Fraction(across),
        fastest=Fraction(float(rate.max())),
        slowest=Fraction(float((rate / topology.capacity).min())),
        overhead=overhead,
        besides=besides[0] * latency + besides[1] * overhead,
        least=Fraction(0),
    )
    each = float(made.slowest * overhead)
    of_waits = float(waits) / (2 * across * float(made.fastest))

    # Bisection in floats over a range that is wide enough in practice; `holds` confirms the result
    # in fractions, whatever the range.
    low, high = 0.0, (1 + float(waits)) * (4 * size / across + 100 * float(overhead))
    while high - low > ROUNDING * high:
        middle = (low + high) / 2
        holds = _enough(middle, size, of_waits, across, each)
        low, high = (middle, high) if holds else (low, middle)
    found = dataclasses.replace(made, least=Fraction(low * (1 - ROUNDING)))
    return found if found.holds() else made


def _enough(least: _Number, size: int, waits: _Number, across: _Number, each: _Number) -> bool:
    """Whether no number of pieces takes less than some time; see `PipelineBound.holds`.

    Args:
        least: the time.
        size: bytes of the block.
        waits: the number of waits over twice the rates across a cut and of the fastest transfer.
        across: bytes per second across a cut.
        each: bytes that the slowest transfer could send during the overhead.
    """
    rate = least / across
    a = waits * each**2 + rate * each
    c = 2 * waits * each * size + (rate * size - least**2)
    return bool(c >= 0 or c * c <= 4 * a * waits * size**2)
