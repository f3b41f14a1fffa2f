"""Decides which collectives of a group run by a plan: at all ranks from the same call on."""

import dataclasses
import enum
import logging
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from gradweave.execute.torch_distributed.backend import Collective as Plan
from gradweave.topology.units import format_size
from gradweave.torch.calls import AllToAll, Call, Planned, SizeClass, all_reduce_options
from gradweave.torch.equal_parts import EqualParts
from gradweave.torch.offers import Offers
from gradweave.torch.planner import Weight
from gradweave.torch.progress import handover_s

RECURS = 8
"""Calls of a class before a plan is requested for it: programs begin with calls that they do not
repeat, such as DDP's broadcasts."""
LATELY = 64
"""Number of recent group calls: classes absent from them are planned after the others."""
GIVEN_UP = 1024
"""Number of group calls without a call of a class, after which it is dropped until it recurs."""
VOTE_EVERY, VOTE_FOR = 8, 4
"""Calls between votes, and from a vote to its count, so that no rank waits for the others."""
VOTE_MOST = 128
"""Upper limit on the calls between votes; each vote that changes nothing doubles the interval."""
TRIAL, SHORT = 16, 8
"""Number of timed calls. They run by the plan, twice by the backend's own algorithm, by the plan,
and so on, so that if buckets of two classes alternate, both classes are timed both ways. `SHORT`:
the number of calls after which a plan `HOPELESS` times as slow as the backend is dropped."""
HOPELESS = 2.0
GAIN = 0.95
"""A plan is used if it takes at most this fraction of the time of the backend's algorithm."""
_log = logging.getLogger("gradweave")


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
    """Median time of the plan in the trial, at the slowest rank, including the hand-over to another
    thread, or None before the end of the trial."""
    own_s: float | None
    """The same for the backend's own algorithm."""


class Trial:
    """The calls of one class once it has a plan; runs in the progress thread.

    Args:
        plan: the plan on trial.
        group: a gloo group that only this thread uses, so that its calls match at all ranks.
    """

    def __init__(self, plan: Plan, group: Any) -> None:
        self._plan, self._group = plan, group
        self._seconds: list[float] = []
        self._took_s = 0.0
        self.decided = False
        """Whether the trial is over."""
        self.takes_plan = True
        self.plan_s: float | None = None
        self.own_s: float | None = None

    def run(self, call: Call) -> None:
        """Runs a call; all ranks must be at the same call.

        Raises:
            LostServerError: a server has gone away, or was silent for longer than the timeout.
        """
        if self.decided:
            self._by(call, self.takes_plan)
            return
        if not self._seconds:  # the setup of the first call is not timed
            call.prepare(self._plan, self._group)
        self._summed(torch.zeros(1), dist.ReduceOp.SUM)  # a barrier: all ranks begin together
        try:
            self._by(call, _by_plan(len(self._seconds)))
        finally:  # the error may be limited to this rank
            self._seconds.append(self._took_s)
        if len(self._seconds) in (SHORT, TRIAL):
            self._decide()

    def _by(self, call: Call, plan: bool) -> None:
        if plan:
            self._timed(lambda: call.by_plan(self._plan, self._group))
        else:  # timed without the hand-over to the thread that runs the call
            self._plan.attended(lambda: self._timed(lambda: call.by_own(self._group)))

    def _timed(self, run: Callable[[], None]) -> None:
        begin = time.perf_counter()
        try:
            run()
        finally:
            self._took_s = time.perf_counter() - begin

    def _summed(self, tensor: torch.Tensor, operation: Any) -> None:
        options = all_reduce_options(operation)
        self._plan.attended(lambda: self._group.allreduce([tensor], options).wait())

    def _decide(self) -> None:
        slowest = torch.tensor([*self._seconds, handover_s()], dtype=torch.float64)
        self._summed(slowest, dist.ReduceOp.MAX)
        *seconds, handover = slowest.tolist()
        times = list(enumerate(seconds))[4:]  # leaves out the first two calls of each kind
        plan_s, own_s = (
            statistics.median(seconds for call, seconds in times if _by_plan(call) is plan)
            for plan in (True, False)
        )
        plan_s += handover  # gloo's own algorithm is started by the caller itself
        if len(seconds) < TRIAL and plan_s < HOPELESS * own_s:
            return
        self.plan_s, self.own_s = plan_s, own_s
        self.takes_plan = plan_s <= GAIN * own_s
        self.decided = True


def _by_plan(call: int) -> bool:
    return call % 4 in (0, 3)


class _Class:
    """The calls of one collective and size class."""

    def __init__(self, of: SizeClass) -> None:
        self.of, self.stage = of, Stage.RARE
        self.count, self.last = 0, 0
        """Calls since the class was last rare, and the group's call number at its latest call."""
        self.trial: Trial | None = None
        self.tried = 0
        """Number of calls run by the trial."""

    @property
    def open(self) -> bool:
        return self.stage in (Stage.WAITING, Stage.TRIAL)

    @property
    def may_go_on(self) -> bool:
        """Whether this rank may have news for the others."""
        return self.stage is Stage.WAITING or (self.stage is Stage.TRIAL and self.tried >= SHORT)


