"""How long a schedule takes, in seconds: round by round, event by event, or on shared links."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.schedule.ready import ReadyAt, earliest_starts
from gradweave.schedule.schedule import Schedule, table_of_rows, take_rows
from gradweave.simulate.traffic import piece_bytes
from gradweave.topology.topology import Topology

Model = Literal["rounds", "events", "fair"]
"""How time passes: see `seconds`."""

SPARSE = 32
"""Links and rounds, for each transfer's link, from which on those that carry something are sought
by sorting rather than in a table of all."""


def seconds(
    schedule: Schedule,
    gradient_bytes: float | None = None,
    model: Model = "rounds",
    *,
    ready_at_s: ReadyAt | None = None,
) -> float:
    """Predicts the time of a schedule.

    Args:
        schedule: the schedule.
        gradient_bytes: size of the whole gradient; needless where the schedule has a demand.
        model: ``rounds``: a barrier after each round, see `round_seconds`; ``events``: a transfer
            starts as soon as it can, first come, first served, see `event_seconds`; ``fair``: the
            same, with links shared, see `fair_seconds`.
        ready_at_s: [N] seconds at which each server's own gradient is ready, in order of id; 0 if
            not given. Before, a server sends nothing that its own contribution belongs in; what it
            receives waits to be added.

    Returns:
        Time until the last transfer's end, in seconds, from 0 on.

    Raises:
        OptionError: for an unknown model, or times that make no sense.

    Source: docs/concepts/semantics.md.
    """
    if model == "rounds":
        return float(round_seconds(schedule, gradient_bytes, ready_at_s).sum())
    if model in ("events", "fair"):
        play = event_seconds if model == "events" else fair_seconds
        _, finish = play(schedule, gradient_bytes, ready_at_s)
        return float(finish.max(initial=0.0))
    raise OptionError(f"model: expected rounds, events or fair, got {model!r}")


def round_seconds(
    schedule: Schedule, gradient_bytes: float | None = None, ready_at_s: ReadyAt | None = None
) -> NDArray[np.float64]:
    """Duration of each round, where every round waits for its slowest transfer.

    A transfer takes the sum of its route's latencies, the largest of its links' overheads, and its
    bytes over its share of the scarcest link: a link direction's bandwidth divides evenly among the
    transfers that it carries in that round. A round begins when all who send in it are ready.

    Args:
        schedule: the schedule.
        gradient_bytes: size of the whole gradient.
        ready_at_s: [N] when each server is ready; see `seconds`.

    Returns:
        [rounds] seconds, with the wait before each round.

    >>> import gradweave as gw
    >>> link = gw.topology.Link(bandwidth_bytes_per_s=1e9, latency_s=0.0, overhead_s=0.0)
    >>> ring = gw.schedulers.Ring().schedule(gw.topology.ring(4, link=link))
    >>> gw.simulate.round_seconds(ring, gradient_bytes=4e9).tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    moved = piece_bytes(schedule, gradient_bytes)[schedule.piece]
    if not schedule.num_transfers:
        return np.zeros(0)
    topology = schedule.topology
    links, _ = schedule.route_links
    latency = np.add.reduceat(topology.latency_s[links], _first_links(schedule)[:-1])
    duration = latency + overheads(schedule) + moved / rates(schedule)
    longest = np.zeros(schedule.rounds)
    np.maximum.at(longest, schedule.round, duration)
    ready = np.zeros(schedule.rounds)
    np.maximum.at(ready, schedule.round, earliest_starts(schedule, ready_at_s))
    if not ready.any():
        return longest
    # Of each round, the end is the latest of what a wait at some round before it leads to.
    ends = np.maximum.accumulate(ready - np.cumsum(longest) + longest) + np.cumsum(longest)
    return np.diff(ends, prepend=0.0)


