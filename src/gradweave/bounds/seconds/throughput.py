"""The maximum throughput of collectives built from trees, as an exact fraction."""

import dataclasses
import functools
import math
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import Certificate, Name, inside_named
from gradweave.bounds.classes import (
    STAGES_OVERLAP,
    SUMS_MEET_ANYWHERE,
    SWITCHES_ADD,
    UNEQUAL_PARTS,
    class_of,
)
from gradweave.bounds.flows import MAX_INT64_FLOW, MaximumFlows, nodes_inside, worst_cut
from gradweave.common.wording import counted
from gradweave.errors import OptionError
from gradweave.schedules.schedule import Collective, check_collective
from gradweave.topology.groups import Groups, nested_groups
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_bandwidth

MAX_FLOW_NODES = 4096
"""Nodes of a network with groups up to which its narrowest cut is found by two flows per server,
which takes ten seconds of processor time. Beyond, the bound for overlapping stages uses only the
narrowest server and the groups; it stays valid."""


@dataclasses.dataclass(frozen=True)
class Bottleneck(Certificate):
    """The limit of a stage: pieces that must cross a boundary, and the bandwidth across it."""

    stage: Collective
    """The stage; ``all_reduce`` if both stages overlap."""
    kind: Literal["cut", "ports", "groups"]
    """``cut``: a set of nodes and the links that leave or enter it. ``ports``: all servers' ports
    together. ``groups``: the links of groups of servers, all groups together."""
    servers: tuple[int, ...]
    """The servers inside."""
    switches: tuple[int, ...]
    """The switches inside."""
    leaving: bool
    """Whether the pieces leave the set, or the servers, or enter them."""
    pieces: int
    """How often a piece must cross."""
    bandwidth_bytes_per_s: Fraction
    """Total bandwidth of all links that cross in that direction."""
    groups: int = 0
    """Number of groups, for ``groups``: the level of `gradweave.topology.groups` with this many."""

    @property
    def time_per_byte(self) -> Fraction:
        """Minimum seconds that the crossing takes per byte of a piece."""
        return self.pieces / self.bandwidth_bytes_per_s

    def reason(self, name: Name = str) -> str:
        """The bottleneck in words.

        Args:
            name: (node id) -> display name; ids if not given.
        """
        crossing = f"at {format_bandwidth(float(self.bandwidth_bytes_per_s))}"
        verb = "leave" if self.leaving else "enter"
        stage = self.stage.replace("_", "-")
        if self.kind == "ports":
            moved = counted(self.pieces, "transfer")
            return f"{moved} of the {stage} must {verb} the servers {crossing}"
        if self.kind == "groups":
            moved = counted(self.pieces, "transfer")
            return f"{moved} of the {stage} must {verb} {self.groups} groups of servers {crossing}"
        inside = inside_named(self.servers, self.switches, name)
        pieces = counted(self.pieces, "piece")
        return f"{pieces} of the {stage} must {verb} {inside} {crossing}"


@dataclasses.dataclass(frozen=True)
class Throughput:
    """The maximum bytes per second that a collective can reach, and the reason.

    Latency is left out, and pieces may be arbitrarily small.
    """

    collective: Collective
    num_servers: int
    """N, which is also the number of equal parts that the gradient is cut into."""
    unit_bytes_per_s: Fraction
    """The greatest common unit of the links' bandwidths."""
    bottlenecks: tuple[Bottleneck, ...]
    """One per stage."""
    attained: bool
    """Whether a packing of trees is known to reach it; if not, it is only an upper bound."""

    @property
    def time_per_piece(self) -> Fraction:
        """1/x*: the time for pieces of one unit each, over links that carry one unit per unit time.

        If capacities are bandwidths in that unit, no schedule with c pieces per server has fewer
        rounds than c times this value.
        """
        return self.unit_bytes_per_s * sum(b.time_per_byte for b in self.bottlenecks)

    @property
    def holds_unless(self) -> frozenset[str]:
        """Liberties that void the bound if a schedule takes one; see `gradweave.bounds.classes`."""
        each = {one.stage for one in self.bottlenecks}
        unless = {SWITCHES_ADD for one in self.bottlenecks if one.kind != "cut"}
        unless |= {UNEQUAL_PARTS} if each != {"all_reduce"} else set()
        unless |= {SUMS_MEET_ANYWHERE, STAGES_OVERLAP} if len(each) > 1 else set()
        return frozenset(unless)

    @property
    def bytes_per_s(self) -> Fraction:
        """Bytes of the gradient per second: N·x* (what NCCL's tests call algorithm bandwidth)."""
        return self.num_servers * self.unit_bytes_per_s / self.time_per_piece

    def seconds(self, gradient_bytes: float) -> float:
        """The minimum time for a gradient.

        Args:
            gradient_bytes: size of the whole gradient, M; an all-gather starts with M/N per server.

        Raises:
            OptionError: if the size is negative or not finite.
        """
        if not 0 <= gradient_bytes < math.inf:
            raise OptionError(
                f"gradient_bytes: expected a finite number, zero or more, got {gradient_bytes}"
            )
        return float(Fraction(gradient_bytes) / self.bytes_per_s)

    def __str__(self) -> str:
        return self.described()

    def described(self, name: Name = str) -> str:
        """The bound and its reason in one sentence.

        Args:
            name: (node id) -> display name, such as `Topology.id_name`; ids if not given.
        """
        rate = format_bandwidth(float(self.bytes_per_s))
        most = f"at most {rate} of gradient{class_of(self.holds_unless)}"
        return f"{most}, since {self.reason(name)}"

    def reason(self, name: Name = str) -> str:
        """The limits of the stages in words; see `described`."""
        return ", then ".join(bottleneck.reason(name) for bottleneck in self.bottlenecks)


