"""Conversion to pieces of equal size, for formats whose chunks are equal."""

import contextlib
import dataclasses
from collections.abc import Callable

import numpy as np

from gradweave.errors import OptionError, ScheduleError
from gradweave.schedulers.packing.packed import schedule_in_equal_pieces
from gradweave.schedulers.packing.parts import Parts, parts_with
from gradweave.schedulers.repairing.known_trees import known_trees
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.planned_for import planned_for
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.seconds import seconds
from gradweave.topology.units import as_size
from gradweave.verifier import verify

GRADIENT_BYTES = 100e6
"""Gradient size for which pieces are optimised if a schedule states none."""
MAX_PIECES = 1 << 15
"""Maximum number of pieces: no format takes more chunks in a buffer."""


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Numbers of pieces to try, chosen by hand."""

    counts: tuple[int, ...] = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
    """Few pieces approximate the shares poorly and do not fill a pipeline. With many, each piece is
    another step for every server on its way, and MSCCL takes 256 in a thread block. Each number
    costs simulations."""
    max_transfers: int = 400_000
    """Approximate number of transfers beyond which no more pieces are tried: simulation time is
    proportional to it, and formats take fewer."""
    worth: float = 0.01
    """Fewer pieces are preferred if they are at most this fraction slower than the best number."""


TUNING = Tuning()


@dataclasses.dataclass(frozen=True, eq=False)
class EqualPieces:
    """A schedule with pieces of equal size, and its cost."""

    schedule: Schedule
    pieces_before: int
    gradient_bytes: float
    seconds_before: float
    """Time of the original schedule by the event model for a gradient of that size."""
    seconds: float
    """Time with pieces of equal size."""


def in_equal_pieces(
    schedule: ScheduleLike, pieces: int | None = None, *, gradient_bytes: float | str | None = None
) -> Schedule:
    """The trees of a schedule with pieces of equal size, in numbers proportional to their shares.

    The order of transfers is computed again, since the old order does not suit fewer and larger
    pieces. A tree with a small share may get no piece; other trees then carry its part.

    Args:
        schedule: a valid schedule in which each piece moves over one tree to its root and over one
            tree from it, such as those of `packed`, `planned` and `hierarchical`.
        pieces: number of pieces. By default the smallest of `Tuning.counts` that is at most
            `Tuning.worth` slower than the fastest, or the current number if the pieces are already
            equal. For a single stage, a multiple of the number of servers, each the root of equally
            many.
        gradient_bytes: size of the gradient to optimise for; by default the size for which the
            schedule was planned, or else `GRADIENT_BYTES`.

    Returns:
        The schedule, verified.

    Raises:
        OptionError: for an invalid number of pieces.
        ScheduleError: for a schedule whose pieces move otherwise, or a single stage in which some
            servers are not roots.

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
    schedule = as_schedule(schedule)
    gradient_bytes = None if gradient_bytes is None else as_size(gradient_bytes)
    made, _ = in_equal_pieces_for(schedule, lambda made: b"", pieces, gradient_bytes)
    return made.schedule


def in_equal_pieces_for(
    schedule: Schedule,
    write: Callable[[Schedule], bytes],
    pieces: int | None = None,
    gradient_bytes: float | None = None,
) -> tuple[EqualPieces, bytes]:
    """Like `in_equal_pieces`, with a number of pieces that a format accepts, and the file.

    If the format rejects the number that `in_equal_pieces` would choose, the same rule chooses
    among smaller numbers.

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
    """The schedule cut into each number of equal pieces to try."""
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
