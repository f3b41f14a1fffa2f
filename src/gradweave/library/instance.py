"""Instances of the library, and their best known results."""

import dataclasses
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal, get_args

import gradweave_check as checker

ROUNDS, SECONDS, MESSAGE_COST = "rounds", "seconds", "message_cost"
Model = Literal["rounds", "seconds", "message_cost"]
"""``rounds``; ``seconds`` of the event model, with messages that cost only bytes and latency;
``message_cost``: seconds in which messages also occupy their links for the overhead."""
MODELS: tuple[str, ...] = get_args(Model)
STATUSES = ("open", "closed")
CLOSED_WITHIN = Fraction(1, 1000)
"""An instance in seconds is closed if its schedule exceeds the bound by at most this fraction; an
instance in rounds, if both are equal."""
EXACT_WITHIN = Fraction(1, 10**9)
"""Values this close count as equal, since seconds are floats."""

_ID = re.compile(r"[a-z0-9][a-z0-9_+-]*(\.[a-z0-9_+-]+)*")


@dataclasses.dataclass(frozen=True)
class Record:
    """The best known schedule and the best known bound, with their origin."""

    value: float
    """Rounds, or seconds of the event model, as `gradweave_check` counts them."""
    bound: str
    """An exact fraction, proved by a certificate in the schedule's file."""
    by: str
    """Who found the schedule."""
    how: str
    """How: a program with its options, or another tool's name and version."""
    date: str
    """When, as YYYY-MM-DD."""
    sha256: str
    """Hash of the schedule's file."""
    reason: str = ""
    """Why no schedule takes less than the bound, in a sentence."""


@dataclasses.dataclass(frozen=True)
class Instance:
    """A frozen question and its best known answer."""

    id: str
    name: str
    """Name of the network."""
    kind: str
    """Kind of network, such as ``torus``."""
    collective: str
    model: Model
    bytes: int | None
    """Size of the gradient or message, for seconds, or None for rounds."""
    network: str
    """Hash of the network, as in certificates."""
    demand: str | None
    """Hash of the demand, or None for a collective among all servers."""
    servers: int
    switches: int
    links: int
    record: Record
    history: tuple[Record, ...] = ()
    """Earlier records, the latest first."""

    @property
    def unit(self) -> str:
        """Rounds or seconds."""
        return ROUNDS if self.model == ROUNDS else SECONDS

    @property
    def gap(self) -> float:
        """Relative distance of the best schedule from the bound."""
        least = Fraction(self.record.bound)
        return float(Fraction(self.record.value) / least - 1) if least else float("inf")

    @property
    def status(self) -> str:
        """``closed`` if the bound is met (for seconds within `CLOSED_WITHIN`), else ``open``."""
        within = 0 if self.model == ROUNDS else CLOSED_WITHIN
        least = Fraction(self.record.bound) * (1 + max(within, EXACT_WITHIN))
        return "closed" if Fraction(self.record.value) <= least else "open"

    @property
    def exact(self) -> bool:
        """Whether the bound is met up to float rounding."""
        return self.gap <= EXACT_WITHIN

    @property
    def rules(self) -> frozenset[str]:
        """Liberties, in the checker's words, that schedules of this instance must not take."""
        shared = {checker.SEVERAL, checker.PASSED, checker.ADDED}
        if self.demand is not None:
            return frozenset(shared)
        if self.model == ROUNDS:
            return frozenset({*shared, checker.OVERLAP, checker.UNEQUAL, checker.FEWER})
        return frozenset(shared | ({checker.UNEQUAL} if self.collective != "all_reduce" else set()))

    @property
    def holds_for(self) -> str:
        """The schedules that keep to the rules, for which values compare and the bound holds."""
        return checker.holds_for(self.rules)

    def as_object(self) -> dict[str, Any]:
        """The instance for JSON: fields, status and gap."""
        return dataclasses.asdict(self) | {
            "unit": self.unit,
            "status": self.status,
            "exact": self.exact,
            "gap": self.gap,
            "holds_for": self.holds_for,
        }


def is_id(name: str) -> bool:
    """Whether a text can be an instance's id, which is part of a file name."""
    return len(name) <= 120 and _ID.fullmatch(name) is not None


def fits(instance: Instance, **wanted: str | None) -> bool:
    """Whether an instance has all of the given fields, where None matches anything.

    Args:
        instance: an instance.
        wanted: values by field or property, such as ``status="open"``.
    """
    return all(value is None or getattr(instance, name) == value for name, value in wanted.items())


def summary(instances: Mapping[str, Instance]) -> dict[str, int]:
    """Number of instances, and how many are closed, closed exactly and open."""
    each = instances.values()
    closed = [one for one in each if one.status == "closed"]
    return {
        "instances": len(instances),
        "closed": len(closed),
        "exact": sum(one.exact for one in closed),
        "open": len(instances) - len(closed),
    }