def throughput(
    topology: TopologyLike, collective: Collective = "all_gather", *, overlap: bool = False
) -> Throughput:
    """The maximum throughput of a collective built from trees, for equal parts of the gradient.

    For an all-gather, 1/x* is the largest |S| / (bandwidth that leaves S) over all sets S of
    servers that miss one, with switches on whichever side makes it larger. A reduce-scatter is the
    all-gather on the opposite directions, and an all-reduce is one after the other. Bandwidths
    enter as exact fractions; capacities and latencies are left out.

    The throughput is reached, as pieces get smaller, if each node's links have as much bandwidth
    in as out, or if there are no switches. Otherwise switches, which cannot copy, may fall short,
    so the total of transfers over all ports is a second bound; `Throughput.attained` says which
    holds.

    Args:
        topology: the network.
        collective: a stage, or both.
        overlap: whether both stages of an all-reduce may run at once. The bound is then weaker: the
            whole gradient leaves every set of servers, and each byte enters servers 2(N−1) times.
            It also holds for unequal parts.

    Returns:
        The throughput, with the bottleneck of each stage as its certificate.

    Raises:
        OptionError: for an unknown collective.

    Source: Zhao et al., "ForestColl: Throughput-Optimal Collective Communications on Heterogeneous
        Network Fabrics", the optimality condition; Newton's iteration on ratios (Dinkelbach 1967)
        instead of its binary search; docs/concepts/bounds.md.

    >>> import gradweave as gw
    >>> best = gw.bounds.throughput(gw.topology.ring(8))
    >>> best.time_per_piece / 8
    Fraction(7, 16)
    >>> print(best)
    at most 228.6 Gbit/s of gradient for schedules that root equal parts at all servers, since 7
    pieces of the all-gather must enter server 0 at 200 Gbit/s
    """
    topology = as_topology(topology)
    check_collective(collective)
    return _throughput(topology, collective, overlap)


@functools.lru_cache(maxsize=4)  # a search for the minimum time asks for it repeatedly
def _throughput(topology: Topology, collective: Collective, overlap: bool) -> Throughput:
    unit, bandwidth = _in_units(topology)
    forward = MaximumFlows(topology, bandwidth)
    if collective == "all_reduce" and overlap:
        whole = _overlapped(forward, unit)
        return Throughput(collective, topology.num_servers, unit, (whole,), False)
    backward = MaximumFlows(topology, bandwidth[topology.opposite])
    gather = None if collective == "reduce_scatter" else _of_stage(forward, "all_gather", unit)
    if collective == "all_gather":
        scatter = None
    elif gather is not None and np.array_equal(forward.bandwidth, backward.bandwidth):
        scatter = dataclasses.replace(gather, stage="reduce_scatter", leaving=not gather.leaving)
    else:
        scatter = _of_stage(backward, "reduce_scatter", unit)
    bottlenecks = tuple(bottleneck for bottleneck in (scatter, gather) if bottleneck is not None)
    attained = topology.num_servers == topology.num_nodes or _as_much_in_as_out(topology, bandwidth)
    return Throughput(collective, topology.num_servers, unit, bottlenecks, attained)


def _in_units(topology: Topology) -> tuple[Fraction, NDArray]:
    """The bandwidths' greatest common unit, and [L] bandwidths in it as integers of any size."""
    values, place = np.unique(topology.bandwidth_bytes_per_s, return_inverse=True)
    exact = [Fraction(value) for value in values.tolist()]
    scale = math.lcm(*(value.denominator for value in exact))
    unit = Fraction(math.gcd(*(int(value * scale) for value in exact)), scale)
    integers = np.array([int(value / unit) for value in exact], object)[place]
    small = int(integers.sum()) * topology.num_servers < MAX_INT64_FLOW
    return unit, integers.astype(np.int64) if small else integers


