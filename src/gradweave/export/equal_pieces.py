"""Pieces of any share cut into pieces of one size, for formats whose chunks are of one size."""

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError, ScheduleError
from gradweave.schedule.schedule import Schedule, take_rows
from gradweave.schedule.shares import apportion
from gradweave.schedulers.solve.variants import one_a_link
from gradweave.simulate.seconds import seconds
from gradweave.verify import verify

MAX_PIECES = 1 << 15
"""Pieces that may be asked for: no format takes more chunks of a buffer."""


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Numbers of pieces that are tried, chosen by hand."""

    counts: tuple[int, ...] = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
    """Few pieces are far from the shares and fill no pipeline; of many, each is one more step for
    every server on its way, of which MSCCL takes 256 in a thread block. Each costs a simulation."""
    worth: float = 0.01
    """How much longer fewer pieces may take, relative to the fastest number, and be the answer."""


TUNING = Tuning()


@dataclasses.dataclass(frozen=True, eq=False)
class EqualPieces:
    """A schedule in pieces of one size, and what that costs."""

    schedule: Schedule
    gradient_bytes: float
    seconds: float
    """Predicted by the event model for a gradient of that size."""
    seconds_before: float
    """The same with the shares as they were."""


def in_equal_pieces(schedule: Schedule, pieces: int) -> Schedule:
    """The same trees and order for pieces of one size: shares are rounded to whole pieces.

    Pieces that move alike, over the same routes to and from the same root, count as one part. Parts
    get pieces by the largest remainder, and those of a part follow each other as they did. A part
    that is smaller than about half a piece may get none; others then carry its share.

    Args:
        schedule: a valid schedule. Of a stage alone, each server becomes the root of equally many.
        pieces: how many.

    Returns:
        The schedule, verified.

    Raises:
        OptionError: for a number of pieces that makes no sense.
        ScheduleError: a stage alone that has roots for some servers only, or more servers than the
            pieces can be divided by.

    >>> import gradweave as gw
    >>> star = gw.topology.Topology.from_links(
    ...     "star", servers=3, switches=1, links=[(0, 3), (1, 3), (2, 3)],
    ...     bandwidth_bytes_per_s=[1e9, 3e9, 4e9],
    ... )
    >>> packed = gw.schedulers.Packed(gradient_bytes=1e8).schedule(star)
    >>> in_equal_pieces(packed, 16).pieces
    16
    """
    if not 1 <= pieces <= MAX_PIECES:
        raise OptionError(f"equal pieces: expected 1 to {MAX_PIECES}, got {pieces}")
    made = _cut(schedule, parts_of_alike(schedule), pieces)
    forwards = not verify(schedule, forwarding_servers=False).valid
    verify(made, forwarding_servers=forwards).raise_if_invalid()
    return made


def in_equal_pieces_for(
    schedule: Schedule,
    write: Callable[[Schedule], bytes],
    gradient_bytes: float,
    pieces: int | None = None,
) -> tuple[EqualPieces, bytes]:
    """A schedule in as many equal pieces as are worth it and a format takes, and its file.

    The smallest number of `Tuning.counts` is taken that is at most `Tuning.worth` slower than the
    fastest; where the format does not take it, the same of the smaller ones.

    Args:
        schedule: a valid schedule.
        write: makes the file, or refuses a schedule beyond the format's limits.
        gradient_bytes: size of the gradient for which it is to be fast.
        pieces: how many, if not as many as are worth it.

    Raises:
        ScheduleError: where the format takes none, as it refuses the fewest tried.
    """
    before_s = seconds(schedule, gradient_bytes, "events")
    part = parts_of_alike(schedule)
    servers = 1 if schedule.collective == "all_reduce" else schedule.topology.num_servers
    counts = {servers * -(-count // servers) for count in TUNING.counts}
    cuts = {
        count: _cut(schedule, part, count)
        for count in (sorted(counts) if pieces is None else [pieces])
    }
    seconds_of = {count: seconds(cut, gradient_bytes, "events") for count, cut in cuts.items()}
    while True:
        fastest_s = min(seconds_of.values())
        count = min(n for n, s in seconds_of.items() if s <= fastest_s * (1 + TUNING.worth))
        made = in_equal_pieces(schedule, count)
        try:
            file = write(made)
        except ScheduleError:
            seconds_of = {n: s for n, s in seconds_of.items() if n < count}
            if not seconds_of:
                raise
        else:
            return EqualPieces(made, gradient_bytes, seconds_of[count], before_s), file


def parts_of_alike(schedule: Schedule) -> NDArray[np.int64]:
    """[P] number of the part that each piece belongs to: pieces of one root that move alike.

    Args:
        schedule: any schedule.
    """
    by_piece = np.argsort(schedule.piece, kind="stable")
    first = np.searchsorted(schedule.piece[by_piece], np.arange(schedule.pieces + 1))
    offsets = schedule.route_offsets
    routes = [
        (int(op), schedule.route_nodes[start:end].tobytes())
        for op, start, end in zip(schedule.op, offsets[:-1], offsets[1:], strict=True)
    ]
    number: dict[tuple, int] = {}
    part = np.empty(schedule.pieces, np.int64)
    for piece in range(schedule.pieces):
        moves = sorted(routes[row] for row in by_piece[first[piece] : first[piece + 1]].tolist())
        key = (int(schedule.root[piece]), *moves)
        part[piece] = number.setdefault(key, len(number))
    return part


def _pieces_of_parts(schedule: Schedule, part: NDArray[np.int64], pieces: int) -> NDArray[np.int64]:
    """[parts] how many of the pieces each part gets."""
    size = np.zeros(part.max() + 1, np.int64)
    np.add.at(size, part, schedule.weights)
    if schedule.collective == "all_reduce":
        return apportion(pieces, size)
    servers = schedule.topology.num_servers
    if pieces % servers:
        raise ScheduleError(
            f"equal pieces: expected a multiple of {servers}, as many pieces for each server as "
            f"the root, got {pieces}"
        )
    given = np.zeros(len(size), np.int64)
    root = np.empty(len(size), np.int64)
    root[part] = schedule.root
    for server in schedule.topology.servers.tolist():
        mine = np.flatnonzero(root == server)
        if not size[mine].any():
            name = schedule.topology.node_name(server)
            raise ScheduleError(f"equal pieces: {name} is the root of nothing; expected a share")
        given[mine] = apportion(pieces // servers, size[mine])
    return given


def _cut(schedule: Schedule, part: NDArray[np.int64], pieces: int) -> Schedule:
    """So many pieces, each like the old one at its place among those of its part."""
    like, place = _old_pieces(schedule, part, _pieces_of_parts(schedule, part, pieces))
    by_piece = np.argsort(schedule.piece, kind="stable")
    first = np.searchsorted(schedule.piece[by_piece], np.arange(schedule.pieces + 1))
    rows, ends = take_rows(by_piece, first, like)
    piece = np.repeat(np.arange(pieces), np.diff(ends))
    in_turn = np.lexsort((place[piece], rows))  # where the old piece moved, one after the other
    rows, piece = rows[in_turn], piece[in_turn]
    nodes, offsets = take_rows(schedule.route_nodes, schedule.route_offsets, rows)
    made = schedule.replace(
        root=schedule.root[like],
        shares=None,
        bound=None,
        round=np.arange(len(rows)),
        piece=piece,
        source=schedule.source[rows],
        target=schedule.target[rows],
        op=schedule.op[rows],
        route_nodes=nodes,
        route_offsets=offsets,
    )
    return made.replace(round=one_a_link(made))


def _old_pieces(
    schedule: Schedule, part: NDArray[np.int64], given: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """[pieces] the old piece that each new one is like, and where its middle is in their part.

    In the order of the old ones, so that new pieces lie in the gradient as these did.
    """
    like, place = [], []
    for number, count in enumerate(given.tolist()):
        mine = np.flatnonzero(part == number)
        ends = np.cumsum(schedule.share[mine])
        middle = (np.arange(count) + 0.5) / max(count, 1) * ends[-1]
        like.append(mine[np.minimum(np.searchsorted(ends, middle), len(mine) - 1)])
        place.append(middle)
    order = np.argsort(np.concatenate(like), kind="stable")
    return np.concatenate(like)[order], np.concatenate(place)[order]
