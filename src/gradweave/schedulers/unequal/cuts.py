"""Parts cut into pieces, and the schedule in which those are sent."""

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradweave.schedule.schedule import COPY, REDUCE, Collective, Schedule, take_rows
from gradweave.schedule.shares import apportion
from gradweave.schedulers.unequal.parts import Parts
from gradweave.schedulers.unequal.tuning import TUNING
from gradweave.topology.topology import Topology

if TYPE_CHECKING:
    from gradweave.schedulers.kernels.wires import Wires

DENOMINATOR = 1 << 24
"""Shares are multiples of about one part in so many."""


@dataclasses.dataclass(frozen=True, eq=False)
class Cut:
    """The pieces, in the order of urgency."""

    part: NDArray[np.int64]
    """[P] part of each piece."""
    number: NDArray[np.int64]
    """[P] which of its part's pieces it is."""
    share: NDArray[np.float64]
    """[P] of the gradient."""


def cuts_of(parts: Parts, pieces: int) -> list[Cut]:
    """Cuts parts into pieces of about one size; what is much smaller than one is left out.

    All parts' pieces come in turn, so that all of them end together. Once so that the parts keep
    their shares and pieces differ a little, and, where servers may root what they like, once with
    pieces of one size: these fill links that all run at one speed without gaps.

    Args:
        parts: what to cut.
        pieces: about how many.
    """
    kept = _large_enough(parts, 0.5 / pieces)
    share = _shared_out(parts, kept)
    count = np.maximum(np.rint(share * pieces), kept).astype(np.int64)
    cuts = [in_turn(share, count)]
    if not parts.fixed_roots:
        part = cuts[0].part
        cuts.append(dataclasses.replace(cuts[0], share=np.full(len(part), 1 / len(part))))
    return cuts


def equal_cut(parts: Parts, pieces: int, periods: int = 1) -> Cut:
    """Cuts parts into pieces of one size, exactly so many; small parts may get none.

    Args:
        parts: what to cut.
        pieces: how many. Where every server must root an equal part, of each period a multiple of
            their number.
        periods: a divisor of that number; each period has as many of a part as any other.
    """
    fine = np.rint(parts.share * DENOMINATOR).astype(np.int64)
    groups = parts.root if parts.fixed_roots else np.zeros_like(parts.root)
    each, rest = divmod(pieces, periods * (int(groups.max()) + 1))
    assert not rest, "as many pieces of each root in each period"
    count = np.empty(len(fine), np.int64)
    for group in np.unique(groups).tolist():
        count[groups == group] = apportion(each, fine[groups == group])
    cut = in_turn(parts.share, count * periods)
    return dataclasses.replace(cut, share=np.full(pieces, 1 / pieces))


def periodic_cut(parts: Parts, pieces: int) -> Cut | None:
    """Cuts parts so that pieces come in periods, in each as many of a part as in any other.

    Parts smaller than most have smaller pieces; what is very much smaller is left out.

    Args:
        parts: what to cut.
        pieces: about how many; None is returned where a single period has more.
    """
    unit = usual_share(parts.share)
    kept = _large_enough(parts, TUNING.least_in_period * unit)
    share = _shared_out(parts, kept)
    each = np.where(kept, np.maximum(np.rint(share / unit), 1), 0).astype(np.int64)
    periods = int(np.rint(pieces / each.sum()))
    return in_turn(share, each * periods) if periods else None


def usual_share(share: NDArray[np.float64]) -> float:
    """The median of shares that are at least half as large as the largest."""
    return float(np.median(share[share >= 0.5 * share.max()]))


def in_turn(share: NDArray[np.float64], count: NDArray[np.int64]) -> Cut:
    """So many pieces of each part, all parts' in turn.

    Args:
        share: [parts] of all that is cut.
        count: [parts] pieces of each.
    """
    part = np.repeat(np.arange(len(share)), count)
    number = np.arange(len(part)) - np.repeat(np.cumsum(count) - count, count)
    order = np.argsort((number + 0.5) / count[part], kind="stable")
    part = part[order]
    return Cut(part, number[order], (share / np.maximum(count, 1))[part])


def _shared_out(parts: Parts, kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    """[parts] shares of those kept, with those of the others; a root keeps its own where fixed."""
    share = np.where(kept, parts.share, 0.0)
    if parts.fixed_roots:
        whole, left = (
            np.bincount(parts.root, each, parts.topology.num_servers)[parts.root]
            for each in (parts.share, share)
        )
        share *= np.divide(whole, left, out=np.ones(len(share)), where=left > 0)
    return share / share.sum()


def _large_enough(parts: Parts, least: float) -> NDArray[np.bool_]:
    """[parts] which have at least that share; of each root that must have some, its largest."""
    kept = parts.share >= least
    largest = np.zeros(len(kept), bool)
    if parts.fixed_roots:
        by_share = np.lexsort((-parts.share, parts.root))
        first = np.flatnonzero(np.diff(parts.root[by_share], prepend=-1))
        largest[by_share[first]] = True
    else:
        largest[np.argmax(parts.share)] = True
    return kept | largest


def schedule_of(
    topology: Topology, collective: Collective, parts: Parts, cut: Cut, start: NDArray
) -> Schedule:
    """Transfers in the order in which they start, in rounds that keep it."""
    from gradweave.schedulers.kernels.ordered_rounds import rounds_in_order

    wires: Wires = parts.wires
    pieces, per_piece = len(cut.part), parts.trees.hop.shape[1]
    order = np.argsort(start, kind="stable")
    piece, transfer = np.divmod(order, per_piece)
    part = cut.part[piece]
    hop = parts.trees.hop[part, transfer]
    source, target = parts.source[hop], parts.target[hop]
    rounds = rounds_in_order(
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


def _integers(parts: Parts, cut: Cut) -> NDArray[np.int64]:
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