def _as_much_in_as_out(topology: Topology, bandwidth: NDArray) -> bool:
    balance = np.zeros(topology.num_nodes, bandwidth.dtype)
    np.add.at(balance, topology.source, bandwidth)
    np.subtract.at(balance, topology.target, bandwidth)
    return not balance.any()


def _of_stage(flows: MaximumFlows, stage: Collective, unit: Fraction) -> Bottleneck:
    """The limit of a stage; a reduce-scatter's flows run over the opposite directions."""
    cut, ports = _worst_cut(flows, stage, unit), _all_ports(flows, stage, unit)
    return max(cut, ports, key=lambda bottleneck: bottleneck.time_per_byte)


def _worst_cut(flows: MaximumFlows, stage: Collective, unit: Fraction) -> Bottleneck:
    """The set of servers S with the largest |S| / (bandwidth that leaves S)."""
    topology = flows.topology
    _, inside = worst_cut(flows, max(_one_apart(flows), key=flows.ratio))
    pieces = int(inside[topology.servers].sum())
    leaving, boundary = flows.leaving(inside), inside
    if inside.sum() * 2 > topology.num_nodes:
        boundary = ~inside
    out = (boundary is inside) == (stage == "all_gather")
    return _bottleneck(topology, stage, boundary, out, pieces, leaving * unit)


def _one_apart(flows: MaximumFlows) -> NDArray[np.bool_]:
    """[2, V] the server with minimum bandwidth out, and all but that with minimum bandwidth in."""
    topology = flows.topology
    narrowest = []
    for ends in (topology.source, topology.target):
        sums = np.zeros(topology.num_nodes, flows.bandwidth.dtype)
        np.add.at(sums, ends, flows.bandwidth)
        narrowest.append(topology.servers[np.argmin(sums[topology.servers])])
    alone = np.arange(topology.num_nodes) == np.array(narrowest)[:, None]
    alone[1] = ~alone[1]
    return alone


def _bottleneck(
    topology: Topology,
    stage: Collective,
    inside: NDArray[np.bool_],
    leaving: bool,
    pieces: int,
    bandwidth_bytes_per_s: Fraction,
) -> Bottleneck:
    servers, switches = nodes_inside(topology, inside)
    return Bottleneck(stage, "cut", servers, switches, leaving, pieces, bandwidth_bytes_per_s)


def _all_ports(flows: MaximumFlows, stage: Collective, unit: Fraction) -> Bottleneck:
    """N(N−1) transfers leave servers, since switches cannot copy.

    In a reduce-scatter they enter servers, since switches cannot add; its links are reversed.
    """
    topology, count = flows.topology, flows.topology.num_servers
    ports = int(flows.bandwidth[topology.is_server[topology.source]].sum())
    out = stage == "all_gather"
    servers = tuple(topology.servers.tolist())
    return Bottleneck(stage, "ports", servers, (), out, count * (count - 1), ports * unit)


def _overlapped(flows: MaximumFlows, unit: Fraction) -> Bottleneck:
    """Both stages together: all N pieces leave every set of servers; 2N(N−1) transfers in total."""
    topology, count = flows.topology, flows.topology.num_servers
    levels = nested_groups(topology)
    many = bool(levels) and topology.num_nodes > MAX_FLOW_NODES
    inside = min(_one_apart(flows), key=flows.leaving) if many else flows.narrowest_cut()
    cut = _bottleneck(topology, "all_reduce", inside, True, count, flows.leaving(inside) * unit)
    leaving, entering = (
        int(flows.bandwidth[topology.is_server[ends]].sum())
        for ends in (topology.source, topology.target)
    )
    ports = Bottleneck(
        "all_reduce",
        "ports",
        tuple(topology.servers.tolist()),
        (),
        leaving <= entering,
        2 * count * (count - 1),
        min(leaving, entering) * unit,
    )
    groups = [_all_groups(flows, level, unit) for level in levels]
    return max(ports, cut, *groups, key=lambda bottleneck: bottleneck.time_per_byte)


def _all_groups(flows: MaximumFlows, level: Groups, unit: Fraction) -> Bottleneck:
    """Both stages together: each byte leaves, and enters, G groups 2(G−1) times in total.

    Each group may count as one server, which makes transfers inside it free.
    """
    topology, count = flows.topology, flows.topology.num_servers
    source, target = level.group[topology.source], level.group[topology.target]
    leaving, entering = (
        int(flows.bandwidth[(own >= 0) & (own != other)].sum())
        for own, other in ((source, target), (target, source))
    )
    return Bottleneck(
        "all_reduce",
        "groups",
        tuple(topology.servers.tolist()),
        (),
        leaving <= entering,
        2 * count * (level.count - 1),
        min(leaving, entering) * unit,
        level.count,
    )
