"""Detects which process went away or fell silent, and raises the error that names it."""

import atexit
import copy
import functools
import logging
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradweave.errors import RunError
from gradweave.execute.torch_distributed.own_status import PLANNED, OwnStatus
from gradweave.execute.torch_distributed.pending import PendingCollective
from gradweave.execute.torch_distributed.status import Heard, RankStatus, statuses
from gradweave.execute.torch_distributed.store import (
    Inquiry,
    StoreThread,
    group_timeout,
    store_holder,
)
from gradweave.execute.torch_distributed.verdict import NEARLY, Judge, SharedVerdict, Verdict
from gradweave.processes.owned import owned
from gradweave.topology.topology import Topology

GRACE_S = (2.0, 10.0)
"""Bounds on the time to wait for the status of other processes: half the group's timeout."""
POLL_S = 0.25
"""Time between two checks whether a server was lost, while waiting."""
_TICK_S = (0.25, 2.5)
"""Bounds on the time between two status reports of a process: a sixteenth of the timeout."""
_QUIET = 4
"""A process that has progressed within this fraction of the timeout writes nothing. So a training
step costs nothing, and a process that ends in time does not notice that the store has ended."""
LINGER_S = 5.0
"""Longest time that a process which may hold the store waits for the others before it ends, so that
they can still read from the store which server was lost."""
_FAILED_S = 1.0
"""How long a process that ends with an error looks for the loss that caused it."""
_BROKEN = ("connection closed", "connection reset", "broken pipe", "connection refused")
_LATE = ("timed out", "timeout")
_Answer = TypeVar("_Answer")
_News = tuple[Verdict | None, dict[int, RankStatus] | None]
"""The verdict and, if requested, the status of the processes."""
_log = logging.getLogger("gradweave")


def of_connections(error: RuntimeError) -> bool:
    """Whether a gloo error is about connections: one broke, or a message did not arrive."""
    return any(each in str(error).lower() for each in (*_BROKEN, *_LATE))


