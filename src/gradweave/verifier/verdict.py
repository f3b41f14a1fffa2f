"""The verifier's verdict: valid, or the first violation."""

import dataclasses
from typing import Literal

from gradweave.errors import InvalidScheduleError

ViolationKind = Literal[
    "route", "forwarding", "endpoint", "capacity", "conflict", "relay", "result", "symmetry"
]


@dataclasses.dataclass(frozen=True)
class Violation:
    """The first rule that a schedule breaks, with what was expected and found."""

    kind: ViolationKind
    message: str
    """One line for a person: round, link or server, piece, expected and found."""
    round: int | None
    """The round of the violation, or None for a wrong result at the end."""
    expected: int | str
    found: int | str
    transfer: int | None = None
    """Row of the schedule at fault, if any."""
    link: tuple[int, int] | None = None
    """Nodes of the link direction at fault, if any."""
    server: int | None = None
    """Node id of the server at fault, if any."""
    piece: int | None = None


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Whether a schedule is valid, and if not, why."""

    violation: Violation | None
    transfers: int
    """Number of transfers checked."""
    forwarded: int
    """Transfers whose route passes through other servers, as in the unmerged baselines."""

    @property
    def valid(self) -> bool:
        """Whether no rule is broken."""
        return self.violation is None

    def raise_if_invalid(self) -> None:
        """Raises InvalidScheduleError with the violation's message, if there is one."""
        if self.violation is not None:
            raise InvalidScheduleError(self.violation.message)
