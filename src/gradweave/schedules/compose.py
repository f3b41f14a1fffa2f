"""Reversing a stage, joining two stages into an all-reduce, and overlapping them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import ScheduleError
from gradweave.schedules.columns import constant, ends_of, frozen, narrowest, same_view
from gradweave.schedules.demand import Demand
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.schedule import COPY, DEMAND, REDUCE, Schedule, take_rows
from gradweave.topology.topology import Floats


def reverse(schedule: ScheduleLike) -> Schedule:
    """The other stage: all transfers in reversed time and direction.

    Copies become reduces, and reduces copies. A valid all-gather becomes a valid reduce-scatter
    that merges at every server, and vice versa. Each link direction's load moves to its opposite,
    so the result respects the capacities if the two directions of each link are alike.

    Raises:
        ScheduleError: the schedule is an all-reduce.

    >>> import gradweave as gw
    >>> stage = gw.schedulers.Ring().schedule(gw.topology.ring(4), collective="reduce_scatter")
    >>> gw.schedules.reverse(stage)
    Schedule(all_gather on 'ring:n=4': 12 transfers in 3 rounds, by ring)
    """
    schedule = as_schedule(schedule)
    if schedule.collective == "all_reduce":
        raise ScheduleError(
            "reverse: expected reduce_scatter or all_gather, got all_reduce; reverse its stages "
            "one by one"
        )
    gathering = schedule.collective == "reduce_scatter"
    return schedule.replace(
        collective="all_gather" if gathering else "reduce_scatter",
        round=frozen(schedule.rounds - 1 - schedule.round[::-1]),
        piece=schedule.piece[::-1],
        source=schedule.target[::-1],
        target=schedule.source[::-1],
        op=constant(COPY if gathering else REDUCE, np.int8, schedule.num_transfers),
        route_nodes=schedule.route_nodes[::-1],
        route_offsets=schedule.route_length
        or schedule.route_offsets[-1] - schedule.route_offsets[::-1],
    )


def at_once(schedules: Sequence[ScheduleLike], starts: Sequence[Floats]) -> Schedule:
    """Several schedules of demands as one schedule of all their jobs, ordered by start times.

    Rounds of different schedules stay separate, so no link exceeds its capacity.

    Args:
        schedules: at least one, each of a demand, on one network.
        starts: [T] for each schedule, seconds at which its transfers start when it runs alone.

    Raises:
        ScheduleError: a schedule has no demand, or the networks differ.
    """
    schedules = [as_schedule(each) for each in schedules]
    first = schedules[0]
    demands = [one.demand for one in schedules if one.demand is not None]
    if len(demands) != len(schedules):
        raise ScheduleError("at_once: expected schedules of demands, got one of another collective")
    if not all(one.topology.same_network(first.topology) for one in schedules):
        raise ScheduleError("at_once: the schedules are for different networks")
    of_schedule = np.repeat(np.arange(len(schedules)), [one.num_transfers for one in schedules])
    begun = [_round_starts(*each) for each in zip(schedules, starts, strict=True)]
    own_round = np.concatenate([one.round for one in schedules])
    order = np.lexsort((own_round, of_schedule, np.concatenate(begun)))
    new = np.diff(of_schedule[order]) != 0
    new |= np.diff(own_round[order]) != 0

    def joined(field: str, offset: Sequence[int] | None = None) -> NDArray[Any]:
        columns = [getattr(one, field) for one in schedules]
        before = np.cumsum([0, *offset])[:-1] if offset else np.zeros(len(columns), np.int64)
        return np.concatenate([one + n for one, n in zip(columns, before, strict=True)])

    lengths = np.concatenate([np.diff(one.route_offsets) for one in schedules])
    every_route = joined("route_nodes"), np.concatenate([[0], np.cumsum(lengths)])
    nodes, offsets = take_rows(*every_route, order)
    return Schedule(
        topology=first.topology,
        collective=DEMAND,
        root=joined("root"),
        round=np.concatenate([[0], np.cumsum(new)]),
        piece=joined("piece", [one.pieces for one in schedules])[order],
        source=joined("source")[order],
        target=joined("target")[order],
        op=joined("op")[order],
        route_nodes=nodes,
        route_offsets=offsets,
        shares=joined("weights"),
        demand=Demand.together(demands),
        block=joined("block", [len(one) for one in demands]),
    )


def _round_starts(schedule: Schedule, start: Floats) -> NDArray[np.float64]:
    """[T] start of each transfer's round, or the latest start of an earlier round if later.

    Args:
        schedule: a schedule with at least one transfer in each round.
        start: [T] start of each transfer.
    """
    first = np.full(schedule.rounds, np.inf)
    np.minimum.at(first, schedule.round, start)
    return np.maximum.accumulate(first)[schedule.round]


def compose(reduce_scatter: ScheduleLike, all_gather: ScheduleLike) -> Schedule:
    """An all-reduce: the first stage, a barrier, then the second.

    Args:
        reduce_scatter: the first stage; its provenance is kept.
        all_gather: the second stage, on the same network with the same roots.

    Raises:
        ScheduleError: the two do not fit together.
    """
    first, second = as_schedule(reduce_scatter), as_schedule(all_gather)
    if (first.collective, second.collective) != ("reduce_scatter", "all_gather"):
        raise ScheduleError(
            "compose: expected reduce_scatter and all_gather, got "
            f"{first.collective} and {second.collective}"
        )
    if not np.array_equal(first.root, second.root):
        raise ScheduleError(
            "compose: the stages have different roots; make both with one list of roots"
        )
    if not np.array_equal(first.share, second.share):
        raise ScheduleError(
            "compose: the stages divide the gradient differently; make both with one list of shares"
        )
    if not first.topology.same_network(second.topology):
        raise ScheduleError("compose: the stages are for different networks")
    return first.replace(
        collective="all_reduce",
        round=_joined_rounds(first, second),
        piece=_joined(first.piece, second.piece),
        op=_joined(first.op, second.op),
        **_joined_routes(first, second),
        bound=None,
    )


def _joined(first: NDArray, second: NDArray) -> NDArray:
    return frozen(np.concatenate([first, second]))


def _joined_routes(first: Schedule, second: Schedule) -> dict[str, Any]:
    """Routes and their ends; the ends stay views if they were and all routes are equally long."""
    nodes, length = _joined(first.route_nodes, second.route_nodes), first.route_length
    ends = (
        ends_of(nodes, length)
        if length and length == second.route_length and _are_views(first) and _are_views(second)
        else (_joined(first.source, second.source), _joined(first.target, second.target))
    )
    offsets = (
        length
        if length and length == second.route_length
        else _joined(first.route_offsets, second.route_offsets[1:] + len(first.route_nodes))
    )
    return {
        "route_nodes": nodes, "route_offsets": offsets, "source": ends[0], "target": ends[1]
    }  # fmt: skip


def _are_views(schedule: Schedule) -> bool:
    """Whether source and target are merely views of the routes."""
    first, last = ends_of(schedule.route_nodes, schedule.route_length or 1)
    return same_view(schedule.source, first) and same_view(schedule.target, last)


def _joined_rounds(first: Schedule, second: Schedule) -> NDArray:
    """The second stage's rounds after those of the first, in the narrowest possible type."""
    transfers = first.num_transfers + second.num_transfers
    kind = narrowest(first.rounds + second.rounds, transfers)
    joined = np.empty(transfers, kind)
    joined[: first.num_transfers] = first.round
    np.add(
        second.round,
        first.rounds,
        out=joined[first.num_transfers :],
        dtype=kind,
        casting="same_kind",
    )
    return frozen(joined)


def overlap(schedule: ScheduleLike) -> Schedule:
    """Starts each piece's all-gather as soon as its root is complete, if links are free.

    Copies keep the order of the schedule. Each moves to the earliest round in which its prefix is
    complete, its route has capacity, and the data that it overwrites was written and sent on;
    reduces stay in their rounds. The result never has more rounds.

    Args:
        schedule: a valid all-reduce.
    """
    schedule = as_schedule(schedule)
    if schedule.collective != "all_reduce":
        raise ScheduleError(f"overlap: expected all_reduce, got {schedule.collective}")
    from gradweave.schedules.overlap_kernel import earliest_rounds

    topology = schedule.topology
    links, transfer = schedule.route_links
    rounds = earliest_rounds(
        schedule.round_offsets.astype(np.int64),
        links.astype(np.int64),
        np.searchsorted(transfer, np.arange(schedule.num_transfers + 1)),
        *(column.astype(np.int64) for column in (schedule.source, schedule.target, schedule.piece)),
        schedule.op == COPY,
        topology.capacity.astype(np.int64),
        topology.num_nodes,
        schedule.pieces,
    )
    return schedule.replace(round=rounds)