class LossDetector:
    """Detects which process of a group went away or is silent, and tells the others.

    gloo reports a death only to processes that wait for the dead process. When they give up, the
    processes that wait for them would name the wrong server. So the first process that sees a
    broken connection writes to the store whose it was, and all waiting processes read it there.

    If a process is stopped or sleeps, no connection breaks. Then all live processes that do not
    progress write their status to the store. A process that has waited for the group's timeout
    finds out from these which process all the others wait for (`verdict.Judge`).

    A group has one thread, status and verdict, whichever collectives run on it, and whichever
    networks their schedules are for; they are kept as long as the group.

    Args:
        group: the process group.
        topology: the network whose servers are the group's processes, by rank.
        stays: whether this process continues after a loss, and with it the store that it may hold.
    """

    @staticmethod
    def of(group: dist.ProcessGroup, topology: Topology, *, stays: bool = False) -> "LossDetector":
        """The detector of a group, which is made on first use, naming servers by this network."""
        if group not in _of_group:
            _of_group[group] = LossDetector(group, topology, stays=stays)
        same = copy.copy(_of_group[group])  # shares the thread, the status and the verdict
        same._topology = topology
        return same

    def __init__(
        self, group: dist.ProcessGroup, topology: Topology, *, stays: bool = False
    ) -> None:
        self._size, self._rank = dist.get_world_size(group), dist.get_rank(group)
        self._topology, self._group = topology, weakref.ref(group)
        self._holder = store_holder(group)
        self._may_hold_store = dist.get_rank() == 0 and not stays
        self.timeout_s = group_timeout(group).total_seconds()
        self.grace_s = min(max(self.timeout_s / 2, GRACE_S[0]), GRACE_S[1])
        self.judge = Judge(self._size, self.timeout_s)
        self.shared = SharedVerdict(self._rank, self._size)
        self._own, self._reported = OwnStatus(group), stays
        tick_s = min(max(self.timeout_s / 16, _TICK_S[0]), _TICK_S[1])
        this: weakref.ref[LossDetector] = weakref.ref(self)

        def tick(store: distributed_c10d.Store) -> float:
            if (detector := this()) is not None:
                detector._tick(store)
            return tick_s

        self.store = StoreThread(group, "gradweave", tick)
        atexit.register(owned(_leave), this)

    def watch(self, call: PendingCollective) -> None:
        """Waits until a collective is over; ends it with an error if a process was lost."""
        with self._own.inside(call):
            if not call.over.wait(POLL_S):
                _Watch(self, call).wait()

    def explain(self, error: RuntimeError, peer: int | None) -> RunError:
        """The error to raise after an error of gloo's.

        Args:
            error: gloo's error.
            peer: rank of the process that the message was for; None if there were many.
        """
        text = str(error)
        broken = any(each in text.lower() for each in _BROKEN)
        if broken and peer is None:
            time.sleep(2 * POLL_S)  # gives a process that knows more the time to write it
        try:
            if broken and peer is not None:
                return self.error(self._of_broken(peer))
            verdict = self.asked(self.shared.read)
        except (TimeoutError, RuntimeError) as failure:
            verdict = self.without_store(failure)
        if verdict is not None:
            return self.error(verdict)
        return RunError(f"torch.distributed: {'a process went away: ' * broken}{text}")

    def _of_broken(self, peer: int) -> Verdict:
        """The verdict after a connection broke: the peer, unless it gave up waiting for others."""
        call, found = self._own.call, None
        if call is not None and call.still_s() > NEARLY * self.timeout_s:
            for found, heard, for_s in self._readings():
                gone, over = {peer: heard.statuses.get(peer)}, for_s > self.grace_s
                found = found or self.judge.verdict(heard, gone=gone, long=over)
                if found or over:
                    break
        if found is None or peer in found.lost:
            found = Verdict((peer,), ("its connection broke",))
        return self.decided(found)

    def linger(self) -> None:
        """Waits until every process knows which was lost, if this process may hold the store."""
        until = time.monotonic() + LINGER_S
        try:
            while self._may_hold_store and time.monotonic() < until:
                if self.asked(self.shared.all_know):
                    return
                time.sleep(POLL_S / 5)
        except (TimeoutError, RuntimeError):
            return

    def error(self, verdict: Verdict) -> RunError:
        """The error of a verdict."""
        return verdict.error(self._topology)

    def decided(self, verdict: Verdict) -> Verdict:
        """Writes a verdict to the store, unless there is one; returns the verdict there."""
        return self.asked(functools.partial(self.shared.decide, verdict))

    def asked(self, request: Callable[[distributed_c10d.Store], _Answer]) -> _Answer:
        """The store's answer; raises TimeoutError if it does not answer."""
        return self.store.ask(request).result(self.grace_s)

    def news(self, everything: bool, store: distributed_c10d.Store) -> _News:
        """The verdict and, if requested, the status of the processes."""
        return self.shared.read(store), statuses(store, self._size) if everything else None

    def _readings(self) -> Iterator[tuple[Verdict | None, Heard, float]]:
        """Again and again the verdict, the status of the processes, and the seconds until then."""
        begin, heard = time.monotonic(), Heard()
        while True:
            for_s = time.monotonic() - begin
            verdict, found = self.asked(functools.partial(self.news, True))
            heard.hear(found or {})
            yield verdict, heard, for_s
            time.sleep(POLL_S)

    def without_store(self, error: Exception, heard: Heard | None = None) -> Verdict:
        """The verdict if the store has ended or does not answer.

        Args:
            error: the store's error.
            heard: status heard before, if this process has waited for the timeout.
        """
        if self.shared.known is not None:  # read before the store's process left
            return self.shared.known
        silent = isinstance(error, TimeoutError)
        how = f"the process that holds the store {'does not answer' if silent else 'ended'}"
        if self._holder is None:
            return Verdict((), (f"torch.distributed: {how} {error}",))
        if heard is not None and not silent:
            gone = {self._holder: heard.statuses.get(self._holder)}
            verdict = self.judge.verdict(heard, gone=gone, long=True)
            if verdict is not None and verdict.lost and self._holder not in verdict.lost:
                return verdict
        return Verdict((self._holder,), (how,))

    def _tick(self, store: distributed_c10d.Store) -> None:
        """Writes this process's status, unless it has progressed recently."""
        if self._group() not in distributed_c10d._world.pg_map:
            return  # the group was destroyed
        status = self._own.now()
        if status.idle_s < self.timeout_s / _QUIET:
            return
        status.write(self._rank, store)
        if (verdict := self.shared.read(store)) and not status.lanes[PLANNED].open:
            self._report(verdict)

    def _report(self, verdict: Verdict) -> None:
        """Logs which process was lost, if no collective is in progress that would raise it."""
        if not self._reported:
            self._reported = True
            _log.error("%s", self.error(verdict))

    def _leave(self) -> None:
        """Stays for a while at the end of the process if others wait without knowing for which.

        In this situation, PyTorch's operation has given up waiting for the silent process. If this
        process left, and the store with it, the others would take this process for the lost one.
        """
        waited = self._own.now().idle_s > self.timeout_s / 2
        failed = isinstance(getattr(sys, "last_value", None), RuntimeError)  # an uncaught error
        try:
            verdict = self._last_news(waited, failed) if waited or failed else None
        except (TimeoutError, RuntimeError) as error:
            others_store = failed and self._holder not in (None, self._rank)
            verdict = self.without_store(error) if others_store else self.shared.known
        if verdict is not None:
            self._report(verdict)
        self.store.close()

    def _last_news(self, waited: bool, failed: bool) -> Verdict | None:
        """The verdict, once all know it; it follows here if nobody is in a collective any more."""
        for verdict, heard, for_s in self._readings():
            if verdict and self.asked(self.shared.all_know):
                return verdict
            lanes = [status.lanes.get(PLANNED) for status in heard.present().values()]
            wait = any(lane and (lane.open or 0) > self._own.calls for lane in lanes)
            if waited and not verdict and not wait:
                if not failed:
                    return None
                long = for_s > self.grace_s
                if found := self.judge.verdict(heard, long=long, waiting={self._rank}):
                    # If it left without a word, others that look now would miss this process.
                    self._report(self.decided(found))
            if for_s > (2 * self.grace_s if waited else _FAILED_S):
                return self.shared.known


