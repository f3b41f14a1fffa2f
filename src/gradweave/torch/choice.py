"""Decides which collectives of a group run by a plan: at all ranks from the same call on."""

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
from gradweave.torch.call_class import CallClass, Choice, Stage
from gradweave.torch.calls import AllToAll, Call, SizeClass, all_reduce_options
from gradweave.torch.equal_parts import EqualParts
from gradweave.torch.offers import Offers
from gradweave.torch.planner import Weight

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
"""Seconds between votes if plans follow changes of the network, and minimum number of calls. Calls
may become slow at any time, and a vote that was set for many calls later would then be late."""
_log = logging.getLogger("gradweave")


class Choices:
    """Decides, for each call, whether a plan or the group's backend runs it.

    Ranks learn of a plan, and of the end of its trial, at different times. So while a decision is
    pending, they vote by small all-reduces of the minimum, at every eighth call or less often. Each
    vote is counted four calls later; all ranks then act on its result at the same call. Everything
    else here depends only on the calls, which are the same at all ranks. If plans follow changes of
    the network, the ranks go on voting, and `Changes` adds its news.

    Args:
        own: the group's own backend.
        offers: the plans.
    """

    def __init__(self, own: dist.ProcessGroup, offers: Offers) -> None:
        self._own, self._offers = own, offers
        self._classes: dict[SizeClass, CallClass] = {}
        self._calls = 0
        self._open = False
        self._parts = EqualParts(own)
        self._vote: tuple[int, list[CallClass], torch.Tensor, dist.Work] | None = None
        self._vote_at, self._vote_every = 0, VOTE_EVERY
        self._cast_at, self._vote_for = (0, time.monotonic()), VOTE_FOR
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
                chosen = self._classes[of] = CallClass(of)
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

    def _note(self, one: CallClass) -> None:
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

    def _look_back(self, one: CallClass) -> None:
        """Times what ran before the network changed again, if that is due."""
        one.since += 1
        if one.usual and one.since > one.look_after and self._offers.channel is not None:
            one.start([one.usual[0], one.plan], self._offers.channel[1])
            self._report_running()
            self._open = True

    def _look_back_soon(self) -> None:
        for one in self._classes.values():
            one.since = one.look_after

    def _want(self, one: CallClass) -> None:
        self._offers.want(one.of, lambda: self._weight(one))

    def _weight(self, one: CallClass) -> Weight:
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
            states += [changes.ballot(), self._calls_per_s()]
        ballot = torch.tensor(states)
        work = self._own.allreduce([ballot], all_reduce_options(dist.ReduceOp.MIN))
        self._vote = self._calls + self._vote_for, classes, ballot, work

    def _calls_per_s(self) -> int:
        """The rate of calls since the last vote in calls per second, rounded up."""
        before, at_s = self._cast_at
        self._cast_at = self._calls, time.monotonic()
        return math.ceil((self._calls - before) / max(self._cast_at[1] - at_s, 1e-3))

    def _known(self, one: CallClass) -> int:
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
            self._report_running()
        if self._offers.changes is not None:
            adapting = any(one.open and one.of.change for _, one in self._heavy())
            self._change = self._offers.changes.counted(others[0], adapting=adapting)
            self._follow()
        self._go_again(any(states), *others[-1:])

    def _heavy(self) -> list[tuple[SizeClass, CallClass]]:
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

    def _report_running(self) -> None:
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
            every = max(VOTE_LEAST, min(VOTE_MOST, round(VOTE_S * calls_per_s)))
            # Rare calls come one at a time, so that all ranks are near; buckets come in bursts.
            self._vote_for = VOTE_LEAST if calls_per_s <= VOTE_LEAST else VOTE_FOR
        self._vote_at = self._calls + every

    def _go_on(self, one: CallClass) -> None:
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


def _say(one: CallClass) -> None:
    trial = one.trial
    assert trial is not None
    _log.info(
        "%s of %s: %s; %s is used",
        one.of.collective.replace("_", "-"),
        format_size(one.of.size),
        ", ".join(f"{s * 1e3:.3g} ms by {one.named(plan)}" for plan, s in trial.seconds.items()),
        one.named(trial.best),
    )
