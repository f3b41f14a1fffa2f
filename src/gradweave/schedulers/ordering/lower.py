"""Lowers ordered transfers to a schedule: rounds as early as links and data allow, and columns."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.schedules.schedule import Schedule, take_rows
from gradweave.topology.topology import Topology


def lower(
    topology: Topology,
    links: NDArray[np.int64],
    first: NDArray[np.int64],
    hop: NDArray[np.int64],
    *,
    piece: NDArray[np.int64],
    op: NDArray,
    root: NDArray[np.int64],
    rounds: NDArray[np.int64] | None = None,
    adds: NDArray[np.bool_] | None = None,
    unit: NDArray[np.int64] | None = None,
    capacity: NDArray[np.int64] | None = None,
    **columns: Any,
) -> Schedule:
    """The schedule of transfers, in given rounds or in rounds that keep the transfers' order.

    Args:
        topology: the network.
        links: link directions of the hops, concatenated.
        first: [H+1] index of each hop's first link.
        hop: [T] hop of each transfer; it has a link.
        piece: [T] piece that it moves.
        op: [T] `REDUCE` or `COPY`.
        root: [P] rank of each piece's root.
        rounds: [T] round of each transfer; by default the earliest rounds that keep their order.
        adds: [T] as for `rounds_in_order`.
        unit: [T] as for `rounds_in_order`.
        capacity: [L] as for `rounds_in_order`; by default one transfer per link and round.
        columns: further fields of `Schedule`: its collective, shares, demand and blocks.
    """
    nodes, offsets = topology.nodes_along(*take_rows(links, first, hop))
    source, target = nodes[offsets[:-1]], nodes[offsets[1:] - 1]
    in_rounds = rounds
    if in_rounds is None:
        # A cell is a server's memory of a piece.
        cells = topology.rank.astype(np.int64) * len(root)
        in_rounds = rounds_in_order(
            links,
            first,
            hop,
            cells[source] + piece,
            cells[target] + piece,
            topology.num_servers * len(root),
            np.ones(len(topology.source), np.int64) if capacity is None else capacity,
            adds,
            unit,
        )
    return Schedule(
        topology=topology,
        root=topology.servers[root],
        round=in_rounds,
        piece=piece,
        source=source,
        target=target,
        op=op,
        route_nodes=nodes,
        route_offsets=offsets,
        **columns,
    )


def earliest_rounds(
    schedule: Schedule, first: int = 0, adds: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """[T − first] rounds for the transfers from `first` on that keep their order on every link.

    Rounds are as early as possible, with one transfer per link direction and round.

    Args:
        schedule: its transfers, in the order to keep; its rounds are ignored.
        first: transfers before this index are taken to have ended.
        adds: [T − first] as for `rounds_in_order`.
    """
    topology, pieces = schedule.topology, schedule.pieces
    places = np.arange(schedule.num_transfers + 1)
    reads, writes = (
        end[first:].astype(np.int64) * pieces + schedule.piece[first:]
        for end in (schedule.source, schedule.target)
    )
    return rounds_in_order(
        schedule.route_links[0],
        schedule.route_offsets - places,
        places[first:-1],
        reads,
        writes,
        topology.num_nodes * pieces,
        np.ones(len(topology.source), np.int64),
        adds,
    )


@kernel
def rounds_in_order(
    links: NDArray[np.int64],
    first: NDArray[np.int64],
    hop: NDArray[np.int64],
    cell_from: NDArray[np.int64],
    cell_to: NDArray[np.int64],
    cells: int,
    capacity: NDArray[np.int64],
    adds: NDArray[np.bool_] | None = None,
    unit: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """[T] the earliest round of each transfer that keeps the order of transfers on its links.

    A transfer comes after the writes to the data that it reads, and no earlier than the reads of
    the data that it writes. With one transfer per link and round, the event model gives each
    transfer the full rate of its route and serves a link's transfers in the order of the schedule.
    The times are therefore kept.

    Args:
        links: link directions of the hops.
        first: [H+1] index of each hop's first link.
        hop: [T] hop of each transfer, in the order in which they start.
        cell_from: [T] server and piece that it reads, as one number.
        cell_to: [T] server and piece that it writes, likewise.
        cells: servers times pieces.
        capacity: [L] most transfers per round of each link direction.
        adds: [T] whether it must come after earlier writes to the cell that it writes; none, if not
            given.
        unit: [T] ascending numbers, equal for transfers that must share a round, such as two that
            exchange sums; different for all, if not given.
    """
    ready, read = np.zeros(cells, np.int64), np.zeros(cells, np.int64)
    # [L] the first round with room, and the number of its transfers so far.
    free, load = np.zeros(len(capacity), np.int64), np.zeros(len(capacity), np.int64)
    rounds = np.empty(len(hop), np.int64)
    # Transfers begin to t are those of t's unit so far; `at` is the earliest round for all of them.
    at = begin = 0
    for t in range(len(hop)):
        if unit is None or not t or unit[t] != unit[t - 1]:
            at, begin = 0, t
        at = max(at, ready[cell_from[t]], read[cell_to[t]])
        if adds is not None and adds[t]:
            at = max(at, ready[cell_to[t]])
        for i in range(first[hop[t]], first[hop[t] + 1]):
            at = max(at, free[links[i]])
        if unit is not None and t + 1 < len(hop) and unit[t + 1] == unit[t]:
            continue
        for x in range(begin, t + 1):
            for i in range(first[hop[x]], first[hop[x] + 1]):
                link = links[i]
                load[link] = load[link] + 1 if free[link] == at else 1
                full = load[link] >= capacity[link]
                free[link], load[link] = at + full, 0 if full else load[link]
            rounds[x] = at
            read[cell_from[x]] = max(read[cell_from[x]], at)
            ready[cell_to[x]] = max(ready[cell_to[x]], at + 1)  # sums come from several
    return rounds
