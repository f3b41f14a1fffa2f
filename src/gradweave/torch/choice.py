"""Which all-reduces of a group run by a plan: the same at all ranks, at the same call."""

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

from gradweave.execute.reduction import Reduction
from gradweave.execute.torch_distributed import Collective
from gradweave.execute.torch_distributed.backend import OPERATIONS
from gradweave.topology.units import format_size
from gradweave.torch.offers import Offers
from gradweave.torch.progress import handover_s

VOTE_EVERY, VOTE_FOR = 8, 4
"""All-reduces between votes, and after how many more a vote is counted: nobody waits for it."""
TRIAL = 16
"""All-reduces that are timed: by the plan, twice by the backend's own, by the plan, and so on, so
that where buckets of two sizes take turns, both run both."""
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
    """What a group's all-reduces of a size run by."""

    size: int
    """Up to so many bytes, and more than half as many."""
    stage: Stage
    """How far it is decided."""
    plan_s: float | None
    """Median time of the plan in the trial, of the slowest rank, with what it takes to hand it over
    to another thread; None before the trial's end."""
    own_s: float | None
    """The same of the backend's own."""


class Trial:
    """All-reduces of a size once there is a plan, in the progress thread.

    Args:
        collective: the plan.
        group: gloo's group that nothing but this thread uses, so that calls match at all ranks.
    """

    def __init__(self, collective: Collective, group: Any) -> None:
        self._collective, self._group = collective, group
        self._seconds: list[float] = []
        self.decided = False
        """Whether the trial is over."""
        self.takes_plan = True
        self.plan_s: float | None = None
        self.own_s: float | None = None

    def run(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        """One all-reduce; all ranks are at the same one."""
        if self.decided:
            self._by(tensor, reduction, self.takes_plan)
            return
        if not self._seconds:  # what the first call prepares is no part of its time
            self._collective(torch.zeros_like(tensor), reduction=reduction)
        self._summed(torch.zeros(1), dist.ReduceOp.SUM)  # all begin together
        begin = time.perf_counter()
        self._by(tensor, reduction, _by_plan(len(self._seconds)))
        self._seconds.append(time.perf_counter() - begin)
        if len(self._seconds) >= TRIAL:
            self._decide()

    def _by(self, tensor: torch.Tensor, reduction: Reduction, plan: bool) -> None:
        if plan:
            self._collective(tensor, reduction=reduction)
        elif reduction == "mean":
            self._summed(tensor, dist.ReduceOp.SUM)
            tensor /= self._group.size()
        else:
            self._summed(tensor, OPERATIONS[reduction])

    def _summed(self, tensor: torch.Tensor, operation: Any) -> None:
        self._group.allreduce([tensor], _options(operation)).wait()

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


def _options(operation: Any) -> Any:
    options: Any = dist.AllreduceOptions()
    options.reduceOp = operation
    return options


class _Size:
    """The all-reduces of one class of sizes."""

    def __init__(self, size: int) -> None:
        self.size, self.stage = size, Stage.WAITING
        self.trial: Trial | None = None

    @property
    def open(self) -> bool:
        return self.stage in (Stage.WAITING, Stage.TRIAL)


class Choices:
    """Decides, call by call, what an all-reduce runs by.

    Ranks learn of a plan, and of the end of its trial, at different times. So while something is
    undecided they vote, by small all-reduces of the minimum at every eighth call, which are counted
    four calls later: what all know, all take up at that call.

    Args:
        own: the group's own backend.
        offers: the plans.
    """

    def __init__(self, own: dist.ProcessGroup, offers: Offers) -> None:
        self._own, self._offers = own, offers
        self._sizes: dict[int, _Size] = {}
        self._calls = 0
        self._open = False
        self._vote: tuple[int, list[_Size], torch.Tensor, dist.Work] | None = None
        self._lock = threading.Lock()

    def of(self, tensor_bytes: int) -> Callable[[torch.Tensor, Reduction], None] | None:
        """What the next all-reduce, of so many bytes, runs by; None: the backend's own."""
        size = 1 << (tensor_bytes - 1).bit_length()
        with self._lock:
            chosen = self._sizes.get(size) or self._new(size)
            if self._open:
                self._advance()
            return chosen.trial.run if chosen.trial and chosen.stage is not Stage.OWN else None

    def listed(self) -> list[Choice]:
        """All sizes that there were, ascending."""
        return [
            Choice(
                one.size,
                one.stage,
                one.trial.plan_s if one.trial else None,
                one.trial.own_s if one.trial else None,
            )
            for _, one in sorted(self._sizes.items())
        ]

    def _new(self, size: int) -> _Size:
        self._sizes[size] = _Size(size)
        self._open = True
        self._offers.want(size)
        return self._sizes[size]

    def _advance(self) -> None:
        if self._vote is None and self._calls % VOTE_EVERY == 0:
            self._cast()
        if self._vote is not None and self._calls >= self._vote[0]:
            self._count()
        self._calls += 1

    def _cast(self) -> None:
        sizes = [one for one in self._sizes.values() if one.open]
        ballot = torch.tensor([self._known(one) for one in sizes])
        work = self._own.allreduce([ballot], _options(dist.ReduceOp.MIN))
        self._vote = self._calls + VOTE_FOR, sizes, ballot, work

    def _known(self, one: _Size) -> int:
        return int(one.trial.decided) if one.trial else self._offers.state(one.size)

    def _count(self) -> None:
        assert self._vote is not None
        _, sizes, ballot, work = self._vote
        work.wait()
        self._vote = None
        for one, known in zip(sizes, ballot.tolist(), strict=True):
            if known < 0:
                one.stage = Stage.OWN
            elif known > 0:
                self._go_on(one)
        self._open = any(one.open for one in self._sizes.values())

    def _go_on(self, one: _Size) -> None:
        """The next stage, of which all ranks know."""
        if one.trial is not None:
            one.stage = Stage.PLAN if one.trial.takes_plan else Stage.OWN
            if self._own.rank() == 0:
                _say(one)
            return
        collective, channel = self._offers.collective(one.size), self._offers.channel
        if collective is None or channel is None:
            one.stage = Stage.OWN
        else:
            one.stage, one.trial = Stage.TRIAL, Trial(collective, channel[0])


def _say(one: _Size) -> None:
    if one.trial is not None and one.trial.plan_s and one.trial.own_s:
        _log.info(
            "all-reduces of %s: %.3g ms by the plan, %.3g ms by gloo's own; %s is taken",
            format_size(one.size),
            one.trial.plan_s * 1e3,
            one.trial.own_s * 1e3,
            "the plan" if one.stage is Stage.PLAN else "gloo's own",
        )
