"""The lower bound on a given schedule's rounds, from what it does rather than what it says."""

import numpy as np

from gradweave.bounds.bound import Bound
from gradweave.bounds.certificates import (
    MAX_NODES,
    Certified,
    certify_demand,
    certify_rounds,
    certify_seconds,
)
from gradweave.bounds.demands import DemandBound, demand_bound
from gradweave.bounds.free_trees import free_trees
from gradweave.schedule.schedule import REDUCE, Schedule, inside_rows


def of_schedule(schedule: Schedule, max_nodes: int = MAX_NODES) -> Bound | None:
    """Fewest rounds of any schedule that takes the liberties that this one takes.

    Those are overlapping stages, routes through servers, switches that aggregate, and several
    pieces per server; they are read off the transfers, not off what a file says of itself.

    Args:
        schedule: a valid schedule.
        max_nodes: of larger networks no bound is looked for.

    Returns:
        The bound; None where none is known: the schedule has a demand (of which `demand_bound`
        bounds the seconds), some server roots no piece, pieces differ in size, roots pass on
        unfinished sums, as in recursive doubling, or the network is larger.

    >>> import gradweave as gw
    >>> ring = gw.schedulers.Ring().schedule(gw.topology.bcube(n=4, k=1))
    >>> ring.rounds, of_schedule(ring).rounds
    (30, 16)
    """
    topology = schedule.topology
    known = schedule.demand is None and schedule.shares is None
    if topology.num_nodes > max_nodes or not known:
        return None
    rooted = _pieces_per_server(schedule)
    if not rooted or _exchanges_sums(schedule):
        return None
    inside = schedule.route_nodes[inside_rows(schedule.route_offsets)]
    return free_trees(
        topology,
        schedule.collective,
        overlap=_overlaps(schedule),
        aggregating_switches=_adds_at_switches(schedule),
        forwarding_servers=bool(topology.is_server[inside].any()),
        pieces_per_server=rooted,
    )


def certificates_of(
    schedule: Schedule,
    gradient_bytes: float | None = None,
    *,
    bound: DemandBound | None = None,
) -> list[Certified]:
    """Certificates of bounds on a schedule's rounds and seconds, for its file.

    Args:
        schedule: a valid schedule, on at most `MAX_NODES` nodes; of more there are none.
        gradient_bytes: size of the whole gradient, if its seconds are to be bounded.
        bound: of the schedule's demand; found by `demand_bound` if not given.

    Returns:
        Those that there are: bounds that a search alone knows have none.

    >>> import gradweave as gw
    >>> ring = gw.schedulers.Ring().schedule(gw.topology.ring(4))
    >>> [str(one) for one in certificates_of(ring)]
    ['3 pieces must leave server 0 at 2 a round, and come back in the all-gather: 4 rounds']
    """
    topology = schedule.topology
    if topology.num_nodes > MAX_NODES:
        return []
    if schedule.demand is not None:
        found = bound or demand_bound(topology, schedule.demand)
        return [certify_demand(topology, schedule.demand, found)]
    in_rounds = of_schedule(schedule)
    certified = None
    if in_rounds is not None:
        certified = certify_rounds(
            topology,
            in_rounds,
            schedule.collective,
            pieces_per_server=_pieces_per_server(schedule),
        )
    kept = [certified] if certified is not None else []
    rooted = np.bincount(topology.rank[schedule.root], schedule.share, topology.num_servers)
    equal = bool(np.ptp(rooted) < 1e-12)
    holds = schedule.collective == "all_reduce" or equal
    if gradient_bytes and holds and not _adds_at_switches(schedule):
        trees = not _exchanges_sums(schedule)
        kept.append(certify_seconds(topology, gradient_bytes, schedule.collective, trees=trees))
    return kept


def with_certificates(
    schedule: Schedule,
    gradient_bytes: float | None = None,
    *,
    bound: DemandBound | None = None,
) -> Schedule:
    """The same schedule with the certificates of `certificates_of` beside those that it has.

    Args:
        schedule: a valid schedule.
        gradient_bytes: size of the whole gradient, if its seconds are to be bounded.
        bound: of the schedule's demand; found if not given.
    """
    kept = [dict(one) for one in schedule.certificates]
    for one in certificates_of(schedule, gradient_bytes, bound=bound):
        kept += [dict(one.certificate)] if one.certificate not in kept else []
    return schedule.replace(certificates=tuple(kept))


def _pieces_per_server(schedule: Schedule) -> int:
    """The least number of pieces that a server roots."""
    topology = schedule.topology
    return int(np.bincount(topology.rank[schedule.root], minlength=topology.num_servers).min())


def _exchanges_sums(schedule: Schedule) -> bool:
    """Whether roots pass on unfinished sums."""
    own = schedule.source == schedule.root[schedule.piece]
    return bool((own & (schedule.op == REDUCE)).any())


def _overlaps(schedule: Schedule) -> bool:
    return sum(schedule.stages.values()) != schedule.rounds


def _adds_at_switches(schedule: Schedule) -> bool:
    ends = np.concatenate([schedule.source, schedule.target])
    return not bool(schedule.topology.is_server[ends].all())
