"""Lower bounds for a given schedule, from its transfers rather than its metadata."""

import functools
import warnings
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from gradweave.bounds.bound import Bound
from gradweave.bounds.certificates import (
    MAX_NODES,
    NO_TREES,
    Certified,
    certify,
    certify_rounds,
)
from gradweave.bounds.demands.demand_bound import demand_bound
from gradweave.bounds.rounds.free_trees import free_trees
from gradweave.bounds.seconds_bound import SecondsBound, seconds_bound
from gradweave.errors import CertificateWarning, InvalidCertificateError
from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.ready import planned_ready_times
from gradweave.schedules.schedule import REDUCE, Collective, Schedule, inside_rows
from gradweave.topology.topology import Topology
from gradweave.topology.units import as_size
from gradweave_check import ADDED, PASSED


def of_schedule(schedule: ScheduleLike) -> Bound | None:
    """Minimum number of rounds of any schedule that takes the same liberties as the given one.

    Liberties are overlapping stages, routes through servers, switches that aggregate, and several
    pieces per server. They are read from the transfers, not from the file's metadata.

    Args:
        schedule: a valid schedule.

    Returns:
        The bound, or None if none is known: the schedule has a demand (`demand_bound` bounds its
        seconds), some server roots no piece, pieces differ in size, roots pass on unfinished sums,
        as in recursive doubling, or the network has more than `MAX_NODES` nodes.

    >>> import gradweave as gw
    >>> ring = gw.schedulers.Ring().schedule(gw.topology.bcube(n=4, k=1))
    >>> ring.rounds, of_schedule(ring).rounds
    (30, 16)
    """
    schedule = as_schedule(schedule)
    topology = schedule.topology
    known = schedule.demand is None and schedule.shares is None
    if topology.num_nodes > MAX_NODES or not known:
        return None
    rooted = _pieces_per_server(schedule)
    if not rooted or _exchanges_sums(schedule):
        return None
    return free_trees(
        topology,
        schedule.collective,
        overlap=_overlaps(schedule),
        aggregating_switches=_adds_at_switches(schedule),
        forwarding_servers=_passes_servers(schedule),
        pieces_per_server=rooted,
    )


def certificates_of(
    schedule: ScheduleLike,
    gradient_bytes: float | str | None = None,
    *,
    bound: SecondsBound | None = None,
) -> list[Certified]:
    """Certificates of bounds on a schedule's rounds and seconds, for its file.

    Args:
        schedule: a valid schedule; there are no certificates on more than `MAX_NODES` nodes.
        gradient_bytes: size of the whole gradient, to bound the seconds as well, with servers
            ready at the times that the schedule was planned for.
        bound: the bound on seconds, if known for this network and size; otherwise computed. For a
            demand, a bound on another network still gives its link lengths.

    Returns:
        The certificates found; a bound that only a search can prove has none. A certificate that
        cannot be recounted is left out, with a `CertificateWarning`.

    >>> import gradweave as gw
    >>> ring = gw.schedulers.Ring().schedule(gw.topology.ring(4))
    >>> [one.reason for one in certificates_of(ring)]
    ['3 pieces must leave server 0 at 2 per round, and come back in the all-gather: 4 rounds']
    """
    schedule = as_schedule(schedule)
    gradient_bytes = None if gradient_bytes is None else as_size(gradient_bytes)
    topology = schedule.topology
    if topology.num_nodes > MAX_NODES:
        return []
    in_rounds, kept = of_schedule(schedule), []
    if in_rounds is not None:
        kept = certified_rounds(
            topology, in_rounds, schedule.collective, _pieces_per_server(schedule)
        )
    bound = _of_seconds(schedule, gradient_bytes, bound)
    if bound is not None:
        make = functools.partial(certify, bound, liberties=liberties_of(schedule))
        kept += made_or_warned(make)
    return kept


