"""Decides which collectives of a group run by a plan: at all ranks from the same call on."""

import dataclasses
import enum
import functools
import logging
import math
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
from gradweave.torch.planner import Running, Weight
from gradweave.torch.trial import CLEAR, Trial

RECURS = 8
"""Calls of a class before a plan is requested for it: programs begin with calls that they do not
repeat, such as DDP's broadcasts."""
LATELY = 64
"""Number of recent group calls: classes absent from them are planned after the others."""
GIVEN_UP = 1024
"""Number of group calls without a call of a class, after which it is dropped until it recurs."""
VOTE_EVERY, VOTE_FOR = 8, 4
"""Calls between votes, and from a vote to its count, so that no rank waits for the others."""
HEAVY = 0.1
"""Fraction of all bytes from which on the calls of a class matter after a change of the network."""
VOTE_MOST = 128
"""Upper limit on the calls between votes; each vote that changes nothing doubles the interval."""
VOTE_S, VOTE_LEAST = 0.5, 2
"""Seconds between votes if plans follow changes of the network, and least number of calls: calls
may become slow at any time, and then a vote in so many calls is far away."""
LOOK_AFTER, LOOK_MOST = 64, 1024
"""Calls by a plan for a changed network until what ran before the change is timed again, in case
the network has recovered; doubled after each trial in which it is still slower, up to the limit."""
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
    """Median time of the plan in its last trial, at the slowest rank, including the hand-over to
    another thread, or None before the end of the first trial."""
    own_s: float | None
    """The same for the backend's own algorithm."""
    change: int = 0
    """The change of the network that the plan follows; 0: the network as given."""