class Choices:
    """Decides, for each call, whether a plan or the group's backend runs it.

    Ranks learn of a plan, and of the end of its trial, at different times. So while a decision is
    pending, they vote by small all-reduces of the minimum, at every eighth call or less often. Each
    vote is counted four calls later; all ranks then act on its result at the same call. Everything
    else here depends only on the calls, which are the same at all ranks.

    Args:
        own: the group's own backend.
        offers: the plans.
    """

    def __init__(self, own: dist.ProcessGroup, offers: Offers) -> None:
        self._own, self._offers = own, offers
        self._classes: dict[SizeClass, _Class] = {}
        self._calls = 0
        self._open = False
        self._parts = EqualParts(own)
        self._vote: tuple[int, list[_Class], torch.Tensor, dist.Work] | None = None
        self._vote_at, self._vote_every = 0, VOTE_EVERY
        self._lock = threading.Lock()

    def of(self, call: Call) -> Callable[[Call], None] | None:
        """The function that runs the next call, or None for the backend's own algorithm."""
        with self._lock:
            of = self._parts.of(call) if isinstance(call, AllToAll) else SizeClass.of(call)
            if of is None:
                return None
            self._calls += 1
            chosen = self._classes.get(of)
            if chosen is None:
                chosen = self._classes[of] = _Class(of)
            if chosen.stage not in (Stage.OWN, Stage.PLAN):
                self._note(chosen)
            if self._open:
                self._advance()
            if chosen.trial is None or chosen.stage not in (Stage.TRIAL, Stage.PLAN):
                return None
            chosen.tried += 1
            if chosen.tried in (SHORT, TRIAL):
                self._vote_soon()
            return chosen.trial.run

    def listed(self) -> list[Choice]:
        """All choices so far, sorted by collective and size."""
        return [
            Choice(
                *one.of,
                one.stage,
                one.trial.plan_s if one.trial else None,
                one.trial.own_s if one.trial else None,
            )
            for _, one in sorted(self._classes.items())
        ]

    def _note(self, one: _Class) -> None:
        """Counts a call, and requests a plan if such calls recur."""
        if self._calls - one.last > GIVEN_UP:
            one.count = 0
        one.count, one.last = one.count + 1, self._calls
        if one.stage is not Stage.RARE or one.count < RECURS:
            return
        one.stage = Stage.WAITING if one.trial is None else Stage.TRIAL
        if one.trial is None:
            self._offers.want(one.of, lambda: self._weight(one))
        self._vote_soon()
        self._open = True

    def _weight(self, one: _Class) -> Weight:
        """The possible gain of a plan; called from another thread."""
        return Weight(self._calls - one.last <= LATELY, one.of.size * one.count)

    def _vote_soon(self) -> None:
        self._vote_every, due = VOTE_EVERY, self._calls + VOTE_EVERY
        self._vote_at = min(self._vote_at, due) if self._open else due

    def _advance(self) -> None:
        if self._vote is None and self._calls >= self._vote_at:
            self._cast()
        if self._vote is not None and self._calls >= self._vote[0]:
            self._count()

    def _cast(self) -> None:
        for one in self._classes.values():
            if one.open and self._calls - one.last > GIVEN_UP:
                one.stage, one.count = Stage.RARE, 0
                self._offers.unwant(one.of)
        classes = [one for one in self._classes.values() if one.may_go_on]
        if not classes:
            self._go_again(False)
            return
        ballot = torch.tensor([self._known(one) for one in classes])
        work = self._own.allreduce([ballot], all_reduce_options(dist.ReduceOp.MIN))
        self._vote = self._calls + VOTE_FOR, classes, ballot, work

    def _known(self, one: _Class) -> int:
        return int(one.trial.decided) if one.trial else self._offers.state(one.of)

    def _count(self) -> None:
        assert self._vote is not None
        _, classes, ballot, work = self._vote
        self._vote = None
        try:
            work.wait()
        except RuntimeError:
            if all(one.trial is None for one in classes):
                raise
            self._open = False  # a process is lost; the trial's calls find out which
            return
        for one, known in zip(classes, ballot.tolist(), strict=True):
            if known < 0:
                one.stage = Stage.OWN
            elif known > 0:
                self._go_on(one)
        self._go_again(bool(ballot.any()))

    def _go_again(self, changed: bool) -> None:
        """Schedules the next vote."""
        self._open = any(one.open for one in self._classes.values())
        self._vote_every = VOTE_EVERY if changed else min(2 * self._vote_every, VOTE_MOST)
        self._vote_at = self._calls + self._vote_every

    def _go_on(self, one: _Class) -> None:
        """Moves a class to its next stage; all ranks do so at the same call."""
        if one.trial is not None:
            one.stage = Stage.PLAN if one.trial.takes_plan else Stage.OWN
            if self._own.rank() == 0:
                _say(one)
            return
        plan, channel = self._offers.plan(one.of), self._offers.channel
        if plan is None or channel is None:
            one.stage = Stage.OWN
        else:
            # The plan uses the pair's other channel to find out which rank was lost.
            one.stage, one.trial = Stage.TRIAL, Trial(plan, channel[1])


def _say(one: _Class) -> None:
    if one.trial is not None and one.trial.plan_s and one.trial.own_s:
        _log.info(
            "%s of %s: %.3g ms by the plan, %.3g ms by gloo's own; %s is used",
            one.of.collective.replace("_", "-"),
            format_size(one.of.size),
            one.trial.plan_s * 1e3,
            one.trial.own_s * 1e3,
            "the plan" if one.stage is Stage.PLAN else "gloo's own",
        )
