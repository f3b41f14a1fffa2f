"""The calls of one collective and size: how they run, and what is tried."""

import dataclasses
import enum
from typing import Any

from gradweave.execute.signature import digest
from gradweave.execute.torch_distributed.backend import Collective as Plan
from gradweave.torch.calls import Planned, SizeClass
from gradweave.torch.planner import Running
from gradweave.torch.trial import CLEAR, Trial

LOOK_AFTER, LOOK_MOST = 64, 1024
"""Calls by a plan for a changed network until what ran before the change is timed again, in case
the network has recovered; doubled after each trial in which it is still slower, up to the limit."""


class Stage(enum.Enum):
    """The progress of a decision."""

    RARE = "too few calls for a plan"
    WAITING = "waiting for a plan"
    TRIAL = "both are timed"
    OWN = "the backend's own"
    PLAN = "by a plan"


@dataclasses.dataclass(frozen=True)
class Choice:
    """How a group runs its calls of one collective and size."""

    collective: Planned
    size: int
    """Upper limit on the bytes of all ranks' parts together; calls have more than half of this."""
    root: int
    """Rank of the root in the group, or −1 if the collective has no root."""
    stage: Stage
    """The progress of the decision."""
    plan_s: float | None
    """Median time of the plan in its last trial, at the slowest rank, including the hand-over to
    another thread, or None before the end of the first trial."""
    own_s: float | None
    """The same for the backend's own algorithm."""
    change: int = 0
    """The change of the network, or of the cost of messages, that the plan follows; 0: none."""


class CallClass:
    """The calls of one collective and size class."""

    def __init__(self, of: SizeClass) -> None:
        self.of, self.stage = of, Stage.RARE
        """`of.change` is that of the plan that is wanted or was tried last."""
        self.count, self.last = 0, 0
        """Calls since the class was last rare, and the group's call number at its latest call."""
        self.trial: Trial | None = None
        """The trial in progress, if any."""
        self.tried = 0
        """Number of calls run by the trial."""
        self.plan: Plan | None = None
        """The plan that runs the calls outside trials; None: the backend's own algorithm."""
        self.change = 0
        """The change of the network that `plan` is for."""
        self.plan_s: float | None = None
        self.own_s: float | None = None
        """As in `Choice`."""
        self.timed: tuple[float, int] | None = None
        """`plan_s` and the size of the calls, if the plan was timed on the network as it is."""
        self.usual: list[Plan | None] = []
        """The plan, or None for the backend's own algorithm, that ran the calls before the network
        first changed; empty if it still runs them."""
        self.since, self.look_after = 0, LOOK_AFTER
        """Calls since the last decision, and the number after which `usual` is timed again."""

    @property
    def open(self) -> bool:
        """Whether a plan is awaited or on trial."""
        return self.stage in (Stage.WAITING, Stage.TRIAL)

    @property
    def decided(self) -> bool:
        """Whether nothing is awaited, at least for now."""
        return self.stage in (Stage.OWN, Stage.PLAN)

    @property
    def may_go_on(self) -> bool:
        """Whether this rank may have news for the others."""
        if self.stage is Stage.TRIAL:
            return self.trial is not None and self.tried >= self.trial.lengths[0]
        return self.stage is Stage.WAITING

    def stay(self) -> None:
        """Ends a search or a trial without a change."""
        self.trial, self.stage = None, Stage.OWN if self.plan is None else Stage.PLAN

    def candidates(self, plan: Plan | None) -> list[Plan | None]:
        """The candidates of a trial once there is a plan; the last candidate runs the calls now.

        After a change of the network, what ran before the first change is one of them, since the
        network may have recovered in part, and so is the backend's own algorithm unless it was far
        slower than the plan before.
        """
        known = [*self.usual, self.plan]
        if plan is not None and not any(same_plan(plan, each) for each in known):
            known = [plan, *known]
        far = self.own_s is None or self.plan_s is None or self.own_s > CLEAR * self.plan_s
        if not far and None not in known:
            known.insert(-1, None)
        return known

    def start(self, candidates: list[Plan | None], group: Any) -> None:
        """Starts a trial, if there is a choice."""
        if len(candidates) == 1:
            self.change, self.timed = self.of.change, None
            self.stay()
        else:
            self.stage, self.trial, self.tried = Stage.TRIAL, Trial(candidates, group), 0

    def end(self) -> bool:
        """Takes up the winner of the trial.

        Returns:
            Whether the calls run again as before the network changed.
        """
        assert self.trial is not None
        best, seconds = self.trial.best, self.trial.seconds
        if None in seconds:
            self.own_s = seconds[None]
        if plans := [each for each in (best, *seconds) if each is not None]:
            self.plan_s = seconds[plans[0]]
        self.timed = None if best is None else (seconds[best], self.trial.bytes)
        self.since = 0
        # `usual` was timed again without another change of the network
        again = self.change == self.of.change
        back = bool(self.usual) and best is self.usual[0]
        if back:
            self.usual, self.change = [], 0 if again else self.of.change
        elif again:
            self.look_after = min(2 * self.look_after, LOOK_MOST)
        else:
            if best is not self.plan:
                self.usual = self.usual or [self.plan]
            self.change, self.look_after = self.of.change, LOOK_AFTER
        self.plan = best
        self.stay()
        return back

    def running(self, of: SizeClass) -> Running:
        """How its calls run outside trials."""
        plan = None if self.plan is None else self.plan.schedule
        return Running(of, plan, self.change, self.timed)

    def named(self, plan: Plan | None) -> str:
        """One of the candidates of its trial, for the log."""
        if plan is None:
            return "gloo's own"
        if self.usual and plan is self.usual[0]:
            return "the plan from before"
        return "the present plan" if plan is self.plan else "the plan"


def same_plan(one: Plan | None, other: Plan | None) -> bool:
    """Whether calls run in the same way; None is the backend's own algorithm."""
    if one is None or other is None:
        return one is other
    return digest(one.schedule) == digest(other.schedule)
