"""The lower bound on a given schedule's rounds, from what it does rather than what it says."""

import numpy as np

from gradweave.bounds.bound import Bound
from gradweave.bounds.free_trees import free_trees
from gradweave.schedule.schedule import REDUCE, Schedule, inside_rows

MAX_NODES = 512
"""Nodes up to which a bound is found along with a schedule that is shown: a second or two."""


def of_schedule(schedule: Schedule, max_nodes: int = MAX_NODES) -> Bound | None:
    """Fewest rounds of any schedule that takes the liberties that this one takes.

    Those are overlapping stages, routes through servers, switches that aggregate, and several
    pieces per server; they are read off the transfers, not off what a file says of itself.

    Args:
        schedule: a valid schedule.
        max_nodes: of larger networks no bound is looked for.

    Returns:
        The bound; None where none is known: the schedule has a demand, some server roots no piece,
        pieces differ in size, roots pass on unfinished sums, as in recursive doubling, or the
        network is larger.

    >>> import gradweave as gw
    >>> ring = gw.schedulers.Ring().schedule(gw.topology.bcube(n=4, k=1))
    >>> ring.rounds, of_schedule(ring).rounds
    (30, 16)
    """
    topology = schedule.topology
    known = schedule.demand is None and schedule.shares is None
    if topology.num_nodes > max_nodes or not known:
        return None
    rooted = np.bincount(topology.rank[schedule.root], minlength=topology.num_servers)
    from_root = schedule.source == schedule.root[schedule.piece]
    if not rooted.min() or (from_root & (schedule.op == REDUCE)).any():
        return None
    inside = schedule.route_nodes[inside_rows(schedule.route_offsets)]
    ends = np.concatenate([schedule.source, schedule.target])
    return free_trees(
        topology,
        schedule.collective,
        overlap=sum(schedule.stages.values()) != schedule.rounds,
        aggregating_switches=not bool(topology.is_server[ends].all()),
        forwarding_servers=bool(topology.is_server[inside].any()),
        pieces_per_server=int(rooted.min()),
    )
