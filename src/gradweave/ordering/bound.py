"""What no ring, or no all-reduce, takes less than, whatever the order of ranks."""

import dataclasses
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import Name, inside_named
from gradweave.bounds.least_seconds import least_seconds
from gradweave.ordering.pattern import Routes, ring_bytes
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_bandwidth, format_seconds

Kind = Literal["cut", "hops", "processors", "any"]


@dataclasses.dataclass(frozen=True)
class OrderBound:
    """No order of ranks is predicted to take less, and why."""

    seconds: float
    kind: Kind
    """``cut``: a hop must leave or enter some servers; ``hops``: a piece's way round; 
    ``processors``: what messages cost at their ends; or ``any``: no all-reduce takes less."""
    servers: tuple[int, ...] = ()
    """Of a cut: node ids of the servers inside."""
    leaving: bool = True
    """Of a cut: whether the hop leaves them, or enters."""
    bandwidth_bytes_per_s: float = 0.0
    """Of a cut: the most that a route across it has."""
    why: str = ""
    """Of any all-reduce: what bounds it."""

    def __str__(self) -> str:
        return self.described()

    def described(self, name: Name = str) -> str:
        """The bound and its reason in one sentence.

        Args:
            name: (node id) -> what it is called; ids if not given.
        """
        return f"at least {format_seconds(self.seconds)}, since {self.reason(name)}"

    def reason(self, name: Name = str) -> str:
        """Why, in words; see `described`."""
        if self.kind == "processors":
            return "messages keep each server's processors busy that long"
        if self.kind == "any":
            return self.why
        if self.kind == "hops":
            return "a piece makes that many hops one after the other, each server's cheapest ones"
        verb = "leave" if self.leaving else "enter"
        inside = inside_named(self.servers, (), name)
        widest = format_bandwidth(self.bandwidth_bytes_per_s)
        return f"a hop must {verb} {inside}, by a route of at most {widest}"


def ring_bound(
    topology: Topology,
    routes: Routes,
    gradient_bytes: float,
    *,
    parts: int = 1,
    work_s: float = 0.0,
    start_s: float = 0.0,
) -> OrderBound:
    """A lower bound for the time of the ring all-reduce, over all orders of ranks.

    A ring is a cycle of hops through all N servers. Each hop carries B = 2·(N−1)/N·M bytes over
    one route, one of ``routes``; a piece takes 2·(N−1) hops, one after the other.

    **Cuts.** Let S be some of the servers, not all. Since the cycle comes back to where it began,
    at least one hop leaves S, and at least one enters. The scarcest link of its route, of bandwidth
    b, carries its B bytes, and is held for its messages' overheads: a message of rate r takes r/b
    of the link for its overhead o, besides its bytes over b, and r is at least ρ, the least share
    of a link of its route with as many messages in a round as its capacity. So a hop takes at least
    B/b + n·o·ρ/b, with n messages, and the ring at least the cheapest hop that leaves S, or enters.
    The best such bound over all 2^N − 2 sets is found exactly. Call θ the least time at which the
    hops that take no more lead from each server to each other one, over others in between. For
    every S some such hop leaves it, so that no set bounds more than θ. And with cheaper hops alone
    some server does not reach some other: those that it reaches are a set that no cheaper hop than
    θ leaves; or those that do not reach it, one that none enters. Single servers, groups, and the
    sets of a tree of cuts are all among them.

    **Hops.** A piece makes every hop but the one that leaves its root while it is summed, and every
    hop but the one that enters its root while it is copied: in each stage each hop is left out by
    one piece of the N. So the mean piece's hops take 2·(N−1)/N of what a piece needs for one round
    of the cycle, and the slowest piece no less than the mean. One round has a hop from each server
    and one into each, each taking at least the cheapest hop's latency, overhead and bytes.

    **Processors.** What messages cost at their ends, where that is the same for all orders.

    Each of the three holds, so that the largest does; the start of the call comes on top. It holds
    in the event model of `gradweave.simulate` and wherever links carry no more than their
    bandwidth, on these routes.

    Args:
        topology: the network.
        routes: of all pairs, with what a message costs in ``fixed_s``.
        gradient_bytes: size of the whole gradient, M.
        parts: how many each of the N pieces is cut into.
        work_s: what processors take for all messages.
        start_s: of the call.

    Source: a cycle crosses each cut, as in the traveling salesman's bottleneck problem (Garfinkel
        and Gilbert 1978).
    """
    count = routes.servers
    piece = gradient_bytes / count / parts
    carried = ring_bytes(count, gradient_bytes) * (1 + routes.least_padding / piece)
    cut_s, (inside, leaving) = _best_cut(carried * routes.slowest)
    hop_s = routes.fixed_s + piece * routes.slowest
    hop_s = np.where(np.eye(count, dtype=bool), np.inf, hop_s)
    round_s = max(float(hop_s.min(axis=0).sum()), float(hop_s.min(axis=1).sum()))
    hops_s = 2 * (count - 1) / count * round_s
    found = max(cut_s, hops_s, work_s)
    if found == cut_s:
        servers = tuple(topology.servers[inside].tolist())
        across = routes.slowest[np.ix_(inside, ~inside) if leaving else np.ix_(~inside, inside)]
        return OrderBound(start_s + cut_s, "cut", servers, leaving, 1 / float(across.min()))
    return OrderBound(start_s + found, "hops" if found == hops_s else "processors")


def any_bound(topology: Topology, gradient_bytes: float, start_s: float = 0.0) -> OrderBound:
    """A lower bound for every all-reduce that is built from trees, so of every order.

    Halving and doubling, recursive doubling (whose exchanges are a tree into each server and one
    out of it) and binary trees are.

    Args:
        topology: the network, with what a message costs in its latencies.
        gradient_bytes: size of the whole gradient.
        start_s: of the call.
    """
    least = least_seconds(topology, gradient_bytes)
    why = f"no all-reduce takes less: {least}"
    return OrderBound(start_s + least.seconds, "any", why=why)


def _best_cut(hop_s: NDArray[np.float64]) -> tuple[float, tuple[NDArray[np.bool_], bool]]:
    """The most that a cut costs; its servers, and whether the hop leaves them.

    Args:
        hop_s: [N, N] what a hop takes at least.
    """
    off = ~np.eye(len(hop_s), dtype=bool)
    values = np.unique(hop_s[off])
    low, high = 0, len(values) - 1  # with all hops of at most values[high] all reach each other
    while low < high:
        middle = (low + high) // 2
        if _unreached((hop_s <= values[middle]) & off) is None:
            high = middle
        else:
            low = middle + 1
    cut = _unreached((hop_s < values[low]) & off)
    assert cut is not None
    return float(values[low]), cut


def _unreached(allowed: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], bool] | None:
    """Some servers that no allowed hop leaves (True) or enters (False), the fewer side if both.

    None where all reach each other.
    """
    for hops, leaving in ((allowed, True), (allowed.T, False)):
        inside = np.zeros(len(hops), bool)
        frontier = np.zeros(len(hops), bool)
        frontier[0] = True
        while frontier.any():
            inside |= frontier
            frontier = hops[frontier].any(axis=0) & ~inside
        if not inside.all():
            if 2 * inside.sum() > len(inside):
                # What leaves one side enters the other.
                return ~inside, not leaving
            return inside, leaving
    return None