def _leave(detector: "weakref.ref[LossDetector]") -> None:
    if (there := detector()) is not None:
        there._leave()


_of_group: weakref.WeakKeyDictionary[dist.ProcessGroup, LossDetector]
_of_group = weakref.WeakKeyDictionary()


class _Watch:
    """One process's wait for a collective, and the status of the others meanwhile."""

    def __init__(self, detector: LossDetector, call: PendingCollective) -> None:
        self._detector, self._call = detector, call
        self._timeout_s, self._grace_s = detector.timeout_s, detector.grace_s
        self._heard, self._inquiry = Heard(), Inquiry[_News](detector.store)
        self._looked_at = time.monotonic()

    def wait(self) -> None:
        """Waits until the collective is over; ends it with an error if a process was lost."""
        while not self._call.over.wait(POLL_S):
            try:
                verdict = self._look()
            except (TimeoutError, RuntimeError) as error:
                heard = self._heard if self._late_s() >= 0 else None
                verdict = self._detector.without_store(error, heard)
            if verdict is not None:
                self._call.fail(self._detector.error(verdict))

    def _look(self) -> Verdict | None:
        """Reads and evaluates the news."""
        self._notice_own_absence()
        if not self._inquiry.pending:
            everything = self._late_s() >= -self._timeout_s / 2
            self._inquiry.send(functools.partial(self._detector.news, everything))
        news, late_s = self._inquiry.answer(POLL_S), self._late_s()
        if news is None:
            if late_s >= 0 and time.monotonic() - self._inquiry.sent_at > self._grace_s:
                raise TimeoutError
            return None
        verdict, found = news
        if verdict is not None:
            return verdict
        if found is None:
            self._heard = Heard()
            return None
        self._heard.hear(found)
        if late_s < 0:
            return None
        long = min(time.monotonic() - self._heard.since, late_s) >= self._grace_s
        verdict = self._detector.judge.verdict(self._heard, long=long)
        return None if verdict is None else self._detector.decided(verdict)

    def _late_s(self) -> float:
        """Seconds since the timeout passed without progress; negative before that."""
        return self._call.still_s() - self._timeout_s

    def _notice_own_absence(self) -> None:
        """Starts over if this process itself was suspended, and so was not waiting for others."""
        before, self._looked_at = self._looked_at, time.monotonic()
        if self._looked_at - before > 2 * POLL_S + self._grace_s:
            self._call.moved()
            self._heard, self._inquiry.sent_at = Heard(), self._looked_at
