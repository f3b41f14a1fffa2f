"""Trees over all servers, composed of the dimensions' trees, with their shares."""

import dataclasses
import itertools
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.grid.exchange import Exchange, LineHops
from gradweave.schedulers.grid.grid import Grid
from gradweave.schedulers.grid.tuning import TUNING
from gradweave.schedulers.kernels.wires import Wires
from gradweave.schedulers.problem import number_within
from gradweave.schedules.schedule import take_rows

if TYPE_CHECKING:
    from gradweave.schedulers.kernels.precedence import Dependencies


@dataclasses.dataclass(frozen=True, eq=False)
class Composed:
    """Trees that combine one tree of each dimension, for all orders of the dimensions in use.

    Each server except the root sends its sum to its parent once, and later receives the full sum
    from it once.
    """

    root: NDArray[np.int64]
    """[parts] rank of each root."""
    parent: NDArray[np.int32]
    """[parts, N] parent of each server; a root is its own parent."""
    hop: NDArray[np.int32]
    """[parts, 2, N] hop to the parent, and hop from it; over no link at a root."""
    key: NDArray[np.int32]
    """[parts, 2, N] priority of each transfer within a chunk, smallest first."""
    share: NDArray[np.float64]
    """[parts] share of the gradient."""
    turn: NDArray[np.int64]
    """[parts] number of earlier trees with the same root and order."""
    keys: int
    """Exclusive upper limit of all keys."""

    def dependencies(self, stages: list[int]) -> "Dependencies":
        """The transfers of each part, stage by stage, with one for each server.

        The transfers of a root pass no link; they follow all sums that the root receives, and
        precede the copies that it sends.

        Args:
            stages: 0 for a reduce-scatter, 1 for an all-gather, or both.
        """
        from gradweave.schedulers.ordering.list_scheduling import dependencies

        parts, servers = self.parent.shape
        hop = self.hop[:, stages].astype(np.int64).reshape(parts, -1)
        first = np.arange(parts)[:, None] * hop.shape[1]
        below = self.parent != np.arange(servers)
        up, own = ((first + to)[below] for to in (self.parent, np.arange(servers)))
        at_root = first[:, 0] + self.root
        if stages == [0]:
            return dependencies(hop, own, up)
        if stages == [1]:
            return dependencies(hop, up, own)
        before, after = (own, up + servers, at_root), (up, own + servers, at_root + servers)
        return dependencies(hop, np.concatenate(before), np.concatenate(after))


def composed(
    grid: Grid, hops: LineHops, exchanges: list[Exchange], order: tuple[int, ...]
) -> Composed:
    """All combinations of the dimensions' trees, with equal shares for all roots.

    Towards the root, servers first reduce along the first dimension of the order to the servers
    that have the root's coordinate there; these reduce along the next dimension; and so on. From
    the root, the same in reverse.

    Args:
        grid: the servers' places.
        hops: the routes.
        exchanges: the exchange of each dimension.
        order: the order of the dimensions; most bytes move over the first.

    Source: Cho, Saxena, Kung et al., "BlueConnect", 2019, for the decomposition; Rashidi et al.,
        "Themis", ISCA 2022, for several orders at once.
    """
    tree = np.indices([len(one.root) for one in exchanges]).reshape(len(exchanges), -1).T
    root = np.stack([one.root[tree[:, d]] for d, one in enumerate(exchanges)], axis=1)
    share = np.prod([one.share[tree[:, d]] for d, one in enumerate(exchanges)], axis=0)
    parts, servers = len(tree), grid.topology.num_servers
    parent = np.empty((parts, servers), np.int32)
    hop = np.empty((parts, 2, servers), np.int32)
    moving = np.ones((parts, servers), bool)
    for d in order:
        to = exchanges[d].parent[tree[:, d, None], grid.place[None, :, d]]
        moves = moving & (to != grid.place[None, :, d])
        part, server = np.nonzero(moves)
        to, own = to[part, server], grid.place[server, d]
        above = grid.at(server, d, to)
        parent[part, server] = above
        hop[part, 0, server] = hops.first[d] + server * grid.sizes[d] + to
        hop[part, 1, server] = hops.first[d] + above * grid.sizes[d] + own
        # A server that has passed on its sum takes no part in later dimensions.
        moving &= ~moves
    at_root = np.nonzero(moving)[1]
    parent[np.arange(parts), at_root] = at_root
    # The hop from a server to its own place, which has no links.
    nowhere = hops.first[0] + at_root * grid.sizes[0] + grid.place[at_root, 0]
    hop[np.arange(parts), :, at_root] = nowhere[:, None]
    key, keys = _keys(grid, root, order)
    return Composed(
        at_root.astype(np.int64),
        parent,
        hop,
        key,
        share / share.sum(),
        number_within(at_root),
        keys,
    )


