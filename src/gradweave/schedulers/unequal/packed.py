"""Trees and shares from a linear programme, played on a continuous clock."""

import dataclasses
import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave import clock
from gradweave.errors import OptionError
from gradweave.schedule.schedule import COPY, REDUCE, Collective, Schedule, take_rows
from gradweave.schedule.shares import apportion
from gradweave.schedulers.scheduler import Scheduler, check_counts
from gradweave.schedulers.unequal.parts import Parts, parts_of
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    from gradweave.schedulers.unequal.playing_kernel import Wires

MAX_TRANSFERS = 200_000
"""Schedules with more are not cut further."""
WORTH = 0.002
"""Gain of finer pieces below which the search soon ends."""
PATIENCE = 2
"""Finer cuts in a row without such a gain that end it."""
PER_TREE = 4
"""Pieces for each tree up to which the search goes on whatever it gains."""
PER_SERVER = 64
"""Pieces for each server where latencies do not count."""
WINDOWS = (8, 16)
"""Pieces of each part under way at one time: more leave more to choose from, and fill later."""
ORDER = 1.0
"""How much the order of pieces counts beside the urgency of their links."""
DENOMINATOR = 1 << 24
"""Shares are multiples of about one part in so many."""


@dataclasses.dataclass(frozen=True)
class Packed(Scheduler):
    """Parts of any size: each server roots what suits the network, over several trees at once.

    A linear programme packs trees to and from the roots into the links' bandwidths
    (`pack_trees`), so that large gradients take the least time that any
    trees can. Each tree's part of the gradient is cut into pieces, which follow each other through
    both stages at once. Shares of pieces and roots come out of it: a slow server roots little.
    """

    name: ClassVar[str] = "packed"
    own_pieces: ClassVar[bool] = True

    gradient_bytes: float = math.inf
    """Size of the gradient for which it is fast; for one beyond all measure, latencies do not
    count."""
    pieces: int | None = None
    """About how many the gradient is cut into; if not given, as many as take least time."""

    def __post_init__(self) -> None:
        if not self.gradient_bytes > 0:
            raise OptionError(
                f"packed: gradient_bytes: expected more than 0, got {self.gradient_bytes:g}"
            )
        check_counts(self, "pieces")

    def _make(
        self, topology: Topology, collective: Collective, seed: int, time_limit: float | None
    ) -> Schedule:
        deadline = math.inf if time_limit is None else clock.now() + time_limit
        parts = parts_of(topology, collective)
        best, fastest, patience = None, math.inf, PATIENCE
        for pieces in self._counts(parts):
            before = fastest
            for cut in _cuts(parts, pieces):
                for window in WINDOWS:
                    start, seconds = self._played(parts, cut, window, fastest)
                    if seconds < fastest:
                        best, fastest = (cut, start), seconds
            patience = PATIENCE if fastest < before * (1 - WORTH) else patience - 1
            # With few pieces for each tree, more of them also bring shares nearer to the best.
            enough = patience <= 0 and pieces > PER_TREE * len(parts.root)
            if clock.now() > deadline or enough:
                break
        assert best is not None
        return _schedule(topology, collective, parts, *best)

    def _counts(self, parts: Parts) -> list[int]:
        """Numbers of pieces to try, in this order."""
        if self.pieces is not None:
            return [self.pieces]
        if math.isinf(self.gradient_bytes):
            return [PER_SERVER * parts.topology.num_servers]
        most = MAX_TRANSFERS // parts.trees.hop.shape[1]
        return [1 << k for k in range(20) if k == 0 or 1 << k <= most]

    def _played(
        self, parts: Parts, cut: "_Cut", window: int, until: float
    ) -> tuple[NDArray[np.float64], float]:
        from gradweave.schedulers.unequal.playing_kernel import play

        wires, gradient_bytes = parts.wires, self.gradient_bytes
        if math.isinf(gradient_bytes):
            nothing = np.zeros(len(wires.rate))
            wires = wires._replace(overhead=nothing, latency=nothing)
            gradient_bytes = float(wires.bandwidth.max())
        under_way = window * len(parts.root)
        return play(
            parts.trees, wires, cut.part, cut.share * gradient_bytes, ORDER, under_way, until
        )


