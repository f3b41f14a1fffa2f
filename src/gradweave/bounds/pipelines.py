"""Lower bounds for blocks that pass several cuts one after the other, each piece whole."""

import dataclasses
import functools
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import Name
from gradweave.topology.routes import hop_distances
from gradweave.topology.topology import Integers, Topology
from gradweave.topology.units import format_bandwidth, format_seconds, format_size

MAX_ENDS = 32
"""Servers at the far end that are tried, the farthest first."""

ROUNDING = 1e-9
"""Share of the bound up to which it is sought."""


@dataclasses.dataclass(frozen=True)
class PipelineBound:
    """No schedule moves a block from one server to another in less time, in however many pieces.

    Each piece passes several cuts, over one transfer each at least, and over the next one only when
    it has come whole. A transfer of s bytes at rate r holds its links for overhead + s / r. Let W
    be the bytes and, of each of k pieces, the slowest rate times the overhead; B what a cut carries
    in a second, and R the fastest rate. What is on its way over a cut cannot be on its way over the
    next: averaged over the time T, that is Σ w² / (2 R T) ≥ W² / (2 R k T) at each cut but the
    last. So T (T − W / B) ≥ waits · W² / (2 B R k), for some k, with a wait for each cut but one.

    Where a root sends to N − 1 others, whose ports take B each on average, as its own at most: what
    it has not yet sent whole all but one of them must still receive, so that waits are
    (N − 2) / (N − 1), whatever the distance. A reduction is the same backwards in time.

    Source: the argument is ours. Of a chain of equal links the exact least is W / B +
        (cuts − 1) · (W / k) / R, the makespan of a proportionate flow shop (Pinedo, "Scheduling",
        chapter 6), about twice as much above W / B.
    """

    ends: tuple[int, ...]
    """Node ids: where the block is, and where it must come; only the root, where all others
    count."""
    bytes: int
    """Of the block."""
    waits: Fraction
    """Times that what is on its way delays the end: cuts less one, or less than one."""
    across: Fraction
    """Bytes per second that each of them carries at most."""
    fastest: Fraction
    """Bytes per second of the fastest transfer."""
    slowest: Fraction
    """And of the slowest."""
    overhead: Fraction
    """Seconds of each transfer, at least."""
    besides: Fraction
    """Seconds of latencies on the way, and of transfers between those cuts, at least."""
    least: Fraction
    """Seconds without `besides`; see `holds`."""

    @property
    def seconds(self) -> float:
        """The bound."""
        return float(self.least + self.besides)

    def holds(self) -> bool:
        """Whether no number of pieces takes less than `least`; exact.

        Of k pieces the inequality is, times k, a·k² + c·k + e ≥ 0 where `least` is T, which is so
        for every k above 0 if c is not negative, or c² at most 4 a e.
        """
        each = self.slowest * self.overhead
        waits = self.waits / (2 * self.across * self.fastest)
        rate = self.least / self.across
        a = waits * each**2 + rate * each
        c = 2 * waits * each * self.bytes + rate * self.bytes - self.least**2
        e = waits * self.bytes**2
        return c >= 0 or c * c <= 4 * a * e

    def reason(self, name: Name = str) -> str:
        """The bound in words.

        Args:
            name: (node id) -> what it is called.
        """
        size, rate = format_size(self.bytes), format_bandwidth(float(self.across))
        each = f"each message takes {format_seconds(float(self.overhead))} beside its bytes"
        if len(self.ends) == 1:
            return (
                f"{size} pass server {name(self.ends[0])} and the ports of all others at {rate} "
                f"each, on the way between others only in whole pieces, and {each}"
            )
        here, there = map(name, self.ends)
        return (
            f"{size} pass {self.waits + 1} cuts of {rate} from server {here} to server {there}, "
            f"each piece whole, and {each}"
        )


@functools.lru_cache(maxsize=64)  # a search asks for it at each of its steps
def pipeline_bound(
    topology: Topology, size: int, root: int, *, towards: bool = False
) -> PipelineBound | None:
    """The least time in which a block goes from one server to all others, or from all to it.

    Cuts are between servers that are so many transfers away from the root, and those that are
    farther; or from the farthest server.

    Args:
        topology: the network; whatever goes from server to server is one transfer.
        size: bytes of the block.
        root: node id of the server.
        towards: whether it goes to the root.

    Returns:
        The best that was found; None where there are but two servers.

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
    """[far] bytes per second from servers below each level to all others; of switches the better.

    Args:
        topology: the network.
        level: [N] of each server.
        far: of the last.
        ends: [L] nodes that what moves leaves and enters.
        rate: [L] bytes per second.
    """
    of_node = np.zeros(topology.num_nodes, np.int64)
    found = np.full(far, np.inf)
    for of_switches in (-1, far):  # all of them before the cut, or behind it
        of_node[:] = of_switches
        of_node[topology.servers] = level
        for number in range(far):
            crosses = (of_node[ends[0]] <= number) & (of_node[ends[1]] > number)
            found[number] = min(found[number], float(rate[crosses].sum()))
    return found


def _spread(
    topology: Topology, size: int, root: int, ends: tuple[Integers, Integers]
) -> PipelineBound | None:
    """What the root must send before others can pass it on; None where there is but one other.

    Args:
        topology: the network.
        size: bytes of the block.
        root: node id.
        ends: [L] nodes that what moves leaves and enters.
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
        ends: as of the bound.
        waits: as of the bound.
        across: bytes per second of a cut.
        besides: how many latencies and overheads there are beside it.
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

    def enough(least: float) -> bool:
        a, c = of_waits * each**2 + least / across * each, 2 * of_waits * each * size
        c += least / across * size - least**2
        return c >= 0 or c * c <= 4 * a * of_waits * size**2

    low, high = 0.0, (1 + float(waits)) * (4 * size / across + 100 * float(overhead))
    while high - low > ROUNDING * high:
        low, high = (
            ((low + high) / 2, high) if enough((low + high) / 2) else (low, (low + high) / 2)
        )
    found = dataclasses.replace(made, least=Fraction(low * (1 - ROUNDING)))
    return found if found.holds() else made
