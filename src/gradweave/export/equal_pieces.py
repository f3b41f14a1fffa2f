"""Pieces of any share made pieces of one size, for formats whose chunks are of one size."""

import contextlib
import dataclasses
from collections.abc import Callable

import numpy as np

from gradweave.errors import OptionError, ScheduleError
from gradweave.schedule.planned_for import planned_for
from gradweave.schedule.schedule import Schedule
from gradweave.schedulers.unequal.known_trees import known_trees
from gradweave.schedulers.unequal.packed import schedule_in_equal_pieces
from gradweave.schedulers.unequal.parts import Parts, parts_with
from gradweave.simulate.seconds import seconds
from gradweave.verify import verify

GRADIENT_BYTES = 100e6
"""Size of the gradient for which pieces are to be fast where a schedule states none."""
MAX_PIECES = 1 << 15
"""Pieces that may be asked for: no format takes more chunks of a buffer."""


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Numbers of pieces that are tried, chosen by hand."""

    counts: tuple[int, ...] = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
    """Few pieces are far from the shares and fill no pipeline; of many, each is one more step for
    every server on its way, of which MSCCL takes 256 in a thread block. Each costs simulations."""
    max_transfers: int = 400_000
    """No more pieces are tried than have about so many transfers: simulation takes time in
    proportion, and formats take fewer."""
    worth: float = 0.01
    """How much longer fewer pieces may take, relative to the fastest number, and be the answer."""


TUNING = Tuning()


@dataclasses.dataclass(frozen=True, eq=False)
class EqualPieces:
    """A schedule in pieces of one size, and what that costs."""

    schedule: Schedule
    pieces_before: int
    gradient_bytes: float
    seconds_before: float
    """Of the schedule as it was, predicted by the event model for a gradient of that size."""
    seconds: float
    """The same in pieces of one size."""


def in_equal_pieces(
    schedule: Schedule, pieces: int | None = None, *, gradient_bytes: float | None = None
) -> Schedule:
    """The trees of a schedule with pieces of one size, of each about as many as its share is.

    The order in which they move is made anew: that of the old pieces does not suit fewer and larger
    ones. A tree of a small share may get none; others then carry its part.

    Args:
        schedule: a valid schedule, in which each piece moves over one tree to its root and one from
            it, as those of `packed`, `planned` and `hierarchical` do.
        pieces: how many; if not given, the smallest of `Tuning.counts` that is at most
            `Tuning.worth` slower than the fastest, or as many as there are where they are of one
            size. Of a stage alone a multiple of the number of servers, each the root of equally
            many.
        gradient_bytes: size of the gradient for which it is to be fast; if not given, that for
            which the schedule was planned, or else `GRADIENT_BYTES`.

    Returns:
        The schedule, verified.

    Raises:
        OptionError: for a number of pieces that makes no sense.
        ScheduleError: for a schedule whose pieces do not move so, or a stage alone with servers
            that are no roots.

    >>> import gradweave as gw
    >>> star = gw.topology.Topology.from_links(
    ...     "star",
    ...     servers=3,
    ...     switches=1,
    ...     links=[(0, 3), (1, 3), (2, 3)],
    ...     bandwidth_bytes_per_s=[1e9, 3e9, 4e9],
    ... )
    >>> packed = gw.schedulers.Packed(gradient_bytes=1e8).schedule(star)
    >>> in_equal_pieces(packed, 16).pieces
    16
    """
    made, _ = in_equal_pieces_for(schedule, lambda made: b"", pieces, gradient_bytes)
    return made.schedule


def in_equal_pieces_for(
    schedule: Schedule,
    write: Callable[[Schedule], bytes],
    pieces: int | None = None,
    gradient_bytes: float | None = None,
) -> tuple[EqualPieces, bytes]:
    """The same in as many pieces as a format takes, and the file.

    Where the format does not take the number that `in_equal_pieces` would choose, the same choice
    of smaller ones.

    Args:
        schedule: as `in_equal_pieces` takes it.
        write: makes the file, or refuses a schedule beyond the format's limits.
        pieces: as `in_equal_pieces` takes it.
        gradient_bytes: as `in_equal_pieces` takes it.

    Raises:
        OptionError: as `in_equal_pieces`.
        ScheduleError: as `in_equal_pieces`, or where the format takes none: why not the fewest.
    """
    gradient_bytes = gradient_bytes or planned_for(schedule).gradient_bytes or GRADIENT_BYTES
    before_s = seconds(schedule, gradient_bytes, "events")
    if schedule.demand is None and schedule.shares is None and pieces is None:
        there = EqualPieces(schedule, schedule.pieces, gradient_bytes, before_s, before_s)
        with contextlib.suppress(ScheduleError):  # of which the format takes fewer, maybe
            return there, write(schedule)
    cuts = _cuts(schedule, pieces, gradient_bytes)
    seconds_of = {count: seconds(cut, gradient_bytes, "events") for count, cut in cuts.items()}
    while True:
        fastest_s = min(seconds_of.values())
        count = min(n for n, s in seconds_of.items() if s <= fastest_s * (1 + TUNING.worth))
        verify(cuts[count], forwarding_servers=False).raise_if_invalid()
        try:
            file = write(cuts[count])
        except ScheduleError:
            seconds_of = {n: s for n, s in seconds_of.items() if n < count}
            if not seconds_of:
                raise
        else:
            before = schedule.pieces, gradient_bytes, before_s
            return EqualPieces(cuts[count], *before, seconds_of[count]), file


def _cuts(schedule: Schedule, pieces: int | None, gradient_bytes: float) -> dict[int, Schedule]:
    """The schedule in each number of equal pieces to try."""
    counts, parts = _counts(schedule, pieces), _parts_of(schedule)
    topology, collective = schedule.topology, schedule.collective
    return {
        count: schedule_in_equal_pieces(topology, collective, gradient_bytes, parts, count).replace(
            scheduler=schedule.scheduler
        )
        for count in counts
    }


def _counts(schedule: Schedule, pieces: int | None) -> list[int]:
    """Numbers of pieces to try, ascending."""
    servers = 1 if schedule.collective == "all_reduce" else schedule.topology.num_servers
    if pieces is None:
        counts = sorted({servers * -(-count // servers) for count in TUNING.counts})
        most = TUNING.max_transfers // (2 * schedule.topology.num_servers)
        return [count for count in counts if count <= most] or counts[:1]
    if not 1 <= pieces <= MAX_PIECES:
        raise OptionError(f"equal pieces: expected 1 to {MAX_PIECES}, got {pieces}")
    if pieces % servers:
        raise OptionError(
            f"equal pieces: expected a multiple of {servers}, as many for each server as the root "
            f"of a {schedule.collective}; got {pieces}"
        )
    return [pieces]


def _parts_of(schedule: Schedule) -> Parts:
    """The schedule's trees, with their shares."""
    topology, collective = schedule.topology, schedule.collective
    known = known_trees(schedule, topology, np.arange(topology.num_nodes))
    if known is None or any(one.lost.any() for one in known):
        raise ScheduleError(
            "equal pieces: expected pieces that each move over one tree to the root and one from it"
        )
    roots = {one.tree.root for one in known}
    if collective != "all_reduce" and len(roots) < topology.num_servers:
        rank = next(rank for rank in range(topology.num_servers) if rank not in roots)
        raise ScheduleError(
            f"equal pieces: {topology.node_name(int(topology.servers[rank]))} is the root of "
            f"nothing; expected equal shares of all servers in a {collective}"
        )
    return parts_with(topology, collective, [one.tree for one in known])
