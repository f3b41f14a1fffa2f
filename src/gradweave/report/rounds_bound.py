"""A schedule's bound on rounds as answers show it: found now, or stated by a file."""

import dataclasses
from typing import Any, Literal

from gradweave.bounds.bound import Bound
from gradweave.bounds.certificates import MAX_NODES, Certified, certificates_in
from gradweave.bounds.of_schedule import of_schedule
from gradweave.report.certified import MAX_TRANSFERS
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

    def as_object(self) -> dict[str, Any]:
        """For JSON."""
        return {"rounds": self.rounds, "kind": self.kind, "source": self.source}

    def met_by(self, schedule: Schedule) -> bool | None:
        """Whether the schedule is proved to have the fewest rounds; None on a file's word alone."""
        return None if self.source == "stated" else schedule.rounds == self.rounds


def rounds_bound(schedule: Schedule) -> RoundsBound | None:
    """The bound on a schedule's rounds: a file's word counts only where nothing can be computed.

    Args:
        schedule: a valid schedule.

    Returns:
        None where nothing is known, or pieces differ in size, so that rounds do not compare.
    """
    stated = schedule.bound
    if schedule.shares is not None:
        return None
    searched = stated is not None and stated.computed and stated.kind == SEARCHED
    if stated is not None and stated.computed and not searched:
        return RoundsBound(stated.rounds, stated.kind, "computed", None, None)
    found = of_schedule(schedule)
    proved = _by_certificate(schedule)
    if stated is not None and searched:
        known = max((one.rounds for one in (found, proved) if one is not None), default=0)
        if known < stated.rounds:
            return RoundsBound(stated.rounds, stated.kind, "search", None, None)
    if proved is not None and (found is None or proved.rounds > found.rounds):
        return proved
    if found is not None:
        other = stated if stated is not None and stated.rounds != found.rounds else None
        return RoundsBound(found.rounds, found.kind, "computed", found, other)
    if stated is None:
        return None
    return RoundsBound(stated.rounds, stated.kind, "stated", None, None)


def _by_certificate(schedule: Schedule) -> RoundsBound | None:
    """The best bound that the file's certificates prove, of those that are recounted here."""
    if schedule.num_transfers > MAX_TRANSFERS or schedule.topology.num_nodes > MAX_NODES:
        return None
    proved = [
        one
        for one, limits in certificates_in(schedule)
        if isinstance(one, Certified) and one.unit == "rounds" and not limits
    ]
    if not proved:
        return None
    best = max(proved, key=lambda one: one.least)
    kinds = dict.fromkeys(step["kind"] for step in best.certificate["proof"])
    return RoundsBound(int(best.least), "+".join(kinds), "certificate", best.reason, None)


def rounds_verdict(rounds: int, bound: int) -> str:
    """How a schedule's rounds compare with a bound that is proved."""
    if rounds == bound:
        return "optimal in rounds"
    return f"{rounds / bound - 1:.0%} above the bound in rounds"


def bound_lines(schedule: Schedule, bound: RoundsBound | None) -> list[str]:
    """What `rounds_bound` found, in lines."""
    if bound is None:
        return []
    text = f"at least {counted(bound.rounds, 'round')} ({bound.kind})"
    if bound.source == "search":
        text += ", by search, not certified"
    if bound.source == "stated":
        if bound.kind == SEARCHED:
            text += ", by search, not certified"
        return [f"bound: {text}, as stated by the file; not checked here"]
    if isinstance(bound.proof, str):
        text += f", by the file's certificate: {bound.proof}"
    elif bound.proof is not None:
        text = bound.proof.described(schedule.topology.id_name)
    lines = [f"{rounds_verdict(schedule.rounds, bound.rounds)}: {text}"]
    if bound.stated is not None:
        stated = counted(bound.stated.rounds, "round")
        lines.append(f"the file states at least {stated} ({bound.stated.kind}); not checked here")
    return lines
