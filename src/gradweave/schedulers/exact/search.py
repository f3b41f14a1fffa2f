"""Searches for the fewest rounds of an all-gather, by a sequence of CP-SAT questions."""

import dataclasses
from collections.abc import Sequence

from gradweave.common.stop import Stop
from gradweave.common.wording import counted
from gradweave.errors import NoScheduleError
from gradweave.schedulers.exact.model import Effort, GatherModel
from gradweave.schedulers.exact.proof import StageProof
from gradweave.schedulers.exact.trees import Choice
from gradweave.schedules.schedule import Schedule


@dataclasses.dataclass
class RoundsSearch:
    """A search for an all-gather's fewest rounds, with the bounds found so far.

    Rounds below `impossible_below` are impossible, and `best` is possible; questions are asked
    about rounds in between.
    """

    choice: Choice
    impossible_below: int
    because: str
    effort: Effort
    """The effort for one question, without its stop."""
    stop: Stop
    max_booleans: int
    open_questions: int | None = None
    """Most questions left unanswered, or None for no limit."""
    best: Schedule | None = None
    hints: Sequence[Schedule] = ()
    """All-gathers to use as hints if there is no `best`."""

    def check_size(self, rounds: int) -> None:
        """Refuses a question that is too large.

        Raises:
            NoScheduleError: with the size.
        """
        needed = self.choice.booleans(rounds)
        if needed > self.max_booleans:
            raise NoScheduleError(
                f"exact: {self.choice.topology.name!r} in {counted(rounds, 'round')} needs "
                f"{needed:,} booleans, more than max_booleans={self.max_booleans:,}; raise it, or "
                "use another scheduler"
            )

    def decide(self, rounds: int) -> StageProof:
        """Whether an all-gather fits a number of rounds."""
        if self.best is not None and self.best.rounds > rounds:
            self.best = None
        if self.best is None and rounds >= self.impossible_below:
            self.check_size(rounds)
            self._ask(rounds, share=1.0)
        return StageProof(self.best, self.impossible_below, self.because)

    def fewest(self) -> StageProof:
        """The fewest rounds of an all-gather, as far as the effort goes; needs a `best` to start.

        It asks from the lower bound on up; once a question was too hard, half-way to the best
        known.
        """
        assert self.best is not None
        if self.best.rounds > self.impossible_below:
            self.check_size(self.impossible_below)
        unanswered, hard = self.impossible_below - 1, 0
        while self.best.rounds > max(unanswered + 1, self.impossible_below):
            sure = unanswered < self.impossible_below
            rounds = self.impossible_below if sure else (unanswered + self.best.rounds) // 2
            # The last question may take all the time that is left; any other leaves half of it to
            # the rest.
            last = rounds + 1 == self.best.rounds
            if self._ask(rounds, share=1.0 if last else 0.5) is None:
                unanswered, hard = rounds, hard + 1
            if hard == self.open_questions or self.stop.reached():
                break
        return StageProof(self.best, self.impossible_below, self.because)

    def _ask(self, rounds: int, share: float) -> bool | None:
        """Whether this many rounds are enough, or None if the effort was not enough to decide."""
        if self.stop.reached() or self.choice.booleans(rounds) > self.max_booleans:
            return None
        model = GatherModel(self.choice, rounds)
        hint = self.best or next(iter(self.hints), None)
        if hint is not None:
            model.hint(hint)
        effort = dataclasses.replace(self.effort, stop=self.stop.part(share))
        answer = model.solve(effort)
        if answer is False:
            self.impossible_below = rounds + 1
            tried = counted(rounds, "round")
            self.because = f"CP-SAT found {tried} impossible, by search, not certified"
            return False
        if answer is None:
            return None
        self.best = Schedule.from_rows(
            self.choice.topology, answer, collective="all_gather", root=self.choice.root
        )
        return True