class _Class:
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
        self.usual: list[Plan | None] = []
        """What ran the calls before the first change of the network, if something else does now."""
        self.since, self.look_after = 0, LOOK_AFTER
        """Calls since the last decision, and from when on the usual is timed again."""

    @property
    def open(self) -> bool:
        return self.stage in (Stage.WAITING, Stage.TRIAL)

    @property
    def decided(self) -> bool:
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
        """The candidates of a trial once there is a plan; the last one runs the calls now.

        After a change of the network, the backend's own algorithm is one of them unless it was
        far slower than the plan before.
        """
        new = [] if plan is None else [plan]
        if self.plan is None:
            return [*new, None]
        far = self.own_s is None or self.plan_s is None or self.own_s > CLEAR * self.plan_s
        return [*new, *([] if far else [None]), self.plan]

    def start(self, candidates: list[Plan | None], group: Any) -> None:
        """Starts a trial, if there is a choice."""
        if len(candidates) == 1:
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
        self.since = 0
        back = bool(self.usual) and best is self.usual[0]
        if back:
            self.usual, self.change = [], 0
        elif self.change == self.of.change:
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
        return Running(of, None if self.plan is None else self.plan.schedule, self.change)

    def named(self, plan: Plan | None) -> str:
        """One of the candidates of its trial, for the log."""
        if plan is None:
            return "gloo's own"
        if self.usual and plan is self.usual[0]:
            return "the plan from before"
        return "the present plan" if plan is self.plan else "the plan"


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
        self._cast_at, self._interval = (0, time.monotonic()), VOTE_FOR
        self._change = 0
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
            self._note(chosen)
            if self._open:
                self._advance()
            if chosen.stage is Stage.TRIAL and chosen.trial is not None:
                chosen.tried += 1
                if chosen.tried in chosen.trial.lengths:
                    self._vote_soon()
                return chosen.trial.run
            if chosen.plan is None or self._offers.channel is None:
                return None
            return functools.partial(_by_plan, chosen.plan, self._offers.channel[1])

    def listed(self) -> list[Choice]:
        """All choices so far, sorted by collective and size."""
        return [
            Choice(of.collective, of.size, of.root, one.stage, one.plan_s, one.own_s, one.change)
            for of, one in sorted(self._classes.items())
        ]

    def _note(self, one: _Class) -> None:
        """Counts a call, and requests a plan if such calls recur."""
        if self._calls - one.last > GIVEN_UP and not one.decided:
            one.count = 0
        one.count, one.last = one.count + 1, self._calls
        if one.decided:
            self._look_back(one)
        if one.stage is not Stage.RARE or one.count < RECURS:
            return
        one.stage = Stage.WAITING if one.trial is None else Stage.TRIAL
        if one.trial is None:
            self._want(one)
        self._vote_soon()
        self._open = True

    def _look_back(self, one: _Class) -> None:
        """Times what ran before the network changed again, if that is due."""
        one.since += 1
        if one.usual and one.since > one.look_after and self._offers.channel is not None:
            one.start([one.usual[0], one.plan], self._offers.channel[1])
            self._mix()
            self._open = True

    def _look_back_soon(self) -> None:
        for one in self._classes.values():
            one.since = one.look_after

    def _want(self, one: _Class) -> None:
        self._offers.want(one.of, lambda: self._weight(one))

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
        changes = self._offers.changes
        if not classes and changes is None:
            self._go_again(False)
            return
        states = [self._known(one) for one in classes]
        if changes is not None:
            states += [*changes.ballot(), self._calls_per_s()]
        ballot = torch.tensor(states)
        work = self._own.allreduce([ballot], all_reduce_options(dist.ReduceOp.MIN))
        wait = VOTE_FOR if changes is None else min(VOTE_FOR, self._interval)
        self._vote = self._calls + wait, classes, ballot, work

    def _calls_per_s(self) -> int:
        """The rate of calls since the last vote in calls per second, rounded up."""
        before, at_s = self._cast_at
        self._cast_at = self._calls, time.monotonic()
        return math.ceil((self._calls - before) / max(self._cast_at[1] - at_s, 1e-3))

    def _known(self, one: _Class) -> int:
        return int(one.trial.decided) if one.trial else self._offers.state(one.of)

    def _count(self) -> None:
        assert self._vote is not None
        _, classes, ballot, work = self._vote
        self._vote = None
        try:
            work.wait()
        except RuntimeError:
            if all(one.trial is None and one.plan is None for one in self._classes.values()):
                raise
            self._open = False  # a process is lost; the calls of plans find out which
            return
        states, others = ballot.tolist()[: len(classes)], ballot.tolist()[len(classes) :]
        for one, known in zip(classes, states, strict=True):
            if known < 0:
                one.stay()
            elif known > 0:
                self._go_on(one)
        if any(states):
            self._mix()
        if self._offers.changes is not None:
            adapting = any(one.open and one.of.change for _, one in self._heavy())
            self._change, recovers = self._offers.changes.counted(others[:-1], adapting=adapting)
            if recovers:
                self._look_back_soon()
            self._follow()
        self._go_again(any(states), *others[-1:])

    def _heavy(self) -> list[tuple[SizeClass, _Class]]:
        """The classes that move most of the bytes; the same on all ranks."""
        moved = {of: of.size * one.count for of, one in self._classes.items()}
        least = HEAVY * sum(moved.values())
        return [each for each in sorted(self._classes.items()) if moved[each[0]] >= least]

    def _follow(self) -> None:
        """Requests plans for the network as it is now."""
        for _, one in self._heavy():
            if one.of.change == self._change or not (one.decided or one.stage is Stage.WAITING):
                continue
            if one.open:
                self._offers.unwant(one.of)
            one.of, one.stage = one.of._replace(change=self._change), Stage.WAITING
            self._want(one)

    def _mix(self) -> None:
        """Reports which plans run, so that rates of messages are compared under the same plans."""
        if self._offers.changes is None:
            return
        heavy = self._heavy()
        pure = all(one.stage is not Stage.TRIAL for _, one in heavy)
        running = [one.running(of) for of, one in heavy if one.decided]
        self._offers.changes.use(running if pure else [])

    def _go_again(self, changed: bool, calls_per_s: int = 1) -> None:
        """Schedules the next vote.

        Args:
            changed: whether the last vote changed anything.
            calls_per_s: rate of calls at the slowest rank.
        """
        self._open = any(one.open for one in self._classes.values())
        self._vote_every = VOTE_EVERY if changed else min(2 * self._vote_every, VOTE_MOST)
        every = self._vote_every
        if self._offers.changes is not None:
            self._open = True
            self._interval = every = max(VOTE_LEAST, min(VOTE_MOST, round(VOTE_S * calls_per_s)))
        self._vote_at = self._calls + every

    def _go_on(self, one: _Class) -> None:
        """Moves a class to its next stage; all ranks do so at the same call."""
        if one.trial is not None:
            if self._own.rank() == 0:
                _say(one)
            if one.end():
                self._look_back_soon()
            return
        plan, channel = self._offers.plan(one.of), self._offers.channel
        if channel is None:
            one.stay()
            return
        # The plan uses the pair's other channel to find out which rank was lost.
        one.start(one.candidates(plan), channel[1])


def _by_plan(plan: Plan, group: Any, call: Call) -> None:
    call.by_plan(plan, group)


def _say(one: _Class) -> None:
    trial = one.trial
    assert trial is not None
    _log.info(
        "%s of %s: %s; %s is used",
        one.of.collective.replace("_", "-"),
        format_size(one.of.size),
        ", ".join(f"{s * 1e3:.3g} ms by {one.named(plan)}" for plan, s in trial.seconds.items()),
        one.named(trial.best),
    )
