"""Textbook algorithms with few steps: exchanges between partners, Bruck's all-to-all."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.scheduler import check_counts
from gradweave.schedulers.textbook.halving_doubling import MAX_RADIX
from gradweave.schedulers.textbook.places import Partners, Places, check_partners
from gradweave.schedulers.textbook.runtimes import Textbook
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True)
class Butterfly(Textbook):
    """Exchanges between partners: log2 N steps; a gathering moves most data in its last exchange.

    An all-gather is recursive doubling, a reduce-scatter recursive halving, and an all-reduce the
    two in sequence. A block with one root follows a binomial tree of partners; so does a message
    from server to server, so that an all-to-all also takes log2 N steps. The places of partners
    differ in one bit (``hypercube``), or their distances on the ring of places are 1, 1, 3, 5, 11,
    … (``bine``), about a third less. If the number of servers is no power of two, the surplus
    servers are folded onto others; see `gradweave.schedulers.textbook.places.Places`.

    With ``radix=k``, groups of k exchange all-to-all: recursive multiplying, in logk N steps.

    Source: Thakur, Rabenseifner and Gropp 2005; De Sensi et al., "Bine trees",
        SC 2025 (arXiv 2508.17311), for ``bine``; Ruefenacht, Bull and Booth, "Generalisation of
        recursive doubling for AllReduce", 2017, for the radix.
    """

    name: ClassVar[str] = "butterfly"
    unicast: ClassVar[bool] = True

    partners: Partners = "hypercube"
    """Which places are partners. ``bine`` requires radix 2."""
    radix: int = 2
    """Size of the groups that exchange. The last exchange may have smaller groups."""

    def __post_init__(self) -> None:
        check_partners(self.partners, self.radix, self.name)
        check_counts(self, "radix", least=2, most=MAX_RADIX)

    def _parents(
        self, topology: Topology, group: NDArray[np.int64], root: int
    ) -> Iterator[NDArray[np.int64]]:
        yield _tree(len(group), root, self.partners, self.radix)

    def _path(self, servers: int, source: int, target: int) -> list[int]:
        parent, path = _tree(servers, source, self.partners, self.radix), [target]
        while path[-1] != source:
            path.append(int(parent[path[-1]]))
        return path[::-1]


@functools.lru_cache(maxsize=1024)  # all blocks of one root ask for the same tree
def _tree(servers: int, root: int, partners: Partners, radix: int) -> NDArray[np.int64]:
    """[N] the parent of each place in the tree that exchanges form from a root; −1 at the root.

    Exchanges run from the farthest partners to the nearest.
    """
    places = Places.in_turn(np.arange(servers, dtype=np.int32)).of_radix(radix)
    core, parent = places.core, np.full(servers, -1)
    parent[places.folded] = places.stand_in
    start = root if root in core else int(parent[root])
    parent[start], parent[root] = (-1 if start == root else root), -1
    reached = core == start
    exchanges = places.exchanging(radix)
    if partners == "bine":
        place = np.arange(len(core))
        partner = [places.partner(number, partners) for number in range(places.exchanges)]
        exchanges = [np.stack([place, one], 1)[place < one] for one in partner]
    for group in reversed(exchanges):
        group = group[reached[group].any(1)]
        holder = np.take_along_axis(group, reached[group].argmax(1)[:, None], 1)
        below = group != holder
        parent[core[group[below]]] = core[np.broadcast_to(holder, group.shape)[below]]
        reached[group] = True
    parent.flags.writeable = False
    return parent


@dataclasses.dataclass(frozen=True)
class Bruck(Textbook):
    """All-to-all in ⌈logr N⌉ steps: step k forwards each message with digit d at place k by d·r^k.

    The digits are those of the distance from sender to receiver, on the ring of places, to the base
    r. In an all-to-all a server sends to (r−1)·⌈logr N⌉ others instead of N−1, and each message is
    sent as often as its distance has nonzero digits. A scatter or gather uses a binomial tree.

    Here each block remains a message with a message's cost. Runtimes pack everything that goes from
    one server to another in a step into one message, which makes this the fastest algorithm for
    tiny blocks.

    Source: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all
        communications in multiport message-passing systems", 1997, its index operation.
    """

    name: ClassVar[str] = "bruck"
    unicast: ClassVar[bool] = True

    radix: int = 2
    """r: a larger radix sends fewer bytes, to more servers."""

    def __post_init__(self) -> None:
        check_counts(self, "radix", least=2, most=MAX_RADIX)

    def _path(self, servers: int, source: int, target: int) -> list[int]:
        left, unit, hops = (target - source) % servers, 1, [source]
        while left:
            left, digit = divmod(left, self.radix)
            hops += [digit * unit] * (digit > 0)
            unit *= self.radix
        return [place % servers for place in itertools.accumulate(hops)]

    def _parents(
        self, topology: Topology, group: NDArray[np.int64], root: int
    ) -> Iterator[NDArray[np.int64]]:
        raise self.refused("needs blocks of one contributor and one destination")
