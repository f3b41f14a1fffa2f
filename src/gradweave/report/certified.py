"""Bounds with certificates as answers show them: recounted, beside what a schedule takes."""

import dataclasses
from fractions import Fraction
from typing import Any

from gradweave.bounds.certificates import MAX_NODES, Certified, certificates_in
from gradweave.bounds.demands import demand_bound
from gradweave.bounds.explanations import limiting_links
from gradweave.bounds.of_schedule import certificates_of
from gradweave.schedule.schedule import Schedule
from gradweave.simulate.seconds import seconds
from gradweave.topology.units import ROUNDING, format_seconds
from gradweave.wording import counted, listed

MAX_TRANSFERS = 200_000
"""Transfers up to which a file's certificates are checked along with it: some seconds."""


@dataclasses.dataclass(frozen=True)
class CheckedBound:
    """A bound on a schedule's rounds or seconds whose certificate was recounted, or refused."""

    unit: str
    least: Fraction
    taken: float
    """By the schedule, rounds or seconds of the event model."""
    reason: str
    """Why none takes less; or why it is refused, or says nothing of the schedule."""
    holds: bool
    source: str
    """``file`` or ``computed``."""
    links: tuple[int, ...] = ()
    """Link directions that limit; none where messages do."""
    kind: str = ""
    """Of the certificate, of two stages with different kinds both: ``cut+depth``."""
    along_trees: bool = False
    """Whether it is of schedules along given trees alone."""

    @property
    def met(self) -> bool:
        """Whether the schedule takes no more than the bound, but for rounding."""
        return self.holds and self.taken <= float(self.least) * (1 + ROUNDING)

    @property
    def optimal(self) -> bool:
        """The same of a bound on all schedules."""
        return self.met and not self.along_trees

    def as_object(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "unit": self.unit,
            "least": str(self.least),
            "taken": self.taken,
            "holds": self.holds,
            "optimal": self.optimal,
            "reason": self.reason,
            "source": self.source,
        }

    def __str__(self) -> str:
        if not self.holds:
            return f"certificate of the file refused: {self.reason}"
        gap = self.taken / float(self.least) - 1 if self.least else 0.0
        near = f"optimal in {self.unit}" if self.met else f"{gap:.1%} above the least"
        near += " along such trees" * self.along_trees
        taken = (
            counted(int(self.taken), "round")
            if self.unit == "rounds"
            else f"{format_seconds(self.taken)} in the event model"
        )
        return f"{taken}, {near}: {self.reason}"


def checked_bounds(schedule: Schedule) -> list[CheckedBound]:
    """What the certificates of a schedule's file prove of it; of a demand, what one found now does.

    Args:
        schedule: a valid schedule, as it was read.

    Returns:
        Nothing for schedules of more than `MAX_TRANSFERS` transfers, whose certificates are for
        ``gradweave-check``.
    """
    if schedule.num_transfers > MAX_TRANSFERS or schedule.topology.num_nodes > MAX_NODES:
        return []
    found = []
    for one, limits in certificates_in(schedule):
        if isinstance(one, str):
            found.append(CheckedBound("", Fraction(0), 0.0, one, False, "file"))
        elif limits:
            why = f"it does not hold for this schedule: {listed(limits)}"
            found.append(CheckedBound(one.unit, one.least, 0.0, why, False, "file"))
        else:
            found.append(_beside(schedule, one, "file"))
    if schedule.demand is not None and not any(one.holds for one in found):
        bound = demand_bound(schedule.topology, schedule.demand)
        found += [
            _beside(schedule, one, "computed") for one in certificates_of(schedule, bound=bound)
        ]
    return found


def _beside(schedule: Schedule, one: Certified, source: str) -> CheckedBound:
    if one.unit == "rounds":
        taken = float(schedule.rounds)
    else:
        claim = one.certificate["claim"]
        size = None if schedule.demand is not None else float(Fraction(claim["bytes"]))
        ready = [float(Fraction(time)) for time in claim.get("ready_at_s", [])]
        taken = seconds(schedule, size, "events", ready_at_s=ready or None)
    links = tuple(limiting_links(one.certificate, schedule.topology))
    holds = taken >= float(one.least) * (1 - ROUNDING)
    reason = one.reason if holds else "it proves more than the schedule takes"
    steps, claim = one.certificate["proof"], one.certificate["claim"]
    kind, along = "+".join(dict.fromkeys(step["kind"] for step in steps)), "trees" in claim
    return CheckedBound(one.unit, one.least, taken, reason, holds, source, links, kind, along)
