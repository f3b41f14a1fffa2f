"""Detects which process went away or fell silent; the others agree on it through the store."""

import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradweave.errors import RunError
from gradweave.execute.torch_distributed.liveness import NEARLY, Liveness, Verdict
from gradweave.execute.torch_distributed.pending import PendingCollective
from gradweave.execute.torch_distributed.standing import Heard, Stand
from gradweave.topology.topology import Topology

POLL_S = 0.25
"""Time between two checks whether a server was lost, while waiting."""
LINGER_S = 5.0
"""Longest time that a process which may hold the store waits for the others before it ends, so that
they can still read from the store which server was lost."""
_BROKEN = ("connection closed", "connection reset", "broken pipe", "connection refused")
_LATE = ("timed out", "timeout")
_Answer = TypeVar("_Answer")
_News = tuple[Verdict | None, dict[int, Stand] | None]
"""The verdict and, if requested, the status of the processes."""


def of_connections(error: RuntimeError) -> bool:
    """Whether a gloo error is about connections: one broke, or a message did not arrive."""
    return any(each in str(error).lower() for each in (*_BROKEN, *_LATE))


class LossDetector:
    """Detects which process went away or is silent, and tells the others.

    gloo reports a death only to processes that wait for the dead process. When they give up, the
    processes that wait for them would name the wrong server. So the first process that sees a
    broken connection writes to the store whose it was, and all waiting processes read it there.

    If a process is stopped or sleeps, no connection breaks. Then all live processes write their
    status to the store (`Liveness`). A process that has waited for the group's timeout finds out
    from these which process all the others wait for (`standing.silent`).

    Args:
        topology: the network whose servers are the group's processes, by rank.
        group: the process group.
    """

    def __init__(self, topology: Topology, group: dist.ProcessGroup) -> None:
        self._topology = topology
        self.liveness = Liveness.of(group, topology)
        self._may_hold_store = dist.get_rank() == 0
        self._timeout_s, self._grace_s = self.liveness.timeout_s, self.liveness.grace_s

    def watch(self, call: PendingCollective) -> None:
        """Waits until a collective is over; ends it with an error if a process was lost."""
        with self.liveness.inside(call):
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
                return self._of_broken(peer)
            if verdict := self.asked(self.liveness.verdict):
                return self.named(verdict)
        except (TimeoutError, RuntimeError) as failure:
            return self.without_store(failure, None)
        return RunError(f"torch.distributed: {'a process went away: ' * broken}{text}")

    def _of_broken(self, peer: int) -> RunError:
        """The error after a connection broke: the peer's, unless it gave up waiting for others."""
        call = self.liveness.call
        if call is not None and call.still_s() > NEARLY * self._timeout_s:
            if (verdict := _Watch(self, call).after_break(peer)) is not None:
                return self.named(verdict)
        return self.decided([peer], ["its connection broke"])

    def linger(self) -> None:
        """Waits until every process knows which was lost, if this process may hold the store."""
        if not self._may_hold_store:
            return
        until = time.monotonic() + LINGER_S
        try:
            while time.monotonic() < until:
                if self.asked(self.liveness.all_know):
                    return
                time.sleep(POLL_S / 5)
        except (TimeoutError, RuntimeError):
            return

    def ask(self, request: Callable[[distributed_c10d.Store], _Answer]) -> "Future[_Answer]":
        """Requests something from the store, and returns a future."""
        return self.liveness.ask(request)

    def asked(self, request: Callable[[distributed_c10d.Store], _Answer]) -> _Answer:
        """The store's answer; raises TimeoutError if it does not answer."""
        return self.ask(request).result(self._grace_s)

    def news(self, where: bool, store: distributed_c10d.Store) -> _News:
        """The verdict and, if requested, the status of the processes."""
        liveness = self.liveness
        return liveness.verdict(store), liveness.stands(store) if where else None

    def decided(self, lost: Sequence[int], how: Sequence[str]) -> RunError:
        """Writes who was lost, unless a verdict exists; returns the error of the verdict."""
        verdict = Verdict(tuple(lost), tuple(how))
        return self.named(self.asked(functools.partial(self.liveness.decide, verdict)))

    def named(self, verdict: Verdict) -> RunError:
        """The error of a verdict."""
        return verdict.error(self._topology)

    def without_store(self, error: Exception, heard: Heard | None) -> RunError:
        """The error if the store has ended or does not answer.

        Args:
            error: the store's error.
            heard: status heard before, if this process has waited for the timeout.
        """
        if self.liveness.known is not None:  # read before the store's process left
            return self.named(self.liveness.known)
        how = "does not answer" if isinstance(error, TimeoutError) else "ended"
        holder = self.liveness.holder
        if holder is None:
            return RunError(f"torch.distributed: the process that holds the store {how} {error}")
        if heard is not None and not isinstance(error, TimeoutError):
            gone = {holder: heard.stands.get(holder)}
            verdict = self.liveness.evaluate(heard, gone, long=True)
            if verdict is not None and verdict.lost and holder not in verdict.lost:
                return self.named(verdict)
        return self.named(Verdict((holder,), (f"the process that holds the store {how}",)))


