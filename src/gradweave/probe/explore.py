"""Chooses flows that reveal a network's shared links, and derives its structure from their rates.

First, all pairs of servers send to each other in the rounds of some tournaments, all pairs of a
round simultaneously. Then each server sends to all others and receives from all others, which
reveals the rates of its links. A pair that is as fast in the tournaments as the links of its two
servers is **near**. Servers whose pairs are near, and that are near to the same other servers,
share a switch. Each such group then sends to servers outside, all members simultaneously, which
reveals the rate that it shares on the way out. Groups are compared like servers, in tournaments,
until all remaining groups are near to one another, or no two are. Between groups that are far, each
pair has a private link.

The model is a tree of switches, with private links between the uppermost switches. It leaves out
servers with several network cards of which a connection uses one, networks in which servers
forward, and shared links that leave more than `NEAR` of each flow's rate.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from gradweave.common.wording import counted
from gradweave.probe.traffic import (
    Flow,
    Measure,
    Rate,
    Slot,
    between,
    both_ways,
    total,
    tournament,
)

NEAR = 0.8
"""A pair is near if it reaches at least this fraction of the rate of its servers' links."""
ALIKE = 0.25
"""Two servers may share a switch if their nearness to the others differs by at most this, on
average."""
PRIVATE = 0.9
"""A node with a private link per pair sends simultaneously at this fraction of its pairs' sum."""
AGREE = 0.05
"""Maximum relative difference of a pair's rates under two loads for either to count as its rate."""
FEWEST_TOURNAMENTS = 3
ENOUGH_SLOTS = 12
"""In small networks, each server sends to all others often enough to fill this many slots."""
BOTH_FAN = 8
"""From this number of servers on, two at a time send to all others."""
ENOUGH_ROUNDS = 30
"""Minimum rounds of all tournaments: in small networks, a shared link is idle in many rounds."""


@dataclasses.dataclass(frozen=True)
class Group:
    """A server, or servers that share a switch, and the rates at which they send and receive."""

    members: tuple[int, ...]
    """Ranks of the servers."""
    out: Rate
    into: Rate
    parts: tuple["Group", ...] = ()
    """Groups joined by its switch; empty for a server."""


@dataclasses.dataclass(frozen=True)
class Findings:
    """The result of the exploration, which determines the network."""

    top: tuple[Group, ...]
    """Groups that no other group contains."""
    links: dict[tuple[int, int], Rate]
    """Rate from one of `top` to another, by their places; empty if one switch joins them all."""
    flows: dict[Flow, list[Rate]]
    """Every rate measured, by sender and receiver."""


