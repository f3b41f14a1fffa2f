"""The result of an exact search."""

import dataclasses
from typing import Literal

from gradweave.common.wording import counted
from gradweave.schedulers.exact.trees import Trees
from gradweave.schedules.schedule import Collective, Schedule

Kind = Literal["optimal", "feasible", "infeasible", "unknown"]


@dataclasses.dataclass(frozen=True, eq=False)
class Proof:
    """The result of an exact search, for one kind of trees and a barrier between stages."""

    collective: Collective
    trees: Trees
    """The trees allowed. A proof of impossibility for free trees holds for all trees."""
    schedule: Schedule | None
    """The best schedule found, verified, or None if none has as few rounds as requested."""
    impossible_below: int
    """Every schedule on such trees has at least this many rounds."""
    because: str
    """Why fewer rounds are impossible."""
    asked: int | None = None
    """The round count in question, or None if the fewest was sought."""
    wall_s: float = 0.0
    """Seconds that it took."""

    @property
    def rounds(self) -> int | None:
        """Rounds of the best schedule found."""
        return None if self.schedule is None else self.schedule.rounds

    @property
    def kind(self) -> Kind:
        """The result in one word.

        ``optimal``: the schedule has the fewest rounds possible. ``feasible``: there is a schedule,
        but perhaps a shorter one exists. ``infeasible``: the requested number of rounds is
        impossible. ``unknown``: the search ended without an answer.
        """
        if self.rounds is not None:
            return "optimal" if self.rounds == self.impossible_below else "feasible"
        infeasible = self.asked is not None and self.asked < self.impossible_below
        return "infeasible" if infeasible else "unknown"

    def __str__(self) -> str:
        fewer = f"on {self.trees} trees fewer than {self.impossible_below} are impossible"
        known = f"{fewer}: {self.because}"
        if self.rounds is not None:
            more = "" if self.kind == "optimal" else "perhaps not the fewest; "
            return f"{self.kind}: {counted(self.rounds, 'round')}; {more}{known}"
        asked = "" if self.asked is None else f" in {self.asked} rounds"
        if self.kind == "infeasible":
            return f"infeasible: no {self.collective}{asked}; {known}"
        return f"unknown: gave up on {self.collective}{asked}; {known}"


@dataclasses.dataclass(frozen=True, eq=False)
class StageProof:
    """The result of a search for one stage, as an all-gather."""

    gather: Schedule | None
    impossible_below: int
    because: str
