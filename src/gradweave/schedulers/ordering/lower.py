"""Lowers ordered transfers to a schedule: rounds as early as links and data allow, and columns."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel
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
    adds: NDArray[np.bool_] | None = None,
    **columns: Any,
) -> Schedule:
    """The schedule of transfers in the order in which they start, in rounds that keep their order.

    Args:
        topology: the network.
        links: link directions of the hops, concatenated.
        first: [H+1] index of each hop's first link.
        hop: [T] hop of each transfer; it has a link.
        piece: [T] piece that it moves.
        op: [T] `REDUCE` or `COPY`.
        root: [P] rank of each piece's root.
        adds: [T] as for `rounds_in_order`.
        columns: further fields of `Schedule`: its collective, shares, demand and blocks.
    """
    nodes, offsets = topology.nodes_along(*take_rows(links, first, hop))
    source, target = nodes[offsets[:-1]], nodes[offsets[1:] - 1]
    cells = topology.rank.astype(np.int64) * len(root)
    rounds = rounds_in_order(
        links,
        first,
        hop,
        cells[source] + piece,
        cells[target] + piece,
        topology.num_servers * len(root),
        len(topology.source),
        adds,
    )
    return Schedule(
        topology=topology,
        root=topology.servers[root],
        round=rounds,
        piece=piece,
        source=source,
        target=target,
        op=op,
        route_nodes=nodes,
        route_offsets=offsets,
        **columns,
    )


@kernel
def rounds_in_order(
    links: NDArray[np.int64],
    first: NDArray[np.int64],
    hop: NDArray[np.int64],
    cell_from: NDArray[np.int64],
    cell_to: NDArray[np.int64],
    cells: int,
    count: int,
    adds: NDArray[np.bool_] | None = None,
) -> NDArray[np.int64]:
    """[T] the earliest round of each transfer that keeps the order of transfers on its links.

    There is one transfer per link and round, so that the event model gives each transfer the full
    rate of its route and serves a link's transfers in the order of the schedule. The times are
    therefore kept.

    Args:
        links: link directions of the hops.
        first: [H+1] index of each hop's first link.
        hop: [T] hop of each transfer, in the order in which they start.
        cell_from: [T] server and piece that it reads, as one number.
        cell_to: [T] server and piece that it writes, likewise.
        cells: servers times pieces.
        count: L, number of link directions.
        adds: [T] whether it adds to data copied to the cell that it writes, and must wait for that;
            none, if not given.
    """
    ready, free = np.zeros(cells, np.int64), np.zeros(count, np.int64)
    rounds = np.empty(len(hop), np.int64)
    for t in range(len(hop)):
        at = ready[cell_from[t]]
        if adds is not None and adds[t]:
            at = max(at, ready[cell_to[t]])
        for i in range(first[hop[t]], first[hop[t] + 1]):
            at = max(at, free[links[i]])
        for i in range(first[hop[t]], first[hop[t] + 1]):
            free[links[i]] = at + 1
        rounds[t] = at
        ready[cell_to[t]] = max(ready[cell_to[t]], at + 1)  # sums come from several
    return rounds
