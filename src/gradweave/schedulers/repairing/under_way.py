"""Re-planning in the middle of a run: pieces that have not started are rerouted."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.schedulers.ordering.lower import earliest_rounds
from gradweave.schedulers.repairing.kept import check_start
from gradweave.schedulers.solving.solve import solve
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.schedule import Schedule, take_rows
from gradweave.schedules.shares import MAX_DENOMINATOR, apportion
from gradweave.simulator.seconds import changed_seconds, event_seconds
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.topology import Integers, Topology
from gradweave.topology.units import as_size
from gradweave.verifier import verify


@dataclasses.dataclass(frozen=True)
class Replanned:
    """The new plan of a schedule whose network changed while it ran."""

    schedule: Schedule
    """The schedule on the changed network, with the capacities of the old network: first the
    transfers that had started, unchanged; then the rest."""
    seconds: float
    """Time from the schedule's start to its end, including the change."""
    as_before_s: float
    """The same time if nothing is re-planned."""
    replanned_share: float
    """Share of the gradient that is rerouted; 0 if the schedule is best left as it was."""


def replan(
    schedule: ScheduleLike,
    changed: TopologyLike,
    gradient_bytes: float | str,
    at_s: float,
    *,
    seed: int = 0,
    time_limit: float | None = None,
) -> Replanned:
    """Re-plans the rest of a schedule that is under way when bandwidths change.

    Pieces that have been sent in part finish as planned, since several servers hold partial sums of
    them. All other pieces together are a smaller gradient, for which the changed network is solved
    again by `gradweave.solve` with ``objective="seconds"``. This helps if pieces follow each other,
    as in `Packed`, and not if all start at once, as in a ring. The result is the faster of the new
    plan and the unchanged schedule.

    Args:
        schedule: an all-reduce, on the network as it was when it began.
        changed: the same network with the bandwidths that it has now.
        gradient_bytes: size of the whole gradient.
        at_s: seconds from the schedule's start at which the links changed.
        seed: every random choice depends on it alone.
        time_limit: seconds for the search, as in `gradweave.solve`.

    Returns:
        The schedule, verified, with its seconds in the event model. The new pieces take the places
        in the gradient of the pieces that they replace.

    Raises:
        OptionError: for a collective other than all-reduce, another network, or an invalid time.

    >>> import gradweave as gw
    >>> ring = gw.topology.ring(4)
    >>> before = gw.schedulers.Packed(gradient_bytes=1e9, pieces=128).schedule(ring)
    >>> slower = gw.topology.faults.slowed(ring, {(0, 1): 0.5}).topology
    >>> after = replan(before, slower, 1e9, 0.02)
    >>> after.seconds < after.as_before_s, 0 < after.replanned_share < 1
    (True, True)
    """
    schedule = as_schedule(schedule)
    changed = as_topology(changed)
    gradient_bytes = as_size(gradient_bytes)
    now = _checked(schedule, changed, gradient_bytes, at_s)
    as_before_s = _end(changed_seconds(schedule, gradient_bytes, now, at_s))
    start, _ = event_seconds(schedule, gradient_bytes)
    begun = np.bincount(schedule.piece[start < at_s], minlength=schedule.pieces) > 0
    best = Replanned(schedule.replace(topology=now, bound=None), as_before_s, as_before_s, 0.0)
    share = float(schedule.share[~begun].sum())
    if not share:
        return best
    anew = solve(
        changed,
        objective="seconds",
        gradient_bytes=share * gradient_bytes,
        seed=seed,
        time_limit=time_limit,
    )
    for joined, planned_then in _joined(schedule, begun, anew.schedule, gradient_bytes, at_s):
        times = changed_seconds(joined, gradient_bytes, now, at_s, planned_then=planned_then)
        if _end(times) < best.seconds:
            best = Replanned(joined.replace(topology=now), _end(times), as_before_s, share)
    forwards = (
        anew.scheduler.traits.forwards or not verify(schedule, forwarding_servers=False).valid
    )
    verify(best.schedule, forwarding_servers=forwards).raise_if_invalid()
    return best


def _checked(schedule: Schedule, changed: Topology, gradient_bytes: float, at_s: float) -> Topology:
    """The changed network with the capacities that the schedule's rounds respect."""
    if schedule.collective != "all_reduce":
        raise OptionError(f"replan: expected an all_reduce, got a {schedule.collective}")
    if not 0 < gradient_bytes < math.inf:
        raise OptionError(
            f"replan: gradient_bytes: expected a finite number above 0, got {gradient_bytes}"
        )
    if not 0 <= at_s < math.inf:
        raise OptionError(f"replan: at_s: expected finite seconds, zero or more, got {at_s}")
    before = schedule.topology
    check_start(changed, before)
    alike = ("is_server", "source", "target", "latency_s", "overhead_s")
    if not all(np.array_equal(getattr(changed, one), getattr(before, one)) for one in alike):
        raise OptionError(
            f"{changed.name!r:.60} differs from the schedule's network in more than bandwidths, so "
            "its running all-reduce cannot be planned again; solve for the next one, starting from "
            "the schedule"
        )
    return dataclasses.replace(changed, capacity=before.capacity)


def _end(times: tuple[NDArray[np.float64], NDArray[np.float64]]) -> float:
    return float(times[1].max(initial=0.0))


