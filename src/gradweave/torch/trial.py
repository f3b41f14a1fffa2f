"""Times a plan against other ways to run the same calls, on the training's own tensors."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from gradweave.execute.torch_distributed.backend import Collective as Plan
from gradweave.torch.calls import Call, all_reduce_options
from gradweave.torch.progress import handover_s

CYCLES, SHORT_CYCLES = 4, 2
"""Number of cycles. A cycle runs every candidate twice, in order and then in reverse: so if buckets
of two classes alternate, both classes are timed every way, and a network that becomes slower
meanwhile favours none. After `SHORT_CYCLES`, a candidate that is `CLEAR` times as fast as all
others wins at once."""
CLEAR = 2.0
GAIN = 0.95
"""A candidate replaces the incumbent if it takes at most this fraction of the incumbent's time."""


class Trial:
    """The calls of one class while candidates are timed; runs in the progress thread.

    Args:
        candidates: plans, or None for the backend's own algorithm. The last is the incumbent. At
            least one is a plan.
        group: a gloo group that only this thread uses, so that its calls match at all ranks.
    """

    def __init__(self, candidates: Sequence[Plan | None], group: Any) -> None:
        self._candidates, self._group = tuple(candidates), group
        (self._plan, *_) = (each for each in candidates if each is not None)
        self._seconds: list[float] = []
        self._took_s = 0.0
        cycle = 2 * len(self._candidates)
        self.lengths = SHORT_CYCLES * cycle, CYCLES * cycle
        """Numbers of calls after which the trial may be over."""
        self.bytes = 0
        """Size of the largest call, all ranks' parts together."""
        self.decided = False
        """Whether the trial is over."""
        self.best: Plan | None = self._candidates[-1]
        """The winner; the incumbent before the end."""
        self.seconds: dict[Plan | None, float] = {}
        """Median time of each candidate at the slowest rank, once the trial is over; for a plan,
        including the hand-over to another thread."""

    def run(self, call: Call) -> None:
        """Runs a call; all ranks must be at the same call.

        Raises:
            LostServerError: a server has gone away, or was silent for longer than the timeout.
        """
        if self.decided:
            self._by(call, self.best)
            return
        self.bytes = max(self.bytes, call.whole.nbytes)
        if not self._seconds:  # the setup of the first call is not timed
            for plan in self._candidates:
                if plan is not None:
                    call.prepare(plan, self._group)
        self._summed(torch.zeros(1), dist.ReduceOp.SUM)  # a barrier: all ranks begin together
        try:
            self._by(call, self._candidates[self._turn(len(self._seconds))])
        finally:  # the error may be limited to this rank
            self._seconds.append(self._took_s)
        if len(self._seconds) in self.lengths:
            self._decide()

    def _turn(self, call: int) -> int:
        """The candidate that runs a call, by its place."""
        last = 2 * len(self._candidates) - 1
        place = call % (last + 1)
        return min(place, last - place)

    def _by(self, call: Call, plan: Plan | None) -> None:
        if plan is not None:
            self._timed(lambda: call.by_plan(plan, self._group))
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
        times: dict[Plan | None, list[float]] = {each: [] for each in self._candidates}
        for call, took_s in enumerate(seconds):
            if call >= 2 * len(self._candidates):  # leaves out the first cycle
                times[self._candidates[self._turn(call)]].append(took_s)
        # gloo's own algorithm is started by the caller itself
        medians = {
            plan: statistics.median(each) + (handover if plan is not None else 0.0)
            for plan, each in times.items()
        }
        first, *others = sorted(medians, key=lambda plan: medians[plan])
        clear = all(medians[other] >= CLEAR * medians[first] for other in others)
        if len(seconds) < self.lengths[1] and not clear:
            return
        if medians[first] <= GAIN * medians[self.best]:
            self.best = first
        self.seconds = medians
        self.decided = True
