"""A program's messages over gloo: one thread for each that is under way."""

import itertools
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed import distributed_c10d

from gradweave.errors import RunError
from gradweave.execute.program import Action, Program
from gradweave.execute.reduction import Reduction
from gradweave.execute.torch_lost import POLL_S, Lost
from gradweave.execute.tracker import Tracker
from gradweave.schedule.schedule import Schedule

Pair = tuple[dist.ProcessGroup, dist.ProcessGroupGloo]
"""Two groups of the same processes: for messages to higher ranks, and to lower ones.

gloo sends the announcement "ready to receive" behind the data that already goes the same way over
the same connection, so that two servers would exchange pieces one after the other. Apart, they go
at the same time.
"""
Channels = tuple[Sequence[Pair], NDArray[np.int64] | None]
"""Pairs of groups, and [T] which of them carries each transfer; None: the first."""


def pair(group: dist.ProcessGroup) -> Pair:
    """A group and its twin; collective.

    On a busy machine gloo now and then gives one connection up and makes it anew, and the other
    end takes the first one for broken. So all say whether they are connected, and where one is not
    all try again.

    Raises:
        RunError: processes went away, or did not reach each other.
    """
    # dist.new_group would name it by how many groups a process is in, which differs among them.
    store = distributed_c10d._get_process_group_store(group)
    number = store.add(f"gradweave twins of {group.rank()}", 1)
    patience = distributed_c10d.default_pg_timeout
    answers = [f"connected {rank}" for rank in range(group.size())]
    error: RuntimeError | None = None
    for attempt in range(_ATTEMPTS):
        place = distributed_c10d.PrefixStore(f"gradweave twin {number}.{attempt}", store)
        try:
            twin = dist.ProcessGroupGloo(place, group.rank(), group.size(), patience)
        except RuntimeError as failure:
            twin, error = None, failure
        place.set(answers[group.rank()], "no" if twin is None else "yes")
        try:
            place.wait(answers, _CONNECTING)
        except RuntimeError as failure:  # DistStoreError too
            error = failure
            break
        if twin is not None and all(place.get(answer) == b"yes" for answer in answers):
            return group, twin
    raise RunError(
        f"torch.distributed: the processes did not all connect: {error or 'another one failed'}; "
        "start the run again"
    ) from error


_ATTEMPTS = 3
_CONNECTING = timedelta(seconds=25)
"""How long to wait for others that have not connected."""
_GATHER = 1 << 24
"""A tag above those of a schedule's messages."""


