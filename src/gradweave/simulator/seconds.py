"""Predicted time of a schedule: round by round, event by event, or with fairly shared links."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.ready import ReadyAt, earliest_starts
from gradweave.schedules.schedule import Schedule, table_of_rows, take_rows
from gradweave.simulator.traffic import piece_bytes
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.units import as_size

Model = Literal["rounds", "events", "fair"]
"""The model of time: see `seconds`."""

SPARSE = 32
"""Ratio of links times rounds to link uses above which links in use are found by sorting instead of
in a table of all."""


def seconds(
    schedule: ScheduleLike,
    gradient_bytes: float | str | None = None,
    model: Model = "rounds",
    *,
    ready_at_s: ReadyAt | None = None,
) -> float:
    """Predicts the time of a schedule.

    Args:
        schedule: the schedule.
        gradient_bytes: size of the whole gradient; not needed if the schedule has a demand.
        model: ``rounds``: a barrier after each round, see `round_seconds`; ``events``: a transfer
            starts as soon as it can, first come, first served, see `event_seconds`; ``fair``: the
            same with links shared, see `fair_seconds`.
        ready_at_s: [N] seconds at which each server's gradient is ready, in order of id; by
            default the times that the schedule was planned for, otherwise 0. A server that is not
            ready sends nothing that includes its contribution; received data waits to be added.

    Returns:
        Time until the last transfer's end, in seconds, from 0 on.

    Raises:
        OptionError: for an unknown model, or invalid times.

    Source: docs/concepts/semantics.md.
    """
    schedule = as_schedule(schedule)
    if model == "rounds":
        return float(round_seconds(schedule, gradient_bytes, ready_at_s).sum())
    if model in ("events", "fair"):
        play = event_seconds if model == "events" else fair_seconds
        _, finish = play(schedule, gradient_bytes, ready_at_s)
        return float(finish.max(initial=0.0))
    raise OptionError(f"model: expected rounds, events or fair, got {model!r}")


def round_seconds(
    schedule: ScheduleLike,
    gradient_bytes: float | str | None = None,
    ready_at_s: ReadyAt | None = None,
) -> NDArray[np.float64]:
    """Duration of each round if every round waits for its slowest transfer.

    A transfer takes the sum of its route's latencies, the largest of its links' overheads, and its
    bytes over its share of the scarcest link: a link direction's bandwidth is divided evenly among
    its transfers in that round. A round starts when all its senders are ready.

    Args:
        schedule: the schedule.
        gradient_bytes: size of the whole gradient.
        ready_at_s: [N] when each server is ready; see `seconds`.

    Returns:
        [rounds] seconds, including the wait before each round.

    >>> import gradweave as gw
    >>> link = gw.topology.Link(bandwidth_bytes_per_s=1e9, latency_s=0.0, overhead_s=0.0)
    >>> ring = gw.schedulers.Ring().schedule(gw.topology.ring(4, link=link))
    >>> gw.simulator.round_seconds(ring, gradient_bytes=4e9).tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    schedule = as_schedule(schedule)
    moved = piece_bytes(schedule, gradient_bytes)[schedule.piece]
    if not schedule.num_transfers:
        return np.zeros(0)
    topology = schedule.topology
    links, _ = schedule.route_links
    latency = np.add.reduceat(topology.latency_s[links], first_links(schedule)[:-1])
    duration = latency + overheads(schedule) + moved / rates(schedule)
    longest = np.zeros(schedule.rounds)
    np.maximum.at(longest, schedule.round, duration)
    ready = np.zeros(schedule.rounds)
    np.maximum.at(ready, schedule.round, earliest_starts(schedule, ready_at_s))
    if not ready.any():
        return longest
    # Each round's end is the maximum over the waits at all rounds up to it.
    ends = np.maximum.accumulate(ready - np.cumsum(longest) + longest) + np.cumsum(longest)
    return np.diff(ends, prepend=0.0)


