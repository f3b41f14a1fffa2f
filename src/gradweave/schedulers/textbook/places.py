"""Places of servers in exchanges between partners: a hypercube of places."""

import dataclasses
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.topology.routes import shortest_path_trees
from gradweave.topology.topology import Topology

Order = Literal["id", "near"] | tuple[int, ...]
"""``id``: ascending; ``near``: partners of the first exchanges are near each other; or node ids."""

Partners = Literal["hypercube", "bine"]
"""Which places exchange with which; see `Places.partner`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Places:
    """The servers at the 2^k places of a hypercube, and the folded servers.

    Partners of exchange s are the places that differ only in bit s. If the number of servers is no
    power of two, 2^k is the largest power below it, and each surplus server is folded onto a server
    that represents it.

    Source: Thakur, Rabenseifner and Gropp 2005, section 4.5 (folding).
    """

    core: NDArray[np.int32]
    """[2^k] node id of the server at each place."""
    folded: NDArray[np.int32]
    """[N − 2^k] node ids of the folded servers."""
    stand_in: NDArray[np.int32]
    """[N − 2^k] the server of the core that represents each folded server."""

    @property
    def exchanges(self) -> int:
        """k, the number of exchanges."""
        return len(self.core).bit_length() - 1

    def of_radix(self, radix: int) -> "Places":
        """The same servers with the number of places a multiple of a power of another base.

        Args:
            radix: the base. For a power of two, the largest power of two below N is kept.
        """
        servers, count = np.concatenate([self.core, self.folded]), len(self.core)
        if radix >= len(servers):
            count = len(servers)
        elif radix & (radix - 1):
            count = 1
            while count * radix <= len(servers):
                count *= radix
            count *= len(servers) // count
        if count == len(self.core):
            return self
        return Places(servers[:count], servers[count:], servers[: len(servers) - count])

    def partner(self, exchange: int, partners: "Partners") -> NDArray[np.int64]:
        """[2^k] the place of each place's partner in an exchange.

        Args:
            exchange: its number, from 0.
            partners: whether places differ in that bit, or are near on a ring of places: 1, 1, 3,
                5, 11, … apart, about two thirds of the distances in a hypercube.

        Source: De Sensi et al., "Bine trees", 2025 (arXiv 2508.17311), for the latter.
        """
        place = np.arange(len(self.core))
        if partners == "hypercube":
            return place ^ (1 << exchange)
        apart = (1 - (-2) ** (exchange + 1)) // 3
        return (place + np.where(place % 2 == 0, apart, -apart)) % len(place)

    def exchanging(self, radix: int = 2) -> list[NDArray[np.int64]]:
        """For each exchange, the groups of places that exchange: they differ in one digit.

        Args:
            radix: base of the digits. The highest digit may have fewer values.

        Returns:
            For each digit, the lowest first, [places / width, width] places.
        """
        place, unit, found = np.arange(len(self.core)), 1, []
        while unit < len(place):
            width = min(radix, len(place) // unit)
            first = place[place // unit % width == 0]
            found.append(first[:, None] + np.arange(width) * unit)
            unit *= width
        return found

    @staticmethod
    def of(topology: Topology, order: Order, strategy: str) -> "Places":
        """Puts the servers in their places.

        Of the first N − 2^k pairs in a list of ids, the second server is folded onto the first.

        Args:
            topology: the network.
            order: the order of servers.
            strategy: name of the strategy, for messages.
        """
        if order == "near":
            return _near(topology, _over(topology.num_servers))
        servers = topology.servers
        if order != "id":
            if sorted(order) != servers.tolist():
                raise OptionError(
                    f"{strategy}: order: expected each of the {len(servers)} servers once, "
                    f"got {order}"
                )
            servers = np.array(order, np.int32)
        return Places.in_turn(servers)

    @staticmethod
    def in_turn(servers: NDArray[np.int32]) -> "Places":
        """Puts servers in their places in the given order, folded as in `of`.

        Args:
            servers: [N] in order.
        """
        over = _over(len(servers))
        paired = servers[: 2 * over]
        return Places(np.concatenate([paired[::2], servers[2 * over :]]), paired[1::2], paired[::2])


def check_order(order: object, strategy: str) -> None:
    """Refuses an unknown order."""
    if isinstance(order, str) and order not in ("id", "near"):
        raise OptionError(f"{strategy}: order: expected id, near or node ids, got {order!r}")


def check_partners(partners: object, radix: int, strategy: str) -> None:
    """Refuses unknown partners, and a radix that they do not have."""
    if partners not in ("hypercube", "bine"):
        raise OptionError(f"{strategy}: partners: expected hypercube or bine, got {partners!r}")
    if radix > 2 and partners == "bine":
        raise OptionError(f"{strategy}: radix: expected 2 with partners=bine, got {radix}")


def _over(servers: int) -> int:
    """How many of `servers` servers are folded."""
    return servers - (1 << (servers.bit_length() - 1))


def _near(topology: Topology, over: int) -> Places:
    """Pairs the nearest servers, then the nearest pairs, and so on, greedily."""
    distance = _distances(topology)
    pairs = _matching(distance)[:over]
    core = np.setdiff1d(np.arange(topology.num_servers), pairs[:, 1])
    groups = core[:, None]
    while len(groups) > 1:
        groups = _joined(groups, distance)
    servers = topology.servers
    return Places(servers[groups[0]], servers[pairs[:, 1]], servers[pairs[:, 0]])


def _distances(topology: Topology) -> NDArray[np.int64]:
    """[N, N] links on the pinned shortest route between servers, by rank."""
    toward = shortest_path_trees(topology)
    walker = np.broadcast_to(topology.servers, (topology.num_servers,) * 2).copy()
    root = topology.servers[:, None]
    row = np.arange(topology.num_servers)[:, None]
    distance = np.zeros(walker.shape, np.int64)
    while (walking := walker != root).any():
        distance += walking
        walker = np.where(walking, toward[row, walker], walker)
    return distance


def _joined(groups: NDArray, distance: NDArray) -> NDArray:
    """Groups joined in pairs, with the second of each pair turned so that partners are near.

    Turning a group flips some bits of its places, which preserves partners.
    """
    count, size = groups.shape
    cost = np.full((count, count), np.iinfo(np.int64).max)
    turn = np.zeros((count, count), np.int64)
    for flip in range(size):
        turned = groups[:, np.arange(size) ^ flip]
        total = np.zeros((count, count), np.int64)
        for place in range(size):
            total += distance[np.ix_(groups[:, place], turned[:, place])]
        better = total < cost
        cost[better], turn[better] = total[better], flip
    return np.stack(
        [
            np.concatenate([groups[a], groups[b][np.arange(size) ^ turn[a, b]]])
            for a, b in _matching(cost).tolist()
        ]
    )


def _matching(cost: NDArray) -> NDArray[np.int64]:
    """[M, 2] disjoint pairs, the cheapest first and ties by number; one may be left over."""
    first, second = np.triu_indices(len(cost), 1)
    free = np.ones(len(cost), bool)
    pairs: list[tuple[int, int]] = []
    for place in np.argsort(cost[first, second], kind="stable").tolist():
        a, b = int(first[place]), int(second[place])
        if free[a] and free[b]:
            free[[a, b]] = False
            pairs.append((a, b))
            if len(pairs) == len(cost) // 2:
                break
    return np.array(pairs, np.int64).reshape(-1, 2)
