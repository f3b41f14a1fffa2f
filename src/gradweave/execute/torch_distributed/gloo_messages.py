"""Sends a program's messages over gloo, with one thread for each message in flight."""

import functools
import itertools
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed import distributed_c10d

from gradweave.common.wording import first_line
from gradweave.errors import RunError
from gradweave.execute.program import Action, Program
from gradweave.execute.reduction import Reduction
from gradweave.execute.torch_distributed import threads
from gradweave.execute.torch_distributed.lost import LossDetector, of_connections
from gradweave.execute.torch_distributed.pending import PendingCollective
from gradweave.execute.torch_distributed.store import group_store, group_timeout
from gradweave.execute.torch_distributed.watchdog import Watchdog
from gradweave.execute.tracker import Tracker
from gradweave.processes.owned import owned
from gradweave.schedules.schedule import Schedule

Pair = tuple[dist.ProcessGroup | dist.ProcessGroupGloo, dist.ProcessGroupGloo]
"""Two groups of the same processes: one for messages to higher ranks, and one for lower ranks.

gloo sends the announcement "ready to receive" behind data that already goes the same way over the
same connection. So over one connection, two servers would exchange pieces one after the other; over
two connections, they exchange them simultaneously.
"""
Channels = tuple[Sequence[Pair], NDArray[np.int64] | None]
"""Pairs of groups, and [T] the pair that carries each transfer; None: the first pair."""
Cuts = tuple[tuple[int, int], ...]
"""[P] start and end of each piece in a flat tensor; empty for pieces that are not there."""


def pair(group: dist.ProcessGroup) -> Pair:
    """A group and its twin; collective.

    Raises:
        RunError: processes went away, or could not connect.
    """
    # dist.new_group would name it by the number of a process's groups, which differs among them.
    store, timeout = group_store(group), group_timeout(group)
    number = store.add(f"gradweave twins of {group.rank()}", 1)
    return group, connected(store, f"gradweave twin {number}", group.rank(), group.size(), timeout)


def connected(
    store: distributed_c10d.Store, name: str, rank: int, size: int, timeout: timedelta
) -> dist.ProcessGroupGloo:
    """A gloo group of that size; collective.

    On a busy machine, gloo may give a connection up and make another, while the other end takes the
    first connection for broken. So all processes report whether they are connected, and if one of
    them is not, all try again.

    Args:
        store: the store through which the processes find each other.
        name: name of the group in the store.
        rank: rank of this process.
        size: number of processes.
        timeout: timeout of the group.

    Raises:
        RunError: processes went away, or could not connect.
    """
    answers = [f"connected {other}" for other in range(size)]
    error: RuntimeError | None = None
    for attempt in range(_ATTEMPTS):
        place = distributed_c10d.PrefixStore(f"{name}.{attempt}", store)
        try:
            made = dist.ProcessGroupGloo(place, rank, size, timeout)
        except RuntimeError as failure:
            made, error = None, failure
        place.set(answers[rank], "no" if made is None else "yes")
        try:
            place.wait(answers, min(timeout, _CONNECTING))
        except RuntimeError as failure:  # includes DistStoreError
            error = failure
            break
        if made is not None and all(place.get(answer) == b"yes" for answer in answers):
            return made
    raise RunError(
        f"torch.distributed: the processes did not all connect: {error or 'another failed'}; "
        "start the run again"
    ) from error


_ATTEMPTS = 3
_CONNECTING = timedelta(seconds=25)
"""Timeout for processes that have not connected."""
_LONGEST = timedelta(minutes=30)
"""gloo's timeout for a message; twice the group's timeout if that is longer. The group's timeout is
enforced by `LossDetector`: gloo would break all connections on a timeout, and the other processes
would take this process for the lost one."""
_GATHER = 1 << 24
_CANCEL = _GATHER + 1
_PROBE = _GATHER + 2
"""Tags above those of a schedule's messages."""
_PROBE_S = 5.0
"""Timeout for finding the peer whose connection broke."""
_CANCEL_S = 1.0
"""Timeout for threads whose messages are cancelled."""


