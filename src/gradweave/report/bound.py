"""Lower bounds for a network or a schedule, with their conditions and reasons."""

import dataclasses
import functools
from collections.abc import Sequence

from gradweave.bounds import (
    Certified,
    certify_each_class,
    certify_rounds_of_each_class,
    demand_bound,
    free_trees,
    with_certificates,
)
from gradweave.bounds.certificates import MOST_NODES
from gradweave.bounds.classes import holds_for
from gradweave.bounds.of_schedule import made_or_warned
from gradweave.bounds.seconds_bound import SecondsBound, seconds_bound
from gradweave.common.wording import counted
from gradweave.errors import NoScheduleError, OptionError
from gradweave.report.certified import CheckedBound, checked_bounds
from gradweave.report.rounds_bound import bound_lines, rounds_bound
from gradweave.schedulers.packing.joint import Joint
from gradweave.schedules.demand import Demand
from gradweave.schedules.given import ScheduleLike, schedule_or_network
from gradweave.schedules.jobs import Job, demand_of
from gradweave.schedules.planned_for import planned_for
from gradweave.schedules.schedule import Collective
from gradweave.topology.spec import TopologyLike
from gradweave.topology.topology import Topology
from gradweave.topology.units import ROUNDING, as_size, format_seconds
from gradweave.verifier.verify import check_valid


@dataclasses.dataclass(frozen=True)
class Uncertified:
    """A bound that is larger than what a certificate proves."""

    unit: str
    least: float
    reason: str
    forbids: frozenset[str]
    """Liberties that a schedule must not take for the bound to hold."""

    @property
    def holds_for(self) -> str:
        """The schedules that the bound holds for."""
        return holds_for(self.forbids)


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Lower bounds; printed, one per line with the schedules that it holds for and its reason."""

    found: tuple[Certified | Uncertified | CheckedBound, ...]
    """Of a network, per unit the bound for every schedule first, then larger ones for fewer."""
    lines: tuple[str, ...]

    @property
    def rounds(self) -> int | None:
        """The first bound on rounds, if there is one."""
        least = self._first("rounds")
        return None if least is None else int(least)

    @property
    def seconds(self) -> float | None:
        """The first bound on seconds, if there is one."""
        return self._first("seconds")

    def _first(self, unit: str) -> float | None:
        return next((float(one.least) for one in self.found if one.unit == unit), None)

    def __str__(self) -> str:
        return "\n".join(self.lines)


def bound(
    what: TopologyLike | ScheduleLike,
    *,
    collective: Collective = "all_reduce",
    gradient_bytes: float | str | None = None,
    jobs: Sequence[Job] | Job | Demand | None = None,
    overlap: bool = False,
) -> Bounds:
    """Lower bounds for a network, or for the collective of a schedule, as in ``gradweave bound``.

    Args:
        what: a network, its specification or file; or a schedule, a solution, or a schedule file.
        collective: a stage, or both, among all servers of a network.
        gradient_bytes: size of the whole gradient, such as ``"100MB"``, to bound seconds as well;
            for a schedule, by default the size that it was planned for.
        jobs: several collectives of a network, instead of one.
        overlap: whether both stages of an all-reduce may run at once.

    Raises:
        InvalidScheduleError: the verifier rejects the schedule.
        OptionError: the network is too large.

    >>> import gradweave as gw
    >>> print(gw.bound("ring:4"))
    at least ... rounds for every schedule: ...
    """
    size = None if gradient_bytes is None else as_size(gradient_bytes)
    what = schedule_or_network(what)
    if isinstance(what, Topology):
        if jobs is not None:
            given = [jobs] if isinstance(jobs, Job) else jobs
            demand = given if isinstance(given, Demand) else demand_of(what, given)
            found = bounds_of_demand(what, demand)
        else:
            found = bounds_of_network(what, collective, overlap, size)
        if not found:
            raise OptionError(
                f"bound: {what.num_nodes} nodes; bounds are certified on at most {MOST_NODES}"
            )
        return Bounds(tuple(found), tuple(one_line(one) for one in found))
    check_valid(what)
    schedule = with_certificates(what, size or planned_for(what).gradient_bytes)
    checked = checked_bounds(schedule)
    lines = bound_lines(schedule, rounds_bound(schedule, checked), checked)
    return Bounds(tuple(checked), tuple(lines) or ("no bound on it is known",))


def one_line(one: Certified | Uncertified) -> str:
    """The bound, the schedules that it holds for, and its reason."""
    in_rounds = one.unit == "rounds"
    least = counted(int(one.least), "round") if in_rounds else format_seconds(float(one.least))
    least = f"at least {least} for {one.holds_for}"
    if isinstance(one, Uncertified):
        return f"{least}, not certified: {one.reason}"
    return f"{least}: {one.reason.rpartition(': ')[0]}"


def bounds_of_demand(topology: Topology, demand: Demand) -> list[Certified | Uncertified]:
    """By the duals of the linear program of trees and paths, where it can be solved."""
    bound = demand_bound(topology, demand)
    try:
        bound = max(bound, Joint().plan(topology, demand).bound, key=lambda one: one.seconds)
    except NoScheduleError:
        pass
    return _of_seconds(bound)


def bounds_of_network(
    topology: Topology, collective: Collective, overlap: bool, gradient_bytes: float | None
) -> list[Certified | Uncertified]:
    """Bounds of one collective among all servers: the first of each unit for every schedule."""
    if topology.num_nodes > MOST_NODES:
        return []
    of_rounds = functools.partial(certify_rounds_of_each_class, overlap=overlap)
    proved = made_or_warned(functools.partial(of_rounds, topology, collective))
    bound = free_trees(topology, collective, overlap=overlap)
    known = bound.rounds, bound.reason(topology.id_name), bound.holds_unless
    found: list[Certified | Uncertified] = [*proved, *_beyond(proved, *known, unit="rounds")]
    if gradient_bytes is not None:
        found += _of_seconds(seconds_bound(topology, collective, gradient_bytes))
    return found


def _of_seconds(bound: SecondsBound) -> list[Certified | Uncertified]:
    """The certificates of each class, and the bound itself if it exceeds them."""
    proved = made_or_warned(functools.partial(certify_each_class, bound))
    reason = bound.reason(bound.topology.id_name)
    return [*proved, *_beyond(proved, bound.seconds, reason, bound.holds_unless)]


def _beyond(
    proved: Sequence[Certified],
    least: float,
    reason: str,
    forbids: frozenset[str],
    unit: str = "seconds",
) -> list[Uncertified]:
    """A larger bound than the proved bound, if there is one."""
    more = all(least > float(one.least) * (1 + ROUNDING) for one in proved)
    return [Uncertified(unit, least, reason, forbids)] if more else []
