"""Cuts parts into pieces, and makes the schedule in which they are sent."""

import dataclasses
import math
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from gradweave.common import clock
from gradweave.common.stop import UNLIMITED, Stop
from gradweave.schedulers.ordering.transfers import CarrierTransfers
from gradweave.schedulers.packing.parts import Parts
from gradweave.schedulers.packing.tuning import TUNING
from gradweave.schedulers.problem import number_within
from gradweave.schedules.demand import Demand
from gradweave.schedules.schedule import DEMAND, REDUCE, Collective, Schedule
from gradweave.schedules.shares import apportion

DENOMINATOR = 1 << 24
"""Shares are rounded to about one part in this many: finer than any time can show, and small enough
for sums in int64 and exact in float32."""
MIN_GAIN = 0.002
"""Relative gain of the next number of pieces below which it does not pay: each number doubles the
time of the search, and the transfers of a schedule. Chosen by hand."""
PATIENCE = 2
"""Numbers of pieces in a row that do not pay, after which no more are tried: times need not
fall steadily, since some numbers of pieces fill the links better than others."""


@dataclasses.dataclass(frozen=True, eq=False)
class Cut:
    """Pieces in order of urgency."""

    part: NDArray[np.int64]
    """[P] part of each piece."""
    number: NDArray[np.int64]
    """[P] index of each piece within its part."""
    share: NDArray[np.float64]
    """[P] share of the gradient."""


def while_it_pays(
    numbers: Iterable[int],
    seconds_of: Callable[[int, float], float | None],
    *,
    fastest: float = math.inf,
    least: float = 0,
    min_gain: float = MIN_GAIN,
    stop: Stop = UNLIMITED,
) -> float:
    """Tries numbers of pieces in turn, for as long as that pays; returns the fewest seconds.

    Args:
        numbers: the numbers, each about twice its predecessor.
        seconds_of: the seconds with a number of pieces, given the fewest seconds so far; or None
            if there are too many pieces.
        fastest: seconds without any of these numbers.
        least: numbers up to this one are tried regardless of gains.
        min_gain: relative gain from which a number pays.
        stop: no number is begun that probably takes longer than the time left.
    """
    patience = PATIENCE
    for number in numbers:
        begun = clock.now()
        seconds = seconds_of(number, fastest)
        if seconds is None:
            break
        patience = PATIENCE if seconds < fastest * (1 - min_gain) else patience - 1
        fastest = min(fastest, seconds)
        # Each number is about twice its predecessor, and simulation time is proportional to the
        # pieces.
        next_s = 2 * (clock.now() - begun)
        if (patience <= 0 and number > least) or next_s > stop.seconds_left:
            break
    return fastest


def cuts_of(parts: Parts, pieces: int) -> list[Cut]:
    """Cuts parts into pieces of about equal size, and drops parts much smaller than a piece.

    Pieces of all parts take turns, so that all parts end together. One cut keeps the parts' shares,
    so that piece sizes differ slightly. If servers may root any share, a second cut has pieces of
    equal size: these leave no gaps on links that all run at one speed.

    Args:
        parts: the parts to cut.
        pieces: approximate number of pieces.
    """
    # Half a piece is the smallest share that rounds to a whole piece.
    kept = _large_enough(parts, 0.5 / pieces)
    share = _shared_out(parts, kept)
    count = np.maximum(np.rint(share * pieces), kept).astype(np.int64)
    cuts = [in_turn(share, count)]
    if not parts.fixed_roots:
        part = cuts[0].part
        cuts.append(dataclasses.replace(cuts[0], share=np.full(len(part), 1 / len(part))))
    return cuts


def equal_cut(parts: Parts, pieces: int, periods: int = 1) -> Cut:
    """Cuts parts into exactly `pieces` pieces of equal size; small parts may get none.

    Args:
        parts: the parts to cut.
        pieces: number of pieces. If every server must root an equal part, the number per period
            must be a multiple of the number of servers.
        periods: a divisor of that number; each period has as many pieces of a part as any other.
    """
    fine = np.rint(parts.share * DENOMINATOR).astype(np.int64)
    groups = parts.root if parts.fixed_roots else np.zeros_like(parts.root)
    each, rest = divmod(pieces, periods * (int(groups.max()) + 1))
    assert not rest, "pieces must divide evenly among periods and roots"
    count = np.empty(len(fine), np.int64)
    for group in np.unique(groups).tolist():
        count[groups == group] = apportion(each, fine[groups == group])
    cut = in_turn(parts.share, count * periods)
    return dataclasses.replace(cut, share=np.full(pieces, 1 / pieces))