def tournaments(players: int) -> int:
    """The number of tournaments."""
    if players <= 4:  # in each tournament, the rest of the network is idle or the same pair
        return players - 1
    return max(FEWEST_TOURNAMENTS, -(-ENOUGH_ROUNDS // players))


def tournaments_ahead(servers: int) -> int:
    """The number of tournaments played in any case; the last follows if these differ in groups.

    With four or fewer servers, all are played, since each reveals little.
    """
    return tournaments(servers) - (servers > 4)


def fans(servers: int) -> int:
    """How often each server sends to all others."""
    return max(1, ENOUGH_SLOTS // servers)


def together(servers: int) -> list[tuple[int, ...]]:
    """Servers that simultaneously send to all others and receive from all others.

    With at least `BOTH_FAN` servers, two send at a time. The network is then large enough that few
    flows of one of them cross the path of the other's.
    """
    if servers < BOTH_FAN:
        return [(rank,) for rank in range(servers)]
    half = -(-servers // 2)
    return [
        tuple(rank for rank in (place, place + half) if rank < servers) for place in range(half)
    ]


def slots_ahead(servers: int) -> int:
    """Number of slots needed in any case, before groups are known."""
    return tournaments_ahead(servers) * (servers - 1 + servers % 2) + fans(servers) * len(
        together(servers)
    )


def explore(servers: int, measure: Measure, tell: Callable[[str], None]) -> Findings:
    """Measures a network.

    Args:
        servers: N, at least 2.
        measure: sends the flows of slots, and returns their rates.
        tell: called with the current step.
    """
    return _Explorer(measure, tell).explore(servers)


class _Explorer:
    def __init__(self, measure: Measure, tell: Callable[[str], None]) -> None:
        self._measure, self._tell = measure, tell
        self._flows: dict[Flow, list[Rate]] = {}
        self._ahead = 0

    def explore(self, servers: int) -> Findings:
        nodes = [_nothing(rank) for rank in range(servers)]
        self._tell(f"pairs of {servers} servers in tournaments")
        self._ahead = tournaments_ahead(servers)
        paired = self._tournaments(nodes, range(self._ahead))
        if servers == 2:
            links = {pair: paired[pair][0] for pair in ((0, 1), (1, 0))}
            return Findings(tuple(nodes), links, self._flows)
        self._tell("each server to all others, and from all others")
        nodes = self._fans(servers, paired)
        if (left := range(self._ahead, tournaments(servers))) and not _same_groups(nodes, paired):
            self._tell(f"another tournament of {servers} servers, as groups differ")
            for pair, rates in self._tournaments(nodes, left).items():
                paired[pair] += rates
            nodes = _raised(nodes, paired)
        while 1 < len(groups := clusters(_nearness(nodes, _typical(paired)))) < len(nodes):
            self._tell(f"{counted(len(groups), 'group')}: measuring their shared links")
            nodes = self._grouped(nodes, groups)
            paired = self._tournaments(nodes, range(tournaments(len(nodes))))
            nodes = _raised(nodes, paired)
        if len(groups) == 1:
            return Findings(tuple(nodes), {}, self._flows)
        self._tell(f"links between {len(nodes)} groups that share none")
        return Findings(tuple(nodes), self._links(nodes, paired), self._flows)

    def _run(self, slots: Sequence[Slot], *, added: bool = True) -> list[list[Rate]]:
        rates = self._measure(slots, added)
        for slot, found in zip(slots, rates, strict=True):
            for flow, rate in zip(slot, found, strict=True):
                self._flows.setdefault(flow, []).append(rate)
        return rates

    def _tournaments(
        self, nodes: Sequence[Group], seeds: Iterable[int]
    ) -> dict[tuple[int, int], list[Rate]]:
        """The rates of each ordered pair of groups while all other groups are paired as well."""
        rounds = [pairs for seed in seeds for pairs in tournament(len(nodes), seed)]
        flows = [
            {pair: between(nodes[pair[0]].members, nodes[pair[1]].members) for pair in both}
            for both in map(both_ways, rounds)
        ]
        slots = [list(itertools.chain(*by_pair.values())) for by_pair in flows]
        paired: dict[tuple[int, int], list[Rate]] = {}
        added = any(node.parts for node in nodes)
        for by_pair, rates in zip(flows, self._run(slots, added=added), strict=True):
            left = iter(rates)
            for pair, some in by_pair.items():
                paired.setdefault(pair, []).append(total([next(left) for _ in some]))
        return paired

    def _fans(self, servers: int, paired: dict[tuple[int, int], list[Rate]]) -> list[Group]:
        """Every server with the rates at which it sends to all others and receives from all others.

        In small networks, this is repeated and the fastest rate counts: since only these flows fill
        a server's link, a busy processor must not slow all of them down.
        """
        at_once = together(servers)
        slots = [
            [flow for flow in itertools.permutations(range(servers), 2) if {*flow} & {*fan}]
            for fan in at_once
        ]
        tries = [self._run(slots) for _ in range(fans(servers))]
        out: list[list[Rate]] = [[] for _ in range(servers)]
        into: list[list[Rate]] = [[] for _ in range(servers)]
        for rates in tries:
            for fan, slot, some in zip(at_once, slots, rates, strict=True):
                measured = dict(zip(slot, some, strict=True))
                for rank in fan:
                    sent = [rate for (a, _), rate in measured.items() if a == rank]
                    received = [rate for (_, b), rate in measured.items() if b == rank]
                    out[rank].append(total(sent))
                    into[rank].append(total(received))
        nodes = [
            Group((rank,), max(out[rank], key=_speed), max(into[rank], key=_speed))
            for rank in range(servers)
        ]
        return _raised(nodes, paired)

    def _grouped(self, nodes: Sequence[Group], groups: Sequence[Sequence[int]]) -> list[Group]:
        """The groups of some nodes, each with its rates to and from servers outside.

        This is measured at least twice and the fastest counts: in a whole group, some server is
        often late.
        """
        parts = [tuple(nodes[place] for place in group) for group in groups]
        members = [sorted(rank for part in some for rank in part.members) for some in parts]
        new = [number for number, some in enumerate(parts) if len(some) > 1]
        slots = []
        for number in new:
            outside = _mixed([some for other, some in enumerate(members) if other != number])
            slots.append(between(members[number], outside) + between(outside, members[number]))
        tries = [self._run(slots) for _ in range(max(2, ENOUGH_SLOTS // max(2 * len(slots), 1)))]
        grouped = [some[0] for some in parts]
        for turn, number in enumerate(new):
            half = len(slots[turn]) // 2
            out = max((total(rates[turn][:half]) for rates in tries), key=_speed)
            into = max((total(rates[turn][half:]) for rates in tries), key=_speed)
            grouped[number] = Group(tuple(members[number]), out, into, parts[number])
        return grouped

    def _links(
        self, nodes: Sequence[Group], paired: dict[tuple[int, int], list[Rate]]
    ) -> dict[tuple[int, int], Rate]:
        """The rate of each ordered pair of groups alone, unless two loads agree on it.

        The fastest of several rates counts, since a busy processor may slow down one of them.
        """
        if len(nodes) == 3:  # one of them rested in each round, so every pair was alone
            return {pair: max(rates, key=_speed) for pair, rates in paired.items()}
        links: dict[tuple[int, int], Rate] = {}
        alone = []
        for pair, rate in _typical(paired).items():
            known = self._under_fans(nodes, pair)
            if known is not None and _agree(rate, known):
                links[pair] = rate if rate.bytes_per_s > known.bytes_per_s else known
            else:
                alone.append(pair)
        slots = [between(nodes[a].members, nodes[b].members) for a, b in alone]
        for pair, *twice in zip(alone, self._run(slots), self._run(slots), strict=True):
            links[pair] = max(*map(total, twice), _typical(paired)[pair], key=_speed)
        return links

    def _under_fans(self, nodes: Sequence[Group], pair: tuple[int, int]) -> Rate | None:
        """The faster rate of a pair of servers while either sends to all, or receives from all."""
        if any(nodes[place].parts for place in pair):
            return None
        flow = nodes[pair[0]].members[0], nodes[pair[1]].members[0]
        rates = self._flows[flow][self._ahead : self._ahead + 2]
        return max(rates, key=_speed)


def _typical(paired: dict[tuple[int, int], list[Rate]]) -> dict[tuple[int, int], Rate]:
    """The median of each pair's rates, or the lower of two.

    In one tournament, other flows may leave a shared link to the pair; in another, a busy processor
    may slow the pair down.
    """
    return {
        pair: sorted(rates, key=_speed)[(len(rates) - 1) // 2] for pair, rates in paired.items()
    }


def _same_groups(nodes: Sequence[Group], paired: dict[tuple[int, int], list[Rate]]) -> bool:
    """Whether each tournament by itself, and all together, show the same groups."""
    count = min(map(len, paired.values()))
    alone = [{pair: rates[turn] for pair, rates in paired.items()} for turn in range(count)]
    groups = [clusters(_nearness(nodes, rates)) for rates in (*alone, _typical(paired))]
    return all(some == groups[0] for some in groups)


def _nearness(nodes: Sequence[Group], paired: dict[tuple[int, int], Rate]) -> NDArray[np.float64]:
    """[G, G] rate of each pair over the slower of its servers' links, both ways, up to 1."""
    near = np.eye(len(nodes))
    for (a, b), rate in paired.items():
        own = min(nodes[a].out.bytes_per_s, nodes[b].into.bytes_per_s)
        near[a, b] = min(rate.bytes_per_s / own, 1.0) if own > 0 else 0.0
    return (near + near.T) / 2


def clusters(near: NDArray[np.float64]) -> list[list[int]]:
    """Groups whose pairs are near, and whose members are near to the same others.

    This is agglomerative clustering by average linkage: of the pairs of clusters that may be
    joined, the nearest is joined first.

    Args:
        near: [G, G] symmetric, from 0 to 1.
    """
    count = len(near)
    apart = np.zeros((count, count))
    for a, b in itertools.combinations(range(count), 2):
        others = np.delete(np.arange(count), [a, b])
        if len(others):
            apart[a, b] = apart[b, a] = np.abs(near[a, others] - near[b, others]).mean()
    groups = [[place] for place in range(count)]
    while len(groups) > 1:
        best = max(
            (
                (float(near[np.ix_(a, b)].mean()), number, other)
                for (number, a), (other, b) in itertools.combinations(enumerate(groups), 2)
                if apart[np.ix_(a, b)].mean() <= ALIKE
            ),
            default=(0.0, 0, 0),
        )
        if best[0] < NEAR:
            break
        _, number, other = best
        groups[number] = sorted(groups[number] + groups.pop(other))
    return sorted(groups)


def _nothing(rank: int) -> Group:
    """A server about which nothing is known."""
    unknown = Rate(float("nan"), ())
    return Group((rank,), unknown, unknown)


def _raised(nodes: Sequence[Group], paired: dict[tuple[int, int], list[Rate]]) -> list[Group]:
    """The groups, with rates no lower than in the tournaments.

    A link cannot be faster than it is, but a busy processor makes it seem slow. The third fastest
    rate counts, since data from buffers may arrive faster than a link sends.
    """
    out, into = [[node.out] for node in nodes], [[node.into] for node in nodes]
    for (a, b), rates in paired.items():
        out[a] += rates
        into[b] += rates
    return [
        dataclasses.replace(
            node, out=_at_least(node.out, sent), into=_at_least(node.into, received)
        )
        for node, sent, received in zip(nodes, out, into, strict=True)
    ]


def _at_least(rate: Rate, rates: Sequence[Rate]) -> Rate:
    """The rate, or the third fastest of some rates if that is faster."""
    return max(rate, sorted(rates, key=_speed)[-3:][0], key=_speed)


def _mixed(groups: Sequence[Sequence[int]]) -> list[int]:
    """The members of all groups, alternating between groups."""
    rounds = itertools.zip_longest(*groups)
    return [rank for round_ in rounds for rank in round_ if rank is not None]


def _speed(rate: Rate) -> float:
    return rate.bytes_per_s


def _agree(one: Rate, other: Rate) -> bool:
    most = max(one.bytes_per_s, other.bytes_per_s)
    return abs(one.bytes_per_s - other.bytes_per_s) <= AGREE * most