@dataclasses.dataclass(frozen=True, eq=False)
class _Cut:
    """The pieces, in the order of urgency."""

    part: NDArray[np.int64]
    """[P] part of each piece."""
    share: NDArray[np.float64]
    """[P] of the gradient."""


def _cuts(parts: Parts, pieces: int) -> list[_Cut]:
    """Cuts parts into pieces of about one size; what is much smaller than one is left out.

    All parts' pieces come in turn, so that all of them end together. Once so that the parts keep
    their shares and pieces differ a little, and, where servers may root what they like, once with
    pieces of one size: these fill links that all run at one speed without gaps.
    """
    kept = _large_enough(parts, pieces)
    share = np.where(kept, parts.share, 0.0)
    if parts.fixed_roots:
        whole, left = (
            np.bincount(parts.root, each, parts.topology.num_servers)[parts.root]
            for each in (parts.share, share)
        )
        share *= np.divide(whole, left, out=np.ones(len(share)), where=left > 0)
    share /= share.sum()
    count = np.maximum(np.rint(share * pieces), kept).astype(np.int64)
    part = np.repeat(np.arange(len(share)), count)
    number = np.arange(len(part)) - np.repeat(np.cumsum(count) - count, count)
    part = part[np.argsort((number + 0.5) / count[part], kind="stable")]
    cuts = [_Cut(part, (share / np.maximum(count, 1))[part])]
    if not parts.fixed_roots:
        cuts.append(_Cut(part, np.full(len(part), 1 / len(part))))
    return cuts


def _large_enough(parts: Parts, pieces: int) -> NDArray[np.bool_]:
    """[parts] which parts are worth a piece of their own: at least half of the mean one."""
    kept = parts.share >= 0.5 / pieces
    largest = np.zeros(len(kept), bool)
    if parts.fixed_roots:
        by_share = np.lexsort((-parts.share, parts.root))
        first = np.flatnonzero(np.diff(parts.root[by_share], prepend=-1))
        largest[by_share[first]] = True
    else:
        largest[np.argmax(parts.share)] = True
    return kept | largest


def _schedule(
    topology: Topology, collective: Collective, parts: Parts, cut: _Cut, start: NDArray
) -> Schedule:
    """Transfers in the order in which they start, in rounds that keep it."""
    from gradweave.schedulers.trees.timed_kernel import rounds_of

    wires: Wires = parts.wires
    pieces, per_piece = len(cut.part), parts.trees.hop.shape[1]
    order = np.argsort(start, kind="stable")
    piece, transfer = np.divmod(order, per_piece)
    part = cut.part[piece]
    hop = parts.trees.hop[part, transfer]
    source, target = parts.source[hop], parts.target[hop]
    rounds = rounds_of(
        wires.links,
        wires.first,
        hop,
        source * pieces + piece,
        target * pieces + piece,
        topology.num_servers * pieces,
        len(topology.source),
    )
    nodes, offsets = take_rows(parts.route_nodes, parts.route_offsets, hop)
    return Schedule(
        topology=topology,
        collective=collective,
        root=topology.servers[parts.root[cut.part]],
        round=rounds,
        piece=piece,
        source=topology.servers[source],
        target=topology.servers[target],
        op=np.where(transfer < parts.reduces, REDUCE, COPY),
        route_nodes=nodes,
        route_offsets=offsets,
        shares=_integers(parts, cut),
    )


def _integers(parts: Parts, cut: _Cut) -> NDArray[np.int64]:
    """[P] the shares as integers; where roots have equal parts, exactly so."""
    fine = np.rint(cut.share * DENOMINATOR).astype(np.int64)
    if not parts.fixed_roots:
        return fine
    shares = np.empty(len(fine), np.int64)
    root = parts.root[cut.part]
    for server in range(parts.topology.num_servers):
        mine = np.flatnonzero(root == server)
        shares[mine] = apportion(DENOMINATOR // parts.topology.num_servers, fine[mine])
    return shares