@dataclasses.dataclass(frozen=True, eq=False)
class _Pieces:
    """All pieces: old pieces that stay, and between them copies of new pieces, cut where needed.

    The new pieces together are as large as the pieces that they replace, and take their places in
    the gradient. A new piece that would overlap a piece that stays is cut there.
    """

    root: Integers
    """[P]"""
    shares: Integers
    """[P]"""
    of_old: NDArray[np.int64]
    """[old pieces] number of each piece that stays; −1 for the others."""
    copied: NDArray[np.int64]
    """[copies] the new piece that each copy is, or is cut from."""
    of_copy: NDArray[np.int64]
    """[copies] number of each copy."""

    @classmethod
    def of(cls, old: Schedule, stays: NDArray[np.bool_], anew: Schedule) -> "_Pieces":
        # As fine as integers allow, since ends of new pieces fall anywhere.
        finer = MAX_DENOMINATOR // int(old.weights.sum())
        size = old.weights * finer
        goes = np.flatnonzero(~stays)
        # Ends of the new pieces and of the gaps that they fill, with the gaps concatenated.
        room = np.cumsum(size[goes])
        ends = np.cumsum(apportion(int(room[-1]), anew.weights))
        closing = np.append(np.diff(goes) > 1, True)
        cuts = np.union1d(ends, room[closing])
        cuts = cuts[cuts > 0]
        copied = np.searchsorted(ends, cuts)
        gap = goes[np.searchsorted(room, cuts)]  # the old piece in whose place the copy ends
        order = np.argsort(np.concatenate([np.flatnonzero(stays), gap]), kind="stable")
        number = np.argsort(order)
        of_old = np.full(old.pieces, -1, np.int64)
        of_old[stays] = number[: stays.sum()]
        return cls(
            np.concatenate([old.root[stays], anew.root[copied]])[order],
            np.concatenate([size[stays], np.diff(cuts, prepend=0)])[order],
            of_old,
            copied,
            number[stays.sum() :],
        )


def _joined(
    old: Schedule, stays: NDArray[np.bool_], anew: Schedule, gradient_bytes: float, at_s: float
) -> Iterator[tuple[Schedule, NDArray[np.bool_]]]:
    """The remaining old pieces joined with the new pieces, in two orders of their transfers.

    Args:
        old: the schedule under way.
        stays: [P] which of its pieces finish as planned.
        anew: the schedule for all other pieces together, on the changed network.
        gradient_bytes: size of the whole gradient.
        at_s: when the links changed.

    Yields:
        The schedule, and which of its transfers [T] were planned only then.
    """
    pieces = _Pieces.of(old, stays, anew)
    kept = np.flatnonzero(stays[old.piece])
    staying = _rows(old, kept, pieces, pieces.of_old[old.piece[kept]], old.round[kept])
    kept_at, _ = changed_seconds(staying, gradient_bytes, anew.topology, at_s)
    by_piece = np.argsort(anew.piece, kind="stable")
    first = np.searchsorted(anew.piece[by_piece], np.arange(anew.pieces + 1))
    rows, ends = take_rows(by_piece, first, pieces.copied)
    copies = np.repeat(pieces.of_copy, np.diff(ends))
    share = float(old.share[~stays].sum())
    begins, _ = event_seconds(anew, share * gradient_bytes)
    coming = _rows(anew, rows, pieces, copies, np.arange(len(rows)))
    is_new = np.repeat([False, True], [len(kept), len(rows)])
    at = np.concatenate([kept_at, at_s + begins[rows]])
    options = {**anew.scheduler.options, "replanned_at_s": at_s}
    provenance = dataclasses.replace(anew.scheduler, options=options)
    # The new transfers begin next to the remaining old ones, or after the last of these has begun.
    for last_s in (0.0, float(kept_at.max(initial=0.0))):
        order = np.argsort(at + is_new * last_s, kind="stable")
        joined = _in_order(staying, coming, order, int((at < at_s).sum()))
        yield joined[0].replace(scheduler=provenance), joined[1]


def _rows(
    schedule: Schedule,
    rows: NDArray[np.int64],
    pieces: _Pieces,
    piece: Integers,
    rounds: Integers,
) -> Schedule:
    """Some transfers of a schedule, as transfers of other pieces."""
    return schedule.take(
        rows, root=pieces.root, shares=pieces.shares, bound=None, round=rounds, piece=piece
    )


def _in_order(
    first: Schedule, second: Schedule, order: NDArray[np.int64], begun: int
) -> tuple[Schedule, NDArray[np.bool_]]:
    """The transfers of both in a given order, in rounds that keep it; and which have not started.

    Args:
        first: some transfers.
        second: others of the same pieces.
        order: [T] positions in `first` followed by `second`.
        begun: how many transfers at the start of the order have started; they keep their rounds.
    """
    both = (first, second)
    columns = {
        name: np.concatenate([getattr(each, name) for each in both])[order]
        for name in ("piece", "source", "target", "op", "round")
    }
    nodes = np.concatenate([each.route_nodes for each in both])
    lengths = np.concatenate([np.diff(each.route_offsets) for each in both])
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    nodes, offsets = take_rows(nodes, ends, order)
    columns |= {"route_nodes": nodes, "route_offsets": offsets}
    early = np.unique(columns.pop("round")[:begun], return_inverse=True)[1]
    joined = first.replace(**columns, round=np.arange(len(order)))
    rest = earliest_rounds(joined, begun)
    ended = early.max(initial=-1) + 1
    joined = first.replace(**columns, round=np.concatenate([early, ended + rest]))
    return joined, joined.round >= ended