class Messages:
    """Runs a program, starting each action as soon as the actions that it depends on are complete.

    gloo can wait for one message at a time, so each message that may be in flight has a thread. The
    threads live as long as this object.

    Args:
        schedule: the schedule.
        channels: gloo process groups with as many processes as the schedule has servers.
        group: the process group that identifies the processes and whose liveness is checked. It may
            be the first group of the first channel, if PyTorch knows that group.
        watchdog: ends stalled collectives, instead of the `LossDetector` of the group, which must
            be a group that PyTorch knows.
    """

    def __init__(
        self,
        schedule: Schedule,
        channels: Channels,
        group: dist.ProcessGroup,
        watchdog: Watchdog | LossDetector | None = None,
    ) -> None:
        pairs, channel = channels
        self._group = group
        self._schedule = schedule
        used = [0] * schedule.num_transfers if channel is None else channel.tolist()
        down = schedule.source > schedule.target
        self._group_of = [pairs[used[t]][int(down[t])] for t in range(schedule.num_transfers)]
        self._all_groups: list[Any] = list(itertools.chain(*pairs))  # the stubs lack a twin's recv
        self._lost = watchdog or LossDetector.of(group, schedule.topology)
        self.sent_bytes = np.zeros(group.size(), np.int64)
        self._counting = threading.Lock()
        self._trackers: dict[tuple[Cuts, int], Tracker] = {}
        self._longest = max(2 * group_timeout(group), _LONGEST)
        self._scratch = torch.empty(0)
        self._error: RunError | None = None
        self._ready: threads.Jobs = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._have_threads(1)
        weakref.finalize(self, owned(threads.end), self._ready, self._threads)

    def __call__(self, flat: torch.Tensor, cuts: Cuts, reduction: Reduction) -> None:
        """Runs the schedule on a flat tensor.

        Args:
            flat: the tensor, changed in place.
            cuts: start and end of its pieces.
            reduction: how contributions are combined.
        """
        self._check()
        size = cuts, flat.element_size()
        if size not in self._trackers:
            demand = self._schedule.demand
            whole_bytes = flat.nbytes if demand is None else demand.total_bytes
            sizes = [end - begin for begin, end in cuts]
            self._trackers[size] = Tracker(self._program(whole_bytes), sizes)
        run = _Run(self, self._trackers[size], flat, cuts, reduction)
        ready = run.tracker.restart()
        if not run.tracker.left:
            return
        for action in ready:
            self._ready.put(functools.partial(run.follow, action, self._ready))
        self._finish(run.call)

    def _program(self, gradient_bytes: int) -> Program:
        """The program for tensors of a size; starts threads for all its messages."""
        rank = self._group.rank()
        program = Program.of(self._schedule, rank, gradient_bytes=gradient_bytes)
        self._have_threads(program.at_once)
        return program

    def _have_threads(self, count: int) -> None:
        """Starts threads until there are that many."""
        while len(self._threads) < count:
            name = f"gradweave-{len(self._threads)}"
            thread = threading.Thread(
                target=threads.do_jobs, args=(self._ready,), name=name, daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def guarded(self, call: Callable[[], object]) -> None:
        """Calls one of torch.distributed's collectives; an error names the lost server."""
        try:
            call()
        except RuntimeError as error:
            raise self._cancelled(self._lost.explain(error, None)) from error

    def attended(self, run: Callable[[], object]) -> None:
        """Calls a gloo collective of the same processes in a group other than the first.

        Gloo does not report which process made it fail, and processes that wait for one that has
        given up keep waiting. So all processes look for lost ones meanwhile, like during a
        schedule.

        Raises:
            LostServerError: a process went away, or was silent for longer than the timeout.
        """
        self._check()
        call, errors = PendingCollective(), list[Exception]()
        job = functools.partial(self._attend, call, run, errors)
        self._ready.put(functools.partial(call.attempt, job))
        self._finish(call)
        for error in errors:
            raise error

    def _attend(
        self, call: PendingCollective, run: Callable[[], object], errors: list[Exception]
    ) -> None:
        """Runs the collective in a thread; `errors` collects errors that only this process has."""
        others = set(range(self._group.size())) - {self._group.rank()}
        try:
            with call.awaiting_all(others):
                run()
        except Exception as error:
            if not (isinstance(error, RuntimeError) and of_connections(error)):
                errors.append(error)
                return
            self._have_threads(len(self._all_groups) + len(others))
            for peer in others:
                self._ready.put(functools.partial(self._probe, call, peer))
            call.over.wait(_PROBE_S)
            raise call.error or RunError(f"torch.distributed: {first_line(error)}") from error

    def _probe(self, call: PendingCollective, peer: int) -> None:
        """Waits for a message that is never sent: the wait fails if the connection is broken."""
        first = self._all_groups[0]
        try:
            self._exchange(call, peer, lambda: first.recv([torch.empty(1)], peer, _PROBE))
        except Exception as error:
            call.fail(error)

    def _check(self) -> None:
        if self._error is not None:
            raise RunError(f"this process group is broken: {self._error}")

    def _finish(self, call: PendingCollective) -> None:
        """Waits for a collective, and raises its error."""
        self._lost.watch(call)
        if call.error is None:
            return
        error = self._cancelled(call.error)
        until = time.monotonic() + _CANCEL_S
        while call.awaited() and time.monotonic() < until:
            time.sleep(_CANCEL_S / 100)
        raise error

    def _cancelled(self, error: RunError) -> RunError:
        """Cancels the messages of all groups, which will never arrive.

        Threads that wait in gloo would abort the process when Python exits. gloo cannot cancel
        messages, but a message that times out closes all connections of its group.
        """
        self._error = error
        self._lost.linger()
        for group in self._all_groups:
            for peer in set(range(group.size())) - {group.rank()}:
                try:
                    work = group.recv([torch.empty(1)], peer, _CANCEL)
                    work.wait(timedelta(milliseconds=1))
                except RuntimeError:  # always
                    continue
        return error

    def gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """All-gathers small tensors through rank 0.

        gloo's all-gather does not report for which process it failed.
        """
        self._check()
        call, every = PendingCollective(), torch.stack([mine] * self._group.size())
        job = functools.partial(self._gather, call, mine, every)
        self._ready.put(functools.partial(call.attempt, job))
        self._finish(call)
        return list(every)

    def _gather(self, call: PendingCollective, mine: torch.Tensor, every: torch.Tensor) -> None:
        first = self._all_groups[0]

        def send(part: torch.Tensor, peer: int) -> None:
            self._exchange(call, peer, lambda: first.send([part], peer, _GATHER))

        def receive(part: torch.Tensor, peer: int) -> None:
            self._exchange(call, peer, lambda: first.recv([part], peer, _GATHER))

        if self._group.rank() == 0:
            for peer in range(1, len(every)):
                receive(every[peer], peer)
            for peer in range(1, len(every)):
                send(every, peer)
        else:
            send(mine, 0)
            receive(every, 0)

    def _exchange(self, call: PendingCollective, peer: int, start: Callable[[], dist.Work]) -> None:
        """Starts a message and waits until it is complete."""
        with call.awaiting(peer):
            try:
                start().wait(self._longest)
            except RuntimeError as error:
                raise call.error or self._lost.explain(error, peer) from error
        call.moved()

    def scratch(self, like: torch.Tensor, places: int, largest: int) -> torch.Tensor:
        """[places, largest] receive buffers, reused in all runs."""
        needed = places * largest
        if self._scratch.dtype != like.dtype or self._scratch.numel() < needed:
            self._scratch = like.new_empty(needed)
        return self._scratch[:needed].view(places, largest)

    def perform(self, action: int, run: "_Run") -> None:
        """Carries out one action, and returns when it is complete."""
        program = run.tracker.program
        kind, place = program.kind[action], int(program.place[action])
        peer, tag = int(program.peer[action]), int(program.message[action])
        piece, group = run.pieces[program.piece[action]], self._group_of[program.transfer[action]]
        into = piece if place < 0 else run.places[place, : piece.numel()]
        if kind == Action.REDUCE:
            combine(run.reduction, piece, into)
            return
        if kind == Action.COPY:
            piece.copy_(into)
            return
        if kind == Action.KEEP:
            into.copy_(piece)
            return
        if kind == Action.SEND:
            self._exchange(run.call, peer, lambda: group.send([piece], peer, tag))
        else:
            self._exchange(run.call, peer, lambda: group.recv([into], peer, tag))
        if kind == Action.SEND:
            with self._counting:
                self.sent_bytes[peer] += piece.numel() * piece.element_size()


class _Run:
    """The state of one call: the tensor's pieces, and the actions that are complete."""

    def __init__(
        self,
        messages: Messages,
        tracker: Tracker,
        flat: torch.Tensor,
        cuts: Cuts,
        reduction: Reduction,
    ) -> None:
        self.tracker = tracker
        self.reduction: Reduction = reduction
        self.pieces = [flat[begin:end] for begin, end in cuts]
        largest = max(end - begin for begin, end in cuts)
        self.places = messages.scratch(flat, tracker.program.places, largest)
        self.call = PendingCollective()
        self._perform = messages.perform
        self._lock = threading.Lock()

    def follow(self, action: int, ready: threads.Jobs) -> None:
        """Carries out an action, and then those that it enables and no other thread takes."""
        following: int | None = action
        while following is not None and self.call.error is None:
            following = self._advance(following, ready)

    def _advance(self, action: int, ready: threads.Jobs) -> int | None:
        """Carries out an action, queues those that it enables, and returns one for this thread."""
        try:
            with torch.no_grad():
                self._perform(action, self)
        except Exception as error:  # raised in the caller's thread, which waits
            self.call.fail(error)
            return None
        with self._lock:
            following = self.tracker.complete(action)
            if not self.tracker.left:
                self.call.over.set()
        for other in following[1:]:
            ready.put(functools.partial(self.follow, other, ready))
        return following[0] if following else None


def combine(reduction: Reduction, into: torch.Tensor, other: torch.Tensor) -> None:
    """Combines `other` into `into`, in place; the mean adds, and is divided later."""
    function = {"max": torch.maximum, "min": torch.minimum}.get(reduction, torch.add)
    function(into, other, out=into)
