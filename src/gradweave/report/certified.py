"""Bounds with certificates as shown in answers: recounted, and compared with the schedule."""

import dataclasses
from fractions import Fraction
from typing import Any

from gradweave.bounds.certificates import MAX_NODES, Certified, certificates_in
from gradweave.bounds.classes import optimal_in
from gradweave.bounds.demands.demand_bound import demand_bound
from gradweave.bounds.explanations import limiting_links
from gradweave.bounds.of_schedule import certificates_of
from gradweave.common.wording import counted, listed
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.seconds import seconds
from gradweave.topology.units import ROUNDING, format_seconds

MAX_TRANSFERS = 200_000
"""Transfers up to which a file's certificates are checked on display, which takes some seconds."""


@dataclasses.dataclass(frozen=True)
class CheckedBound:
    """A bound on a schedule's rounds or seconds whose certificate was recounted, or refused."""

    unit: str
    least: Fraction
    taken: float
    """The schedule's rounds, or its seconds in the event model."""
    reason: str
    """Why no schedule takes less; or why the certificate is refused or does not apply."""
    holds: bool
    source: str
    """``file`` or ``computed``."""
    links: tuple[int, ...] = ()
    """Link directions that limit the schedule; empty if messages do."""
    kind: str = ""
    """Kind of the certificate; two stages of different kinds have both: ``cut+depth``."""
    along_trees: bool = False
    """Whether it holds only for schedules along given trees."""
    of_class: str = ""
    """The schedules that the bound holds for, as a phrase; empty if it holds for all."""

    @property
    def met(self) -> bool:
        """Whether the schedule meets the bound, up to rounding."""
        return self.holds and self.taken <= float(self.least) * (1 + ROUNDING)

    @property
    def optimal(self) -> bool:
        """Whether the schedule meets a bound that does not depend on given trees."""
        return self.met and not self.along_trees

    def as_object(self) -> dict[str, Any]:
        """The bound for JSON."""
        return {
            "unit": self.unit,
            "least": str(self.least),
            "taken": self.taken,
            "holds": self.holds,
            "optimal": self.optimal,
            "holds_for": self.of_class.removeprefix(" for ") or "every schedule",
            "reason": self.reason,
            "source": self.source,
        }

    def __str__(self) -> str:
        if not self.holds:
            return f"certificate of the file refused: {self.reason}"
        gap = self.taken / float(self.least) - 1 if self.least else 0.0
        near = f"{gap:.1%} above the lower bound"
        if self.met:
            near = optimal_in(self.unit, self.of_class)
        taken = (
            counted(int(self.taken), "round")
            if self.unit == "rounds"
            else f"{format_seconds(self.taken)} in the event model"
        )
        return f"{taken}, {near}{self.of_class}: {self.reason}"


def checked_bounds(schedule: Schedule) -> list[CheckedBound]:
    """The bounds that a file's certificates prove; for a demand without any, a bound computed now.

    Args:
        schedule: a valid schedule, as read from the file.

    Returns:
        Empty for schedules of more than `MAX_TRANSFERS` transfers, whose certificates
        ``gradweave-check`` can check.
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
        taken = seconds(schedule, size, "events", ready_at_s=ready or None)  # as it was planned for
    links = tuple(limiting_links(one.certificate, schedule.topology))
    holds = taken >= float(one.least) * (1 - ROUNDING)
    reason = one.reason if holds else "it proves more than the schedule takes"
    steps, claim = one.certificate["proof"], one.certificate["claim"]
    kind, along = "+".join(dict.fromkeys(step["kind"] for step in steps)), "trees" in claim
    return CheckedBound(
        *(one.unit, one.least, taken, reason, holds, source, links, kind, along, one.of_class)
    )
