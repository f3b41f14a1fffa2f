"""How much a schedule made after a fault has in common with the schedule from before it."""

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.schedules.schedule import Schedule
from gradweave.topology.topology import Topology


class Kept(NamedTuple):
    """The transfers that a later schedule shares with an earlier one, in whatever rounds.

    Two transfers are the same if their pieces have the same root, and they apply the same operation
    along the same route. Nodes are matched by `now_ids`.
    """

    transfers: int
    """How many of the earlier schedule's transfers the later one still has."""
    of: int
    """How many transfers the earlier schedule had."""
    bytes_share: float
    """Share of the earlier schedule's bytes that still move as before. Unlike the count, it does
    not change if pieces are cut in two."""


def kept_of(old: Schedule, new: Schedule) -> Kept:
    """How much of an earlier schedule a later schedule has kept.

    Args:
        old: the earlier schedule.
        new: the later schedule, whose network may lack some of the earlier network's nodes and
            links.
    """
    same = now_ids(new.topology, old.topology)
    before, after = _moves(old, same), _moves(new, np.arange(new.topology.num_nodes))
    common = [(*moved, *after[key]) for key, moved in before.items() if key in after]
    # A share is a weight over the sum of weights. Integers keep a share of 1 exact.
    weights, others = int(old.weights.sum()), int(new.weights.sum())
    as_before = sum(min(one * others, other * weights) for _, one, _, other in common)
    whole = int(old.weights[old.piece].sum()) * others
    return Kept(
        sum(min(count, other) for count, _, other, _ in common),
        old.num_transfers,
        as_before / whole if whole else 1.0,
    )


def _moves(
    schedule: Schedule, now: NDArray[np.int64]
) -> dict[tuple[int, int, bytes], tuple[int, int]]:
    """The number of transfers and the sum of their weights, by root, operation and route.

    Nodes are given by their ids in the other network; transfers at nodes that are gone are left
    out.
    """
    nodes, offsets = now[schedule.route_nodes], schedule.route_offsets.tolist()
    root, op = now[schedule.root][schedule.piece].tolist(), schedule.op.tolist()
    routes = (nodes[start:end] for start, end in itertools.pairwise(offsets))
    weights = schedule.weights[schedule.piece].tolist()
    moves: dict[tuple[int, int, bytes], tuple[int, int]] = {}
    for one, how, route, weight in zip(root, op, routes, weights, strict=True):
        if one >= 0 and route.min() >= 0:
            key = one, how, route.tobytes()
            count, whole = moves.get(key, (0, 0))
            moves[key] = count + 1, whole + weight
    return moves


def check_start(topology: Topology, old: Topology) -> None:
    """Raises an error if the earlier schedule is of another network.

    Args:
        topology: the network now.
        old: the network of the earlier schedule. It may have more nodes and links, and other
            bandwidths and capacities.

    Raises:
        OptionError: with the node or link that the earlier network lacks.
    """
    now = now_ids(topology, old)
    before = np.full(topology.num_nodes, -1, np.int64)
    before[now[now >= 0]] = np.flatnonzero(now >= 0)
    known = before >= 0
    known[known] = old.is_server[before[known]] == topology.is_server[known]
    differs = "" if known.all() else f"no {topology.node_name(int(np.argmin(known)))}"
    if not differs:
        links = old.find_links(before[topology.source], before[topology.target])
        if (links < 0).any():
            differs = f"no link {topology.link_name(int(np.argmax(links < 0)))}"
    if differs:
        raise OptionError(
            f"start_from: is a schedule of {old.name!r:.60}, which has {differs}; expected one of "
            f"{topology.name!r:.60} from before a fault: the same network or one with more links"
        )


def now_ids(topology: Topology, old: Topology) -> NDArray[np.int64]:
    """[V of the old network] id of each node in the new network; −1 for nodes that are gone.

    Nodes are matched by label if both networks have labels, by the old id if the new network's
    labels are numbers, and by id if neither network has labels.
    """
    names = old.labels or tuple(map(str, range(old.num_nodes)))
    labels = topology.labels or tuple(map(str, range(topology.num_nodes)))
    place = {label: node for node, label in enumerate(labels)}
    return np.array([place.get(name, -1) for name in names], np.int64)
