"""Which collectives of a group run by a plan: the same at all ranks, at the same call."""

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

from gradweave.execute.torch_distributed import Collective as Plan
from gradweave.topology.units import format_size
from gradweave.torch.calls import Call, Planned, SizeClass, all_reduce_options
from gradweave.torch.offers import Offers
from gradweave.torch.progress import handover_s

VOTE_EVERY, VOTE_FOR = 8, 4
"""Calls between votes, and after how many more a vote is counted: nobody waits for it."""
TRIAL = 16
"""Calls that are timed: by the plan, twice by the backend's own, by the plan, and so on, so
that where buckets of two classes take turns, both run both."""
GAIN = 0.95
"""Of the time of the backend's own: where a plan takes more, it is left."""
_log = logging.getLogger("gradweave")


class Stage(enum.Enum):
    """How far it is decided."""

    WAITING = "waiting for a plan"
    TRIAL = "both are timed"
    OWN = "the backend's own"
    PLAN = "by a plan"


@dataclasses.dataclass(frozen=True)
class Choice:
    """What a group's calls of a collective and size run by."""

    collective: Planned
    size: int
    """Up to so many bytes of all ranks' parts together, and more than half of it."""
    root: int
    """Rank of the root in the group, where the collective has one; else −1."""
    stage: Stage
    """How far it is decided."""
    plan_s: float | None
    """Median time of the plan in the trial, of the slowest rank, with what it takes to hand it over
    to another thread; None before the trial's end."""
    own_s: float | None
    """The same of the backend's own."""


class Trial:
    """Calls of one class once there is a plan, in the progress thread.

    Args:
        plan: by which they may run.
        group: gloo's group that nothing but this thread uses, so that calls match at all ranks.
    """

    def __init__(self, plan: Plan, group: Any) -> None:
        self._plan, self._group = plan, group
        self._seconds: list[float] = []
        self.decided = False
        """Whether the trial is over."""
        self.takes_plan = True
        self.plan_s: float | None = None
        self.own_s: float | None = None

    def run(self, call: Call) -> None:
        """One of them; all ranks are at the same one."""
        if self.decided:
            self._by(call, self.takes_plan)
            return
        if not self._seconds:  # what the first call prepares is no part of its time
            call.prepare(self._plan)
        self._summed(torch.zeros(1), dist.ReduceOp.SUM)  # all begin together
        begin = time.perf_counter()
        self._by(call, _by_plan(len(self._seconds)))
        self._seconds.append(time.perf_counter() - begin)
        if len(self._seconds) >= TRIAL:
            self._decide()

    def _by(self, call: Call, plan: bool) -> None:
        if plan:
            call.by_plan(self._plan)
        else:
            call.by_own(self._group)

    def _summed(self, tensor: torch.Tensor, operation: Any) -> None:
        self._group.allreduce([tensor], all_reduce_options(operation)).wait()

    def _decide(self) -> None:
        slowest = torch.tensor([*self._seconds, handover_s()], dtype=torch.float64)
        self._summed(slowest, dist.ReduceOp.MAX)
        *seconds, handover = slowest.tolist()
        times = list(enumerate(seconds))[4:]  # without the first two of each
        plan_s, own_s = (
            statistics.median(seconds for call, seconds in times if _by_plan(call) is plan)
            for plan in (True, False)
        )
        plan_s += handover  # gloo's own the caller starts itself
        self.plan_s, self.own_s = plan_s, own_s
        self.takes_plan = plan_s <= GAIN * own_s
        self.decided = True


def _by_plan(call: int) -> bool:
    return call % 4 in (0, 3)


class _Class:
    """The calls of one collective and class of classes."""

    def __init__(self, of: SizeClass) -> None:
        self.of, self.stage = of, Stage.WAITING
        self.trial: Trial | None = None

    @property
    def open(self) -> bool:
        return self.stage in (Stage.WAITING, Stage.TRIAL)


class Choices:
    """Decides, call by call, what a collective runs by.

    Ranks learn of a plan, and of the end of its trial, at different times. So while something is
    undecided they vote, by small all-reduces of the minimum at every eighth call, which are counted
    four calls later: what all know, all take up at that call.

    Args:
        own: the group's own backend.
        offers: the plans.
    """

    def __init__(self, own: dist.ProcessGroup, offers: Offers) -> None:
        self._own, self._offers = own, offers
        self._classes: dict[SizeClass, _Class] = {}
        self._calls = 0
        self._open = False
        self._vote: tuple[int, list[_Class], torch.Tensor, dist.Work] | None = None
        self._lock = threading.Lock()

    def of(self, call: Call) -> Callable[[Call], None] | None:
        """What the next call runs by; None: the backend's own."""
        of = SizeClass.of(call)
        with self._lock:
            chosen = self._classes.get(of) or self._new(of)
            if self._open:
                self._advance()
            return chosen.trial.run if chosen.trial and chosen.stage is not Stage.OWN else None

    def listed(self) -> list[Choice]:
        """All that there were, by collective and size."""
        return [
            Choice(
                *one.of,
                one.stage,
                one.trial.plan_s if one.trial else None,
                one.trial.own_s if one.trial else None,
            )
            for _, one in sorted(self._classes.items())
        ]

    def _new(self, of: SizeClass) -> _Class:
        self._classes[of] = _Class(of)
        self._open = True
        self._offers.want(of)
        return self._classes[of]

    def _advance(self) -> None:
        if self._vote is None and self._calls % VOTE_EVERY == 0:
            self._cast()
        if self._vote is not None and self._calls >= self._vote[0]:
            self._count()
        self._calls += 1

    def _cast(self) -> None:
        classes = [one for one in self._classes.values() if one.open]
        ballot = torch.tensor([self._known(one) for one in classes])
        work = self._own.allreduce([ballot], all_reduce_options(dist.ReduceOp.MIN))
        self._vote = self._calls + VOTE_FOR, classes, ballot, work

    def _known(self, one: _Class) -> int:
        return int(one.trial.decided) if one.trial else self._offers.state(one.of)

    def _count(self) -> None:
        assert self._vote is not None
        _, classes, ballot, work = self._vote
        work.wait()
        self._vote = None
        for one, known in zip(classes, ballot.tolist(), strict=True):
            if known < 0:
                one.stage = Stage.OWN
            elif known > 0:
                self._go_on(one)
        self._open = any(one.open for one in self._classes.values())

    def _go_on(self, one: _Class) -> None:
        """The next stage, of which all ranks know."""
        if one.trial is not None:
            one.stage = Stage.PLAN if one.trial.takes_plan else Stage.OWN
            if self._own.rank() == 0:
                _say(one)
            return
        plan, channel = self._offers.plan(one.of), self._offers.channel
        if plan is None or channel is None:
            one.stage = Stage.OWN
        else:
            one.stage, one.trial = Stage.TRIAL, Trial(plan, channel[0])


def _say(one: _Class) -> None:
    if one.trial is not None and one.trial.plan_s and one.trial.own_s:
        _log.info(
            "%s of %s: %.3g ms by the plan, %.3g ms by gloo's own; %s is taken",
            one.of.collective.replace("_", "-"),
            format_size(one.of.size),
            one.trial.plan_s * 1e3,
            one.trial.own_s * 1e3,
            "the plan" if one.stage is Stage.PLAN else "gloo's own",
        )
