"""A bound on a schedule's rounds as shown in answers: computed now, or stated by a file."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from gradweave.bounds.bound import Bound
from gradweave.bounds.classes import optimal_in
from gradweave.bounds.of_schedule import certificates_of, of_schedule
from gradweave.common.wording import counted
from gradweave.report.certified import CheckedBound, checked_bounds
from gradweave.schedules.planned_for import planned_for
from gradweave.schedules.schedule import Schedule, StatedBound

SEARCHED = "exact"
"""The kind of a bound that only a search has found."""


@dataclasses.dataclass(frozen=True)
class RoundsBound:
    """A lower bound on rounds, and its source."""

    rounds: int
    kind: str
    source: Literal["computed", "certificate", "search", "stated"]
    """``computed``: by this process. ``certificate``: proved by the certificate in the schedule's
    file, which was recounted. ``search``: found by a search in this process, without proof.
    ``stated``: by the file, and not checked."""
    proof: Bound | str | None
    """The bound with its certificate, if any; the reason, for a certificate in a file."""
    stated: StatedBound | None
    """The file's statement, if it differs from the bound."""
    certified: bool
    """Whether there is a certificate, in the file or made now."""
    holds_for: str
    """The schedules that the bound holds for, as in `Bound.holds_for`; files do not state them."""

    @property
    def doubt(self) -> str:
        """The caveat for a bound without a certificate."""
        if self.certified:
            return ""
        searched = ", by search" if self.kind == SEARCHED else ""
        stated = ", as stated by the file; not checked here" if self.source == "stated" else ""
        return f"{searched}, not certified{stated}" if searched or not stated else stated

    def as_object(self) -> dict[str, Any]:
        """The bound for JSON."""
        names = ("rounds", "kind", "source", "certified")
        holds_for = self.holds_for.removeprefix(" for ") or "every schedule"
        return {name: getattr(self, name) for name in names} | {"holds_for": holds_for}

    def met_by(self, schedule: Schedule) -> bool | None:
        """Whether the schedule is optimal in rounds, or None if only the file states a bound."""
        return None if self.source == "stated" else schedule.rounds == self.rounds


def rounds_bound(
    schedule: Schedule, checked: Sequence[CheckedBound] | None = None
) -> RoundsBound | None:
    """The bound on a schedule's rounds; a file's statement counts only if nothing can be computed.

    Args:
        schedule: a valid schedule.
        checked: result of `checked_bounds`; computed if not given.

    Returns:
        None if nothing is known. If pieces differ in size, rounds do not compare, and only the
        file's statement is used, if there is one.
    """
    stated, found, proved = schedule.bound, None, None
    if schedule.shares is None:
        if stated is not None and stated.computed and stated.kind != SEARCHED:
            kept = bool(schedule.certificates)
            return RoundsBound(
                stated.rounds, stated.kind, "computed", None, None, kept, stated.holds_for
            )
        found = of_schedule(schedule)
        proved = _by_certificate(checked_bounds(schedule) if checked is None else checked)
    known = max((one.rounds for one in (found, proved) if one is not None), default=0)
    if stated is not None and stated.computed and known < stated.rounds:
        return RoundsBound(
            stated.rounds, stated.kind, "search", None, None, False, stated.holds_for
        )
    if proved is not None and (found is None or proved.rounds > found.rounds):
        return proved
    if found is not None:
        other = stated if stated is not None and stated.rounds != found.rounds else None
        certified = proved is not None and proved.rounds == found.rounds
        certified = certified or any(
            one.least >= found.rounds for one in certificates_of(schedule) if one.unit == "rounds"
        )
        return RoundsBound(
            found.rounds, found.kind, "computed", found, other, certified, found.holds_for
        )
    if stated is None:
        return None
    return RoundsBound(stated.rounds, stated.kind, "stated", None, None, False, stated.holds_for)


def _by_certificate(checked: Sequence[CheckedBound]) -> RoundsBound | None:
    """The best bound that the file's certificates prove for any choice of trees."""
    proved = [one for one in checked if one.unit == "rounds" and one.holds and not one.along_trees]
    if not proved:
        return None
    best = max(proved, key=lambda one: one.least)
    return RoundsBound(
        int(best.least), best.kind, "certificate", best.reason, None, True, best.of_class
    )


def rounds_verdict(rounds: int, bound: int, holds_for: str) -> str:
    """The comparison of a schedule's rounds with a proved bound.

    Args:
        rounds: rounds of the schedule.
        bound: the bound.
        holds_for: the schedules that the bound holds for, as in `Bound.holds_for`.
    """
    if rounds == bound:
        return optimal_in("rounds", holds_for)
    return f"{rounds / bound - 1:.0%} above the bound in rounds"


def bound_lines(
    schedule: Schedule, bound: RoundsBound | None, checked: Sequence[CheckedBound] = ()
) -> list[str]:
    """The results of `rounds_bound` and `checked_bounds` in lines."""
    others = [
        str(one) for one in checked if one.unit != "rounds" or not one.holds or one.along_trees
    ]
    if planned_for(schedule).objective == "seconds":  # and its rounds were not minimised
        return others or ["planned for seconds, without a certificate; gradweave bound finds one"]
    if bound is None:
        return others
    text = f"at least {counted(bound.rounds, 'round')} ({bound.kind}){bound.holds_for}"
    if bound.source == "stated":
        return [f"bound: {text}{bound.doubt}", *others]
    if isinstance(bound.proof, str):
        text += f", by the file's certificate: {bound.proof}"
    elif bound.proof is not None:
        text = bound.proof.described(schedule.topology.id_name)
    verdict = rounds_verdict(schedule.rounds, bound.rounds, bound.holds_for)
    lines = [f"{verdict}: {text}{bound.doubt}"]
    if bound.stated is not None:
        stated = counted(bound.stated.rounds, "round")
        lines.append(f"the file states at least {stated} ({bound.stated.kind}); not checked here")
    return lines + others


def bound_fields(schedule: Schedule, bound: RoundsBound | None) -> dict[str, Any]:
    """The bound on rounds and the file's statement, for JSON."""
    stated = schedule.bound
    return {
        "bound": None if bound is None else bound.as_object(),
        "optimal": None if bound is None else bound.met_by(schedule),
        "stated_bound": stated and {"rounds": stated.rounds, "kind": stated.kind},
    }
