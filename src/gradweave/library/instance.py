"""Instances of the library, and what is known best of each."""

import dataclasses
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal, get_args

import gradweave_check as checker

ROUNDS, SECONDS, MESSAGE_COST = "rounds", "seconds", "message_cost"
Model = Literal["rounds", "seconds", "message_cost"]
"""``rounds``; ``seconds`` of the event model, where messages cost nothing beside bytes and latency;
``message_cost``: seconds where each also occupies its links for their overhead."""
MODELS: tuple[str, ...] = get_args(Model)
STATUSES = ("open", "closed")
CLOSED_WITHIN = Fraction(1, 1000)
"""In seconds an instance is closed where its schedule takes at most this much more than the bound;
in rounds where both are equal."""
EXACT_WITHIN = Fraction(1, 10**9)
"""So near they are equal: seconds are counted in floats."""

_ID = re.compile(r"[a-z0-9][a-z0-9_+-]*(\.[a-z0-9_+-]+)*")


@dataclasses.dataclass(frozen=True)
class Record:
    """The best schedule and the best bound that are known, and whose they are."""

    value: float
    """Rounds, or seconds of the event model, as `gradweave_check` counts them."""
    bound: str
    """An exact fraction that a certificate in the schedule's file proves."""
    by: str
    """Who found the schedule."""
    how: str
    """How: a program with its options, or another tool's name and version."""
    date: str
    """When, as YYYY-MM-DD."""
    sha256: str
    """Of the schedule's file."""
    reason: str = ""
    """Why none takes less than the bound, in a sentence."""


@dataclasses.dataclass(frozen=True)
class Instance:
    """One question, frozen, and its best known answer."""

    id: str
    name: str
    """Of the network."""
    kind: str
    """Of the network, such as ``torus``."""
    collective: str
    model: Model
    bytes: int | None
    """Of the gradient or message, in seconds; None in rounds."""
    network: str
    """Hash of the network, as certificates have it."""
    demand: str | None
    """Hash of the demand; None for a collective among all servers."""
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
        """By how much the best schedule is above the bound, as a part of it."""
        least = Fraction(self.record.bound)
        return float(Fraction(self.record.value) / least - 1) if least else float("inf")

    @property
    def status(self) -> str:
        """``closed`` where the bound is met: in seconds within `CLOSED_WITHIN`."""
        within = 0 if self.model == ROUNDS else CLOSED_WITHIN
        least = Fraction(self.record.bound) * (1 + max(within, EXACT_WITHIN))
        return "closed" if Fraction(self.record.value) <= least else "open"

    @property
    def exact(self) -> bool:
        """Whether the bound is met but for the rounding of floats."""
        return self.gap <= EXACT_WITHIN

    @property
    def rules(self) -> frozenset[str]:
        """Liberties, in the checker's words, that schedules of this instance may not take."""
        shared = {checker.SEVERAL, checker.PASSED, checker.ADDED}
        if self.demand is not None:
            return frozenset(shared)
        if self.model == ROUNDS:
            return frozenset({*shared, checker.OVERLAP, checker.UNEQUAL})
        return frozenset(shared | ({checker.UNEQUAL} if self.collective != "all_reduce" else set()))

    def as_object(self) -> dict[str, Any]:
        """For JSON: fields, status and gap."""
        return dataclasses.asdict(self) | {
            "unit": self.unit,
            "status": self.status,
            "exact": self.exact,
            "gap": self.gap,
        }


def is_id(name: str) -> bool:
    """Whether a text can be an instance's id, which is a part of its file's name."""
    return len(name) <= 120 and _ID.fullmatch(name) is not None


def fits(instance: Instance, **wanted: str | None) -> bool:
    """Whether an instance has each of the given fields; None fits all.

    Args:
        instance: of the library.
        wanted: by field or property, such as ``status="open"``.
    """
    return all(value is None or getattr(instance, name) == value for name, value in wanted.items())


def summary(instances: Mapping[str, Instance]) -> dict[str, int]:
    """How many there are, closed, closed exactly and open."""
    each = instances.values()
    closed = [one for one in each if one.status == "closed"]
    return {
        "instances": len(instances),
        "closed": len(closed),
        "exact": sum(one.exact for one in closed),
        "open": len(instances) - len(closed),
    }