def event_seconds(
    schedule: ScheduleLike,
    gradient_bytes: float | str | None = None,
    ready_at_s: ReadyAt | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and end of each transfer if transfers wait only for their data and their links.

    A transfer is as fast as in the model of rounds (`rates`). It starts as soon as its source is
    ready, every earlier write to its piece there has arrived, and each link of its route has enough
    free bandwidth. Transfers claim bandwidth in the schedule's order, occupy it for their overhead
    (`overheads`) and their bytes, and arrive later by the route's latency. So a single transfer on
    a link has all of its bandwidth, whatever the capacity; a fast link carries several slow
    transfers concurrently; and nothing takes longer than in the model of rounds.

    Args:
        schedule: the schedule.
        gradient_bytes: size of the whole gradient.
        ready_at_s: [N] when each server is ready; see `seconds`.

    Returns:
        [T] start and [T] end in seconds.
    """
    schedule = as_schedule(schedule)
    if not schedule.num_transfers:
        return np.zeros(0), np.zeros(0)
    rate = rates(schedule)
    hold = overheads(schedule) + piece_bytes(schedule, gradient_bytes)[schedule.piece] / rate
    return transfer_times(schedule, rate, hold, earliest_starts(schedule, ready_at_s))


def changed_seconds(
    schedule: ScheduleLike,
    gradient_bytes: float | str,
    changed: TopologyLike,
    at_s: float,
    *,
    planned_then: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and end of each transfer as in `event_seconds` if bandwidths change during the run.

    Active transfers then continue at their new rates. If a link no longer has enough bandwidth for
    all its transfers, those that started last count as if they had waited for the others.

    Args:
        schedule: the schedule, on the initial network.
        gradient_bytes: size of the whole gradient.
        changed: the same network with the later bandwidths.
        at_s: seconds from the start at which they change.
        planned_then: [T] whether a transfer was only planned at that time, and cannot start
            earlier; none, if not given.

    Returns:
        [T] start and [T] end in seconds.
    """
    schedule = as_schedule(schedule)
    changed = as_topology(changed)
    gradient_bytes = as_size(gradient_bytes)
    moved = piece_bytes(schedule, gradient_bytes)[schedule.piece]
    rate_before, overhead_s = rates(schedule), overheads(schedule)
    hold_before = overhead_s + moved / rate_before
    earliest = earliest_starts(schedule, None)
    if planned_then is not None:
        earliest[planned_then] = np.maximum(earliest[planned_then], at_s)
    start, _ = transfer_times(schedule, rate_before, hold_before, earliest)
    begun = start < at_s
    later = schedule.replace(topology=changed)
    rate = rates(later)
    hold = overhead_s + moved / rate
    done = np.where(begun, np.minimum((at_s - start) / hold_before, 1.0), 0.0)
    hold = done * hold_before + (1 - done) * hold
    return transfer_times(later, rate, hold, np.where(begun, start, np.maximum(earliest, at_s)))


def transfer_times(
    schedule: Schedule,
    rate: NDArray[np.float64],
    hold: NDArray[np.float64],
    earliest: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and end of each transfer in the event model, for any rates and hold times.

    Args:
        schedule: gives the order of transfers and their routes.
        rate: [T] bytes per second that each transfer takes of its links.
        hold: [T] seconds for which it takes them.
        earliest: [T] seconds before which its source has nothing to send.

    Returns:
        [T] start and [T] end in seconds.
    """
    from gradweave.simulator.events import play_events

    topology = schedule.topology
    links, transfer = schedule.route_links
    slowest = np.full(len(topology.source), np.inf)
    np.minimum.at(slowest, links, rate[transfer])
    # A slot that rounding took away would make transfers wait, a slot too many is never used.
    at_once = np.floor(topology.bandwidth_bytes_per_s / slowest * (1 + 1e-6))
    carried = np.bincount(links, minlength=len(topology.source))
    slots = np.minimum(at_once, carried).astype(np.int64)
    return play_events(
        schedule.round_offsets,
        schedule.piece,
        schedule.source,
        schedule.target,
        earliest,
        links,
        first_links(schedule),
        rate,
        hold,
        topology.bandwidth_bytes_per_s,
        topology.latency_s,
        np.concatenate([[0], np.cumsum(slots)]),
        topology.num_nodes,
        schedule.pieces,
    )


def fair_seconds(
    schedule: ScheduleLike,
    gradient_bytes: float | str | None = None,
    ready_at_s: ReadyAt | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and end of each transfer if routes share their links max–min fairly.

    It approximates TCP connections: all transfers over one route form a connection and follow each
    other in the schedule's order. A connection sends as soon as the data of its next transfer has
    arrived, independent of other connections. Active connections share each link evenly, except for
    bandwidth that a connection cannot use because another link of its route is scarcer. An overhead
    takes its nominal time if its route is not shared, and is shared like bytes otherwise. So a
    single transfer takes as long as in the event model, and no transfer waits for other rounds. It
    is ten to a thousand times slower than `event_seconds`, since rates are recomputed at each start
    and end.

    Args:
        schedule: the schedule.
        gradient_bytes: size of the whole gradient.
        ready_at_s: [N] when each server is ready; see `seconds`.

    Returns:
        [T] start and [T] end in seconds.

    Source: Bertsekas and Gallager, "Data Networks", 6.5.2 (max–min fair flow control).
    """
    schedule = as_schedule(schedule)
    from gradweave.simulator.fair import Sharing, play_fair

    moved = piece_bytes(schedule, gradient_bytes)[schedule.piece]
    if not schedule.num_transfers:
        return np.zeros(0), np.zeros(0)
    topology, pieces = schedule.topology, schedule.pieces
    routes = table_of_rows(schedule.route_nodes, schedule.route_offsets)
    _, example, connection = np.unique(routes, axis=0, return_index=True, return_inverse=True)
    connection = connection.reshape(-1)
    links, _ = schedule.route_links
    first = first_links(schedule)
    narrowest = np.minimum.reduceat(topology.bandwidth_bytes_per_s[links], first[:-1])
    latency = np.add.reduceat(topology.latency_s[links], first[:-1])
    links_of, first_link = take_rows(links, first, example)
    reads = schedule.source.astype(np.int64) * pieces + schedule.piece
    cells = np.arange(topology.num_nodes * pieces + 1)
    return play_fair(
        Sharing(
            connection=connection,
            queue=np.argsort(connection, kind="stable"),
            first_queued=np.searchsorted(np.sort(connection), np.arange(len(example) + 1)),
            links=links_of,
            first_link=first_link,
            latency=latency[example],
            work=moved + overheads(schedule) * narrowest,
            earliest=earliest_starts(schedule, ready_at_s),
            round=schedule.round.astype(np.int64),
            writes=schedule.target.astype(np.int64) * pieces + schedule.piece,
            readers=np.argsort(reads, kind="stable"),
            first_reader=np.searchsorted(np.sort(reads), cells),
            bandwidth=topology.bandwidth_bytes_per_s,
        )
    )


def overheads(schedule: Schedule) -> NDArray[np.float64]:
    """[T] seconds for which each transfer occupies its route in addition to its bytes' time.

    It is the largest overhead of its links: a route is occupied as a whole, and sender and receiver
    work at the same time.

    Args:
        schedule: the schedule.
    """
    links, _ = schedule.route_links
    return np.maximum.reduceat(schedule.topology.overhead_s[links], first_links(schedule)[:-1])


def first_links(schedule: Schedule) -> NDArray[np.int64]:
    """[T+1] where each transfer's links start in `Schedule.route_links`; nodes minus one each.

    Args:
        schedule: the schedule.
    """
    return schedule.route_offsets - np.arange(schedule.num_transfers + 1)


def rates(schedule: Schedule) -> NDArray[np.float64]:
    """[T] bytes per second of each transfer: its share of the scarcest link of its route.

    A link direction's bandwidth is divided evenly among its transfers in their round.

    Args:
        schedule: the schedule.
    """
    topology = schedule.topology
    links, transfer = schedule.route_links
    link_in_round = schedule.round[transfer].astype(np.int64) * len(topology.source) + links
    if schedule.rounds * len(topology.source) < SPARSE * len(links):
        slot, load = link_in_round, np.bincount(link_in_round)
    else:
        _, slot, load = np.unique(link_in_round, return_inverse=True, return_counts=True)
    share = topology.bandwidth_bytes_per_s[links] / load[slot]
    return np.minimum.reduceat(share, first_links(schedule)[:-1])