def _of_seconds(
    schedule: Schedule, gradient_bytes: float | None, known: SecondsBound | None
) -> SecondsBound | None:
    """The bound on seconds to certify, computed unless a bound of the same problem is known."""
    topology, demand = schedule.topology, schedule.demand
    lengths = None
    if known is not None and (known.topology is not topology or known.demand is not demand):
        lengths = None if known.demand is None else known.lengths.length.astype(float)
        known = None
    if demand is not None:
        return known or demand_bound(topology, demand, lengths=lengths)
    rooted = np.bincount(topology.rank[schedule.root], schedule.share, topology.num_servers)
    holds = schedule.collective == "all_reduce" or bool(np.ptp(rooted) < 1e-12)
    if not gradient_bytes or not holds or _adds_at_switches(schedule):
        return None
    if known is not None and known.claim["bytes"] == str(Fraction(gradient_bytes)):
        return known
    return seconds_bound(
        topology,
        schedule.collective,
        gradient_bytes,
        trees=not _exchanges_sums(schedule),
        ready_at_s=planned_ready_times(schedule),
    )


def certified_rounds(
    topology: Topology, bound: Bound, collective: Collective, pieces_per_server: int
) -> list[Certified]:
    """The certificates of `certify_rounds`, if any; warns if they cannot be recounted.

    Args:
        topology: the network.
        bound: of `free_trees`, with the same arguments.
        collective: a stage, or both.
        pieces_per_server: pieces rooted at each server.
    """
    make = functools.partial(certify_rounds, pieces_per_server=pieces_per_server)
    return made_or_warned(functools.partial(make, topology, bound, collective))


def made_or_warned(make: Callable[[], list[Certified] | Certified | None]) -> list[Certified]:
    """Certificates, or none and a warning if recounting fails, so that no plan is lost.

    Args:
        make: a function that certifies bounds.
    """
    try:
        found = make()
    except InvalidCertificateError as error:
        warnings.warn(f"the bound has no certificate: {error}", CertificateWarning, stacklevel=3)
        return []
    if isinstance(found, list):
        return found
    return [] if found is None else [found]


def with_certificates(
    schedule: ScheduleLike,
    gradient_bytes: float | str | None = None,
    *,
    bound: SecondsBound | None = None,
) -> Schedule:
    """The same schedule with the certificates of `certificates_of` added.

    Args:
        schedule: a valid schedule.
        gradient_bytes: size of the whole gradient, to bound the seconds as well.
        bound: the bound on seconds, if known; see `certificates_of`.
    """
    schedule = as_schedule(schedule)
    gradient_bytes = None if gradient_bytes is None else as_size(gradient_bytes)
    kept = [dict(one) for one in schedule.certificates]
    for one in certificates_of(schedule, gradient_bytes, bound=bound):
        known = any(_says_the_same(one.certificate, other) for other in kept)
        kept += [] if known else [dict(one.certificate)]
    return schedule.replace(certificates=tuple(kept))


def _says_the_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two certificates are the same; older files do not state the class of schedules."""
    unless = one["claim"]["holds_unless"]
    claim = {"holds_unless": unless, **other.get("claim", {})}
    return {**other, "claim": claim} == one


def _pieces_per_server(schedule: Schedule) -> int:
    """The minimum number of pieces rooted at a server."""
    topology = schedule.topology
    return int(np.bincount(topology.rank[schedule.root], minlength=topology.num_servers).min())


def _exchanges_sums(schedule: Schedule) -> bool:
    """Whether roots pass on unfinished sums."""
    own = schedule.source == schedule.root[schedule.piece]
    return bool((own & (schedule.op == REDUCE)).any())


def _passes_servers(schedule: Schedule) -> bool:
    inside = schedule.route_nodes[inside_rows(schedule.route_offsets)]
    return bool(schedule.topology.is_server[inside].any())


def liberties_of(schedule: Schedule) -> frozenset[str]:
    """Liberties of `gradweave.bounds.classes` that a schedule's transfers take.

    The result leaves out liberties that concern the number of pieces or the stages.

    Args:
        schedule: a valid schedule.
    """
    taken = {NO_TREES: _exchanges_sums, PASSED: _passes_servers, ADDED: _adds_at_switches}
    return frozenset(name for name, does in taken.items() if does(schedule))


def _overlaps(schedule: Schedule) -> bool:
    return sum(schedule.stages.values()) != schedule.rounds


def _adds_at_switches(schedule: Schedule) -> bool:
    ends = np.concatenate([schedule.source, schedule.target])
    return not bool(schedule.topology.is_server[ends].all())