class _Watch:
    """One process's wait for a collective, and the status of the others meanwhile."""

    def __init__(self, detector: LossDetector, call: PendingCollective) -> None:
        self._detector, self._call = detector, call
        self._timeout_s, self._grace_s = detector._timeout_s, detector._grace_s
        self._heard = Heard()
        self._news: Future[_News] | None = None
        self._asked_at = self._looked_at = time.monotonic()

    def wait(self) -> None:
        """Waits until the collective is over; ends it with an error if a process was lost."""
        while not self._call.over.wait(POLL_S):
            try:
                lost = self._look()
            except (TimeoutError, RuntimeError) as error:
                lost = self._detector.without_store(error, self._heard if self._late() else None)
            if lost is not None:
                self._call.fail(lost)

    def after_break(self, peer: int) -> Verdict | None:
        """The verdict on who was silent when a connection broke, or None if it is unclear."""
        detector = self._detector
        until = time.monotonic() + self._grace_s
        while True:
            verdict, stands = detector.asked(functools.partial(detector.news, True))
            if verdict is not None:
                return verdict
            self._heard.hear(stands or {})
            gone = {peer: self._heard.stands.get(peer)}
            over = time.monotonic() > until
            if (found := detector.liveness.evaluate(self._heard, gone, over)) is not None or over:
                break
            time.sleep(POLL_S)
        if found is None or peer in found.lost:
            return None
        return detector.asked(functools.partial(detector.liveness.decide, found))

    def _look(self) -> RunError | None:
        """Reads and evaluates the news."""
        self._notice_own_absence()
        if self._news is None:
            where = self._call.still_s() >= self._timeout_s / 2
            self._news = self._detector.ask(functools.partial(self._detector.news, where))
            self._asked_at = time.monotonic()
        try:
            verdict, stands = self._news.result(POLL_S)
        except TimeoutError:
            pending_s = time.monotonic() - self._asked_at
            if self._late() and pending_s > self._grace_s:
                raise
            return None
        self._news = None
        if verdict is not None:
            return self._detector.named(verdict)
        if stands is None:
            self._heard = Heard()
            return None
        self._heard.hear(stands)
        return self._evaluate() if self._late() else None

    def _evaluate(self) -> RunError | None:
        waited_s = time.monotonic() - self._heard.since
        late_s = self._call.still_s() - self._timeout_s
        long = waited_s >= self._grace_s and late_s >= self._grace_s
        verdict = self._detector.liveness.evaluate(self._heard, {}, long)
        return None if verdict is None else self._detector.decided(verdict.lost, verdict.how)

    def _late(self) -> bool:
        return self._call.still_s() >= self._timeout_s

    def _notice_own_absence(self) -> None:
        """Starts over if this process itself was suspended, and so was not waiting for others."""
        before, self._looked_at = self._looked_at, time.monotonic()
        if self._looked_at - before > 2 * POLL_S + self._grace_s:
            self._call.moved()
            self._heard = Heard()
            self._asked_at = self._looked_at