class Messages:
    """Runs a program, each action as soon as those that it waits for are complete.

    gloo can only be asked to wait for one message at a time, so each message that may be under way
    has a thread that waits for it. The threads live as long as this object.

    Args:
        schedule: the schedule.
        channels: gloo process groups of as many processes as the schedule has servers.
    """

    def __init__(self, schedule: Schedule, channels: Channels) -> None:
        pairs, channel = channels
        group = self._group = pairs[0][0]
        self._program = Program.of(schedule, dist.get_rank(group))
        used = [0] * schedule.num_transfers if channel is None else channel.tolist()
        down = schedule.source > schedule.target
        self._groups = [pairs[used[t]][int(down[t])] for t in self._program.transfer]
        self._lost = Lost(schedule.topology, group)
        self.sent_bytes = np.zeros(dist.get_world_size(group), np.int64)
        self._counting = threading.Lock()
        self._trackers: dict[int, Tracker] = {}
        self._scratch = torch.empty(0)
        self._error: RunError | None = None
        self._ready: _Queue = queue.SimpleQueue()
        threads = self._program.at_once
        for number in range(threads):
            threading.Thread(
                target=_work, args=(self._ready,), name=f"gradweave-{number}", daemon=True
            ).start()
        weakref.finalize(self, _dismiss, self._ready, threads)

    def __call__(self, flat: torch.Tensor, at: list[int], reduction: Reduction) -> None:
        """Runs the schedule on a flat tensor.

        Args:
            flat: the tensor, changed in place.
            at: [P+1] where its pieces start.
            reduction: how contributions are combined.
        """
        if self._error is not None:
            raise RunError(f"this process group is broken: {self._error}")
        length = flat.numel()
        if length not in self._trackers:
            self._trackers[length] = Tracker(self._program, np.diff(at))
        run = _Run(self, self._trackers[length], flat, at, reduction)
        ready = run.tracker.restart()
        if not run.tracker.left:
            return
        for action in ready:
            self._ready.put((run, action))
        while not run.over.wait(POLL_S):
            if lost := self._lost.told():
                run.error = lost
                break
        if run.error is not None:
            self._error = run.error
            self._lost.linger()
            raise run.error

    def guarded(self, call: Callable[[], object], peer: int | None = None) -> None:
        """Calls one of the group's own collectives; names the server that it fails for.

        Args:
            call: what to call.
            peer: rank of the process that it talks to; None where there are many.
        """
        try:
            call()
        except RuntimeError as error:
            self._error = self._lost.explain(error, peer)
            self._lost.linger()
            raise self._error from error

    def gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """What every process brings, by rank; small, and by way of rank 0.

        gloo's own all-gather does not say whom it failed for.
        """
        rank, size = dist.get_rank(self._group), dist.get_world_size(self._group)
        every = torch.stack([mine] * size)
        if rank == 0:
            for peer in range(1, size):
                self._receive(every[peer], peer)
            for peer in range(1, size):
                self._send(every, peer)
        else:
            self._send(mine, 0)
            self._receive(every, 0)
        return list(every)

    def _send(self, part: torch.Tensor, peer: int) -> None:
        self.guarded(lambda: self._group.send([part], peer, _GATHER).wait(), peer)

    def _receive(self, part: torch.Tensor, peer: int) -> None:
        self.guarded(lambda: self._group.recv([part], peer, _GATHER).wait(), peer)

    def scratch(self, like: torch.Tensor, largest: int) -> torch.Tensor:
        """[places, largest] memory for what is received, kept from run to run."""
        needed = self._program.places * largest
        if self._scratch.dtype != like.dtype or self._scratch.numel() < needed:
            self._scratch = like.new_empty(needed)
        return self._scratch[:needed].view(self._program.places, largest)

    def perform(self, action: int, run: "_Run") -> None:
        """Does one action, and returns when it is complete."""
        program = self._program
        kind, place = program.kind[action], int(program.place[action])
        peer, tag = int(program.peer[action]), int(program.message[action])
        piece, group = run.pieces[program.piece[action]], self._groups[action]
        into = piece if place < 0 else run.places[place, : piece.numel()]
        if kind == Action.REDUCE:
            combine(run.reduction, piece, into)
            return
        if kind == Action.COPY:
            piece.copy_(into)
            return
        try:
            if kind == Action.SEND:
                work = group.send([piece], peer, tag)
            else:
                work = group.recv([into], peer, tag)
            work.wait()
        except RuntimeError as error:
            raise self._lost.explain(error, peer) from error
        if kind == Action.SEND:
            with self._counting:
                self.sent_bytes[peer] += piece.numel() * piece.element_size()


class _Run:
    """One call: the tensor's parts, and how far it is."""

    def __init__(
        self,
        messages: Messages,
        tracker: Tracker,
        flat: torch.Tensor,
        at: list[int],
        reduction: Reduction,
    ) -> None:
        self.tracker = tracker
        self.reduction: Reduction = reduction
        self.pieces = [flat[a:b] for a, b in itertools.pairwise(at)]
        self.places = messages.scratch(flat, at[1] - at[0])
        self.over = threading.Event()
        self.error: RunError | None = None
        self._perform = messages.perform
        self._lock = threading.Lock()

    def advance(self, action: int, ready: "_Queue") -> int | None:
        """Does an action, hands out what may follow, and returns one of that for the caller."""
        try:
            with torch.no_grad():
                self._perform(action, self)
        except Exception as error:  # raised to the caller of the all-reduce, who waits
            if self.error is None:
                self.error = error if isinstance(error, RunError) else RunError(str(error))
            self.over.set()
            return None
        with self._lock:
            following = self.tracker.complete(action)
            if not self.tracker.left:
                self.over.set()
        for other in following[1:]:
            ready.put((self, other))
        return following[0] if following else None


_Queue = queue.SimpleQueue[tuple[_Run, int] | None]


def _work(ready: _Queue) -> None:
    """What a thread does, until it is dismissed."""
    while (item := ready.get()) is not None:
        run, action = item
        following: int | None = action
        while following is not None and run.error is None:
            following = run.advance(following, ready)
        del run, item


def _dismiss(ready: _Queue, threads: int) -> None:
    for _ in range(threads):
        ready.put(None)


def combine(reduction: Reduction, into: torch.Tensor, other: torch.Tensor) -> None:
    """Adds (or maximises, minimises) `other` into `into`, in place; a mean adds."""
    function = {"max": torch.maximum, "min": torch.minimum}.get(reduction, torch.add)
    function(into, other, out=into)
