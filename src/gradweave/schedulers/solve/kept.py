"""What two schedules have in common, one of them from before a fault."""

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.schedule.schedule import Schedule
from gradweave.topology.topology import Topology


class Kept(NamedTuple):
    """What a later schedule still does of an earlier one, in whatever round.

    A transfer is the same if it is of a piece with the same root, by the same operation, along the
    same route. Nodes are the same as `now_ids` has it.
    """

    transfers: int
    """Of the earlier one's, those that the later one has, too."""
    of: int
    """How many the earlier one had."""
    bytes_share: float
    """Part of the earlier one's bytes that go as they did. Unlike the count, it does not change
    where pieces are cut in two."""


def kept_of(old: Schedule, new: Schedule) -> Kept:
    """How much of an earlier schedule a later one has kept.

    Args:
        old: the earlier one.
        new: the later one; its network may lack nodes and links of the earlier one's.
    """
    same = now_ids(new.topology, old.topology)
    before, after = _moves(old, same), _moves(new, np.arange(new.topology.num_nodes))
    common = [(*moved, *after[key]) for key, moved in before.items() if key in after]
    # Shares are weights over their sum: in integers, so that all is exactly all.
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
    """How many transfers there are by root, operation and route, and the sum of their weights.

    With the nodes' other ids; those of nodes that are gone lack.
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
    """Refuses to start from a schedule of another network.

    Args:
        topology: the network now.
        old: the network of the earlier schedule, which may have more nodes and links; bandwidths
            and capacities may differ.

    Raises:
        OptionError: naming a node or link that it did not have.
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
            f"{topology.name!r:.60} before a fault: the same network, with what it lost since"
        )


def now_ids(topology: Topology, old: Topology) -> NDArray[np.int64]:
    """[V of the old network] id of each node in the new one; −1 for those that are gone.

    Nodes are the same by label, where both have labels; by the old id, where the new one's labels
    are numbers; and by id, where neither has labels.
    """
    names = old.labels or tuple(map(str, range(old.num_nodes)))
    labels = topology.labels or tuple(map(str, range(topology.num_nodes)))
    place = {label: node for node, label in enumerate(labels)}
    return np.array([place.get(name, -1) for name in names], np.int64)
