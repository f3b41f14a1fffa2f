"""Lower bounds on the time of rings, and of any all-reduce, over all rank orders."""

import dataclasses
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.bounds.bound import Name, inside_named
from gradweave.bounds.seconds.least_seconds import least_seconds
from gradweave.ranks.pattern import Routes, ring_bytes
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_bandwidth, format_seconds

Kind = Literal["cut", "hops", "processors", "any"]

ON_ROUTES = "where each two servers use the widest of their shortest routes"
"""Condition of bounds that count routes, since a library cannot choose routes."""


@dataclasses.dataclass(frozen=True)
class OrderBound:
    """A lower bound on the predicted time for any rank order, and the reason."""

    seconds: float
    kind: Kind
    """``cut``: a hop must leave or enter some servers. ``hops``: a piece's way around the ring.
    ``processors``: the cost of messages at their ends. ``any``: a bound on all all-reduces."""
    servers: tuple[int, ...] = ()
    """For a cut: node ids of the servers inside."""
    leaving: bool = True
    """For a cut: whether the hop leaves them, or enters."""
    bandwidth_bytes_per_s: float = 0.0
    """For a cut: the largest bandwidth of a route across it."""
    why: str = ""
    """For any all-reduce: the reason."""

    def __str__(self) -> str:
        return self.described()

    def described(self, name: Name = str) -> str:
        """The bound and its reason in one sentence.

        Args:
            name: (node id) -> display name; ids if not given.
        """
        return f"at least {format_seconds(self.seconds)}, since {self.reason(name)}"

    def reason(self, name: Name = str) -> str:
        """The reason in words; see `described`."""
        if self.kind == "processors":
            return "messages keep each server's processors busy that long"
        if self.kind == "any":
            return self.why
        if self.kind == "hops":
            hops = "a piece makes that many hops one after the other, each server's cheapest ones"
            return f"{hops}, {ON_ROUTES}"
        verb = "leave" if self.leaving else "enter"
        inside = inside_named(self.servers, (), name)
        widest = format_bandwidth(self.bandwidth_bytes_per_s)
        return f"a hop must {verb} {inside}, by a route of at most {widest}, {ON_ROUTES}"


def ring_bound(
    topology: Topology,
    routes: Routes,
    gradient_bytes: float,
    *,
    parts: int = 1,
    work_s: float = 0.0,
    start_s: float = 0.0,
) -> OrderBound:
    """A lower bound on the time of the ring all-reduce, over all rank orders.

    A ring is a cycle of hops through all N servers. Each hop carries B = 2·(N−1)/N·M bytes over
    one route from ``routes``; a piece takes 2·(N−1) hops, one after the other.

    **Cuts.** Let S be some of the servers, but not all. Since a cycle returns to its start, at
    least one hop leaves S, and at least one enters it. The scarcest link of its route, of bandwidth
    b, carries the B bytes and is also held for message overheads: a message of rate r takes r/b of
    the link for its overhead o, in addition to its bytes over b. The rate r is at least ρ, the
    smallest share of a link on its route if that link has as many messages in a round as its
    capacity. So a hop with n messages takes at least B/b + n·o·ρ/b, and the ring at least as long
    as the cheapest hop that leaves, or enters, S. The best such bound over all 2^N − 2 sets is
    found exactly. Let θ be the smallest time for which hops of at most that time connect each
    server to each other one, possibly through others. For every S such a hop leaves it, so no set
    gives more than θ. With only cheaper hops, some server does not reach some other one. Then the
    servers that it reaches are a set that no hop cheaper than θ leaves, or the servers that do not
    reach it are a set that no such hop enters. Single servers, groups, and the sets of a tree of
    cuts are all special cases.

    **Hops.** A piece makes every hop except the one that leaves its root while it is summed, and
    every hop except the one that enters its root while it is copied: in each stage each hop is left
    out by one of the N pieces. So the mean piece's hops take 2·(N−1)/N of the time of one round of
    the cycle, and the slowest piece takes at least the mean. A round has one hop from each server
    and one into each, and each takes at least the cheapest hop's latency, overhead and bytes.

    **Processors.** The cost of messages at their ends, if it is the same for all orders.

    Each of the three is a bound, so the largest is used; the start of the call is added. It holds
    in the event model of `gradweave.simulator`, and whenever links carry no more than their
    bandwidth, on these routes.

    Args:
        topology: the network.
        routes: routes of all pairs, with the cost of a message in ``fixed_s``.
        gradient_bytes: size of the whole gradient, M.
        parts: number of parts that each of the N pieces is cut into.
        work_s: processor time of all messages.
        start_s: start time of the call.

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
    """A lower bound for every all-reduce that is built from trees, and so for every order.

    This covers halving and doubling, recursive doubling (whose exchanges are a tree into each
    server and one out of it) and binary trees.

    Args:
        topology: the network, with the cost of messages in its latencies.
        gradient_bytes: size of the whole gradient.
        start_s: start time of the call.
    """
    least = least_seconds(topology, gradient_bytes)
    why = f"no all-reduce takes less: {least}"
    return OrderBound(start_s + least.seconds, "any", why=why)


def _best_cut(hop_s: NDArray[np.float64]) -> tuple[float, tuple[NDArray[np.bool_], bool]]:
    """The largest cost of a cut; its servers, and whether the hop leaves them.

    Args:
        hop_s: [N, N] minimum time of each hop.
    """
    off = ~np.eye(len(hop_s), dtype=bool)
    values = np.unique(hop_s[off])
    low, high = 0, len(values) - 1  # hops of at most values[high] connect all servers
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
    """Servers that no allowed hop leaves (True) or enters (False), the smaller side if both hold.

    None if all servers reach each other.
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
                # Hops that leave one side enter the other.
                return ~inside, not leaving
            return inside, leaving
    return None
