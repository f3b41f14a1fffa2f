"""A schedule's bound on rounds as answers show it: found now, or stated by a file."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from gradweave.bounds.bound import Bound
from gradweave.bounds.of_schedule import certificates_of, of_schedule
from gradweave.report.certified import CheckedBound, checked_bounds
from gradweave.schedule.schedule import Schedule, StatedBound
from gradweave.wording import counted

SEARCHED = "exact"
"""The kind of bounds that a search alone has found."""


@dataclasses.dataclass(frozen=True)
class RoundsBound:
    """A lower bound on rounds, and on whose word."""

    rounds: int
    kind: str
    source: Literal["computed", "certificate", "search", "stated"]
    """``computed`` by this process; proved by the ``certificate`` in the schedule's file, which was
    recounted; found by a ``search`` in this process, whose word is all there is; or ``stated`` by
    the file, and not checked."""
    proof: Bound | str | None
    """With its certificate, where there is one; its reason, of one in a file."""
    stated: StatedBound | None
    """What the file states, where that is not the bound."""
    certified: bool
    """Whether there is a certificate, in the file or made now."""

    @property
    def doubt(self) -> str:
        """What is to be said of a bound without a certificate."""
        if self.certified:
            return ""
        searched = ", by search" if self.kind == SEARCHED else ""
        stated = ", as stated by the file; not checked here" if self.source == "stated" else ""
        return f"{searched}, not certified{stated}" if searched or not stated else stated

    def as_object(self) -> dict[str, Any]:
        """For JSON."""
        names = ("rounds", "kind", "source", "certified")
        return {name: getattr(self, name) for name in names}

    def met_by(self, schedule: Schedule) -> bool | None:
        """Whether the schedule is proved to have the fewest rounds; None on a file's word alone."""
        return None if self.source == "stated" else schedule.rounds == self.rounds


def rounds_bound(
    schedule: Schedule, checked: Sequence[CheckedBound] | None = None
) -> RoundsBound | None:
    """The bound on a schedule's rounds: a file's word counts only where nothing can be computed.

    Args:
        schedule: a valid schedule.
        checked: what `checked_bounds` says of it; asked now if not given.

    Returns:
        None where nothing is known. Where pieces differ in size rounds do not compare, and there is
        the file's word alone, if it gives one.
    """
    stated, found, proved = schedule.bound, None, None
    if schedule.shares is None:
        if stated is not None and stated.computed and stated.kind != SEARCHED:
            kept = bool(schedule.certificates)
            return RoundsBound(stated.rounds, stated.kind, "computed", None, None, kept)
        found = of_schedule(schedule)
        proved = _by_certificate(checked_bounds(schedule) if checked is None else checked)
    known = max((one.rounds for one in (found, proved) if one is not None), default=0)
    if stated is not None and stated.computed and known < stated.rounds:
        return RoundsBound(stated.rounds, stated.kind, "search", None, None, False)
    if proved is not None and (found is None or proved.rounds > found.rounds):
        return proved
    if found is not None:
        other = stated if stated is not None and stated.rounds != found.rounds else None
        certified = proved is not None and proved.rounds == found.rounds
        certified = certified or any(
            one.least >= found.rounds for one in certificates_of(schedule) if one.unit == "rounds"
        )
        return RoundsBound(found.rounds, found.kind, "computed", found, other, certified)
    if stated is None:
        return None
    return RoundsBound(stated.rounds, stated.kind, "stated", None, None, False)


def _by_certificate(checked: Sequence[CheckedBound]) -> RoundsBound | None:
    """The best bound that the file's certificates prove, whatever the trees."""
    proved = [one for one in checked if one.unit == "rounds" and one.holds and not one.along_trees]
    if not proved:
        return None
    best = max(proved, key=lambda one: one.least)
    return RoundsBound(int(best.least), best.kind, "certificate", best.reason, None, True)


def rounds_verdict(rounds: int, bound: int) -> str:
    """How a schedule's rounds compare with a bound that is proved."""
    if rounds == bound:
        return "optimal in rounds"
    return f"{rounds / bound - 1:.0%} above the bound in rounds"


def bound_lines(
    schedule: Schedule, bound: RoundsBound | None, checked: Sequence[CheckedBound] = ()
) -> list[str]:
    """What `rounds_bound` found, and what else `checked_bounds` did, in lines."""
    others = [
        str(one) for one in checked if one.unit != "rounds" or not one.holds or one.along_trees
    ]
    if bound is None:
        return others
    text = f"at least {counted(bound.rounds, 'round')} ({bound.kind})"
    if bound.source == "stated":
        return [f"bound: {text}{bound.doubt}", *others]
    if isinstance(bound.proof, str):
        text += f", by the file's certificate: {bound.proof}"
    elif bound.proof is not None:
        text = bound.proof.described(schedule.topology.id_name)
    lines = [f"{rounds_verdict(schedule.rounds, bound.rounds)}: {text}{bound.doubt}"]
    if bound.stated is not None:
        stated = counted(bound.stated.rounds, "round")
        lines.append(f"the file states at least {stated} ({bound.stated.kind}); not checked here")
    return lines + others


def bound_fields(schedule: Schedule, bound: RoundsBound | None) -> dict[str, Any]:
    """What is known of how few rounds there can be, and what the file says of it, for JSON."""
    stated = schedule.bound
    return {
        "bound": None if bound is None else bound.as_object(),
        "optimal": None if bound is None else bound.met_by(schedule),
        "stated_bound": stated and {"rounds": stated.rounds, "kind": stated.kind},
    }