def _keys(
    grid: Grid, root: NDArray[np.int64], order: tuple[int, ...]
) -> tuple[NDArray[np.int32], int]:
    """[parts, 2, N] positions in the sequence of an exchange, and the number of positions.

    In each dimension a server sends first to the next server, which all servers of a line can do at
    the same time, then to the one after that, and so on; last it reduces the part that it roots
    itself. The last dimension changes slowest, so that data needed first across groups is reduced
    first inside.
    """
    key = np.zeros((len(root), 2, grid.topology.num_servers), np.int32)
    keys, before = 1, np.ones(key[:, 0].shape, bool)
    for d in order:
        size = grid.sizes[d]
        ahead = (root[:, d, None] - grid.place[None, :, d]) % size
        own = ahead == 0
        # Data sent in later dimensions has been collected in the earlier dimensions.
        key[:, 0] += np.where(own & before, 0, np.where(own, size, ahead)).astype(np.int32) * keys
        key[:, 1] += ((size - ahead) % size).astype(np.int32) * keys
        before &= own
        keys *= size + 1
    return key, keys


def slow_first(one: Composed, grid: Grid, hops: LineHops, wires: Wires) -> Composed:
    """The trees with slow transfers made as urgent as those of some chunks earlier.

    A link slower than others of its dimension always lags, and everything waits for it.
    """
    key = one.key.copy()
    for d, size in enumerate(grid.sizes):
        first = hops.first[d]
        rate = wires.rate[first : first + grid.topology.num_servers * size]
        if size == 1:
            continue
        usual = np.median(rate[np.isfinite(rate)])
        slow = np.flatnonzero(rate < usual) + first
        key[np.isin(one.hop, slow)] -= TUNING.slow_lead * one.keys
    return dataclasses.replace(one, key=key)


def joined(several: list[Composed], shares: list[NDArray[np.float64]]) -> Composed:
    """Parts of several orders joined, without those of negligible share.

    Args:
        several: the trees of each order.
        shares: [parts] for each order, the parts' shares of the whole gradient.
    """
    share = np.concatenate(shares)
    kept = share >= TUNING.least_share / len(share)
    names = ("root", "parent", "hop", "key", "turn")
    rows = {name: np.concatenate([vars(one)[name] for one in several])[kept] for name in names}
    return Composed(
        **rows,
        share=share[kept] / share[kept].sum(),
        keys=max(one.keys for one in several),
    )


def orders_of(dimensions: int) -> list[tuple[int, ...]]:
    """Orders of the dimensions, inside first; with many dimensions only that and its reverse."""
    inside_first = tuple(range(dimensions))
    orders = list(itertools.permutations(inside_first))
    return orders if len(orders) <= TUNING.max_orders else [inside_first, inside_first[::-1]]


def link_seconds(one: Composed, wires: Wires) -> NDArray[np.float64]:
    """[roots, L] seconds for which each root's parts occupy links, per byte that it roots.

    A slow transfer occupies as much of a link as a fast transfer: the rest is too little for
    others.

    Args:
        one: the parts of one order.
        wires: the network's wires.
    """
    parts, servers = one.parent.shape
    whole = np.bincount(one.root, one.share, servers)
    held = np.zeros((servers, len(wires.bandwidth)))
    lengths = np.diff(wires.first)
    hop_of_link = np.repeat(np.arange(len(lengths)), lengths)
    fastest = np.zeros(len(wires.bandwidth))
    np.maximum.at(fastest, wires.links, wires.rate[hop_of_link])
    at_once = np.maximum(np.floor(wires.bandwidth / np.where(fastest > 0, fastest, np.inf)), 1.0)
    for stage, part in itertools.product((0, 1), range(parts)):
        root = int(one.root[part])
        hop = np.delete(one.hop[part, stage], root)
        links, first = take_rows(wires.links, wires.first, hop)
        seconds = np.repeat(1 / wires.rate[hop], np.diff(first))
        held[root] += (
            np.bincount(links, seconds, len(wires.bandwidth))
            * (one.share[part] / whole[root])
            / at_once
        )
    return held