def periodic_cut(parts: Parts, pieces: int) -> Cut | None:
    """Cuts parts into pieces in periods; each period has as many pieces of a part as any other.

    Parts smaller than most have smaller pieces; very much smaller parts are dropped.

    Args:
        parts: the parts to cut.
        pieces: approximate number of pieces; None is returned if a single period has more.
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
    """`count` pieces of each part, with parts taking turns.

    Args:
        share: [parts] share of the total.
        count: [parts] number of pieces of each part.
    """
    part = np.repeat(np.arange(len(share)), count)
    number = number_within(part)
    # The pieces of a part are spread evenly over the whole, each in the middle of its interval.
    order = np.argsort((number + 0.5) / count[part], kind="stable")
    part = part[order]
    return Cut(part, number[order], (share / np.maximum(count, 1))[part])


def _shared_out(parts: Parts, kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    """[parts] shares of kept parts, which take over the others' (per root if roots are fixed)."""
    share = np.where(kept, parts.share, 0.0)
    if parts.fixed_roots:
        whole, left = (
            np.bincount(parts.root, each, parts.topology.num_servers)[parts.root]
            for each in (parts.share, share)
        )
        share *= np.divide(whole, left, out=np.ones(len(share)), where=left > 0)
    return share / share.sum()


def _large_enough(parts: Parts, least: float) -> NDArray[np.bool_]:
    """[parts] which have at least that share, plus the largest part of each fixed root."""
    kept = parts.share >= least
    largest = np.zeros(len(kept), bool)
    if parts.fixed_roots:
        by_share = np.lexsort((-parts.share, parts.root))
        first = np.flatnonzero(np.diff(parts.root[by_share], prepend=-1))
        largest[by_share[first]] = True
    else:
        largest[np.argmax(parts.share)] = True
    return kept | largest


def integer_shares(
    share: NDArray[np.float64], group: NDArray[np.int64] | None = None, whole: int = DENOMINATOR
) -> NDArray[np.int64]:
    """[P] shares as integers.

    Args:
        share: [P] share of each piece, in any unit.
        group: [P] group of each piece, such as its block, if the sum in each group is given.
        whole: the sum in each group.
    """
    one = np.zeros(len(share), np.int64) if group is None else group
    fine = np.rint(share / np.bincount(one, share)[one] * DENOMINATOR)
    fine = np.maximum(fine, 1).astype(np.int64)
    for number in () if group is None else np.unique(group):
        members = group == number
        fine[members] = apportion(whole, fine[members])
    return fine


def parts_schedule(
    parts: Parts, collective: Collective, cut: Cut, start: NDArray[np.float64]
) -> Schedule:
    """The schedule of a collective's transfers by start, in rounds that keep their order."""
    root = parts.root[cut.part] if parts.fixed_roots else None
    shares = integer_shares(cut.share, root, DENOMINATOR // parts.topology.num_servers)
    return schedule_of(parts, cut, start, parts.root, shares, collective=collective)


def schedule_of(
    transfers: CarrierTransfers,
    cut: Cut,
    start: NDArray[np.float64],
    root: NDArray[np.int64],
    shares: NDArray[np.int64],
    *,
    collective: Collective = DEMAND,
    demand: Demand | None = None,
    block: NDArray[np.int64] | None = None,
) -> Schedule:
    """The schedule of carriers' transfers by start, in rounds that keep their order.

    Args:
        transfers: the carriers' transfers.
        cut: the pieces.
        start: [P·M] when each piece's transfers start; infinite for missing transfers.
        root: [C] rank of each carrier's root.
        shares: [P] share of each piece, of the gradient or of its block.
        collective: the collective, unless there is a demand.
        demand: the blocks.
        block: [C] the block of each carrier.
    """
    from gradweave.schedulers.ordering.lower import lower

    topology, hops = transfers.topology, transfers.trees.hop
    of_piece = np.zeros(len(cut.part), np.int64) if block is None else block[cut.part]
    by_block = np.argsort(of_piece, kind="stable")
    # A schedule's pieces are numbered block by block.
    name = np.argsort(by_block)
    begun = np.flatnonzero(np.isfinite(start))
    order = begun[np.argsort(start[begun], kind="stable")]
    place, transfer = np.divmod(order, hops.shape[1])
    hop, op = hops[cut.part[place], transfer], transfers.op[cut.part[place], transfer]
    adds = None
    if demand is not None:
        target = topology.servers[transfers.target[hop]]
        # A server that does not contribute can only add to a copy, which must have arrived before.
        adds = (op == REDUCE) & ~demand.contributors.has(of_piece[place], target)
    return lower(
        topology,
        transfers.wires.links,
        transfers.wires.first,
        hop,
        piece=name[place],
        op=op,
        root=root[cut.part[by_block]],
        adds=adds,
        collective=collective,
        shares=shares[by_block],
        demand=demand,
        block=None if demand is None else of_piece[by_block],
    )