def event_seconds(
    schedule: Schedule, gradient_bytes: float | None = None, ready_at_s: ReadyAt | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and end of each transfer, where a transfer waits only for its data and its links.

    A transfer is as fast as in the model of rounds (`rates`). It starts as soon as its source is
    ready, every earlier write to its piece there has arrived, and each link of its route has that
    much bandwidth left. Transfers claim bandwidth in the schedule's order, hold it for their
    overhead (`overheads`) and their bytes, and arrive the route's latency later. So one alone on a
    link has all of its bandwidth, whatever its capacity; a fast link carries several slow transfers
    at once; and nothing takes longer than in the model of rounds.

    Args:
        schedule: the schedule.
        gradient_bytes: size of the whole gradient.
        ready_at_s: [N] when each server is ready; see `seconds`.

    Returns:
        [T] start and [T] end in seconds.
    """
    if not schedule.num_transfers:
        return np.zeros(0), np.zeros(0)
    rate = rates(schedule)
    hold = overheads(schedule) + piece_bytes(schedule, gradient_bytes)[schedule.piece] / rate
    return _played(schedule, rate, hold, earliest_starts(schedule, ready_at_s))


def changed_seconds(
    schedule: Schedule,
    gradient_bytes: float,
    changed: Topology,
    at_s: float,
    *,
    planned_then: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and end of each transfer, as `event_seconds`, where bandwidths change during the run.

    What is under way then goes on at its new rate. Where several transfers share a link that has no
    longer room for all of them, those that began last count as if they had waited for the others.

    Args:
        schedule: the schedule, on the network as it is at first.
        gradient_bytes: size of the whole gradient.
        changed: the same network with the bandwidths that it has from then on.
        at_s: seconds from the start at which they change.
        planned_then: [T] whether a transfer was planned only then, and cannot start before; none,
            if not given.

    Returns:
        [T] start and [T] end in seconds.
    """
    moved = piece_bytes(schedule, gradient_bytes)[schedule.piece]
    rate_before, overhead_s = rates(schedule), overheads(schedule)
    hold_before = overhead_s + moved / rate_before
    earliest = earliest_starts(schedule, None)
    if planned_then is not None:
        earliest[planned_then] = np.maximum(earliest[planned_then], at_s)
    start, _ = _played(schedule, rate_before, hold_before, earliest)
    begun = start < at_s
    later = schedule.replace(topology=changed)
    rate = rates(later)
    hold = overhead_s + moved / rate
    done = np.where(begun, np.minimum((at_s - start) / hold_before, 1.0), 0.0)
    hold = done * hold_before + (1 - done) * hold
    return _played(later, rate, hold, np.where(begun, start, np.maximum(earliest, at_s)))


def _played(
    schedule: Schedule,
    rate: NDArray[np.float64],
    hold: NDArray[np.float64],
    earliest: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and end of each transfer [T], given its rate, how long it holds its links, and when."""
    from gradweave.simulate.events import play_events

    topology = schedule.topology
    links, transfer = schedule.route_links
    slowest = np.full(len(topology.source), np.inf)
    np.minimum.at(slowest, links, rate[transfer])
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
        _first_links(schedule),
        rate,
        hold,
        topology.bandwidth_bytes_per_s,
        topology.latency_s,
        np.concatenate([[0], np.cumsum(slots)]),
        topology.num_nodes,
        schedule.pieces,
    )


def fair_seconds(
    schedule: Schedule, gradient_bytes: float | None = None, ready_at_s: ReadyAt | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and end of each transfer, where routes share their links max–min fairly.

    As the connections of TCP do, about: all transfers over one route are one connection and follow
    each other in the schedule's order; a connection sends as soon as its next transfer's data has
    arrived, whatever others do. Those that send share each link evenly, but for what a connection
    cannot use because another link of its route is scarcer. An overhead takes as long as it does
    alone where its route is not shared, and is shared as its bytes are. So one transfer alone takes
    what it takes in the event model, and nobody waits for others' rounds. Ten to a thousand times
    as slow as `event_seconds`: rates are found anew at each start and end.

    Args:
        schedule: the schedule.
        gradient_bytes: size of the whole gradient.
        ready_at_s: [N] when each server is ready; see `seconds`.

    Returns:
        [T] start and [T] end in seconds.

    Source: Bertsekas and Gallager, "Data Networks", 6.5.2 (max–min fair flow control).
    """
    from gradweave.simulate.fair import Sharing, play_fair

    moved = piece_bytes(schedule, gradient_bytes)[schedule.piece]
    if not schedule.num_transfers:
        return np.zeros(0), np.zeros(0)
    topology, pieces = schedule.topology, schedule.pieces
    routes = table_of_rows(schedule.route_nodes, schedule.route_offsets)
    _, example, connection = np.unique(routes, axis=0, return_index=True, return_inverse=True)
    connection = connection.reshape(-1)
    links, _ = schedule.route_links
    first = _first_links(schedule)
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
    """[T] seconds for which each transfer holds its route beside the time of its bytes.

    The largest overhead of its links: a route is held as a whole, and sender and receiver work at
    the same time.

    Args:
        schedule: the schedule.
    """
    links, _ = schedule.route_links
    return np.maximum.reduceat(schedule.topology.overhead_s[links], _first_links(schedule)[:-1])


def _first_links(schedule: Schedule) -> NDArray[np.int64]:
    """[T+1] where each transfer's links start in `Schedule.route_links`: nodes less one each."""
    return schedule.route_offsets - np.arange(schedule.num_transfers + 1)


def rates(schedule: Schedule) -> NDArray[np.float64]:
    """[T] bytes per second of each transfer: its share of the scarcest link of its route.

    A link direction's bandwidth divides evenly among the transfers that it carries in their round.

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
    return np.minimum.reduceat(share, _first_links(schedule)[:-1])
