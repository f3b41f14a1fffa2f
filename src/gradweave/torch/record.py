"""Records the collectives of this process: the last thousand, and those in flight."""

import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from gradweave.torch.awaited import AwaitedWork

KEPT = 1000
"""Number of calls that a process keeps."""
_TOLD = 16
"""Calls per channel whose text is sent to other ranks, so that they can see mismatches."""


class Entry:
    """One call: its kind, and the times when it began and ended, by `time.monotonic_ns`."""

    __slots__ = (
        "_on_cpu",
        "_options",
        "_work",
        "begin_ns",
        "bytes",
        "end_ns",
        "error",
        "kind",
        "lane",
        "length",
        "number",
        "planned",
        "root",
        "sized",
        "waits_from_ns",
    )

    def __init__(self, lane: "Lane", kind: str, tensors: Any, options: Any, sized: bool) -> None:
        self.lane, self.kind, self.sized, self._options = lane, kind, sized, options
        self.length: tuple[torch.dtype, int] | None = None
        """Type and number of the elements."""
        self.bytes = 0
        self._on_cpu = True
        if tensors is not None:
            self._measure(tensors)
        self.number = lane.entered = lane.entered + 1
        self.planned = False
        """Whether a Gradweave plan ran it, or gloo within the trial of a plan."""
        self.root: int | None = None
        """The rank of the job that all others wait for in this call, if there is one."""
        self.error: str | None = None
        self._work: Any = self
        self.end_ns = 0
        """0 while the call is in flight."""
        self.begin_ns = self.waits_from_ns = time.monotonic_ns()
        """`waits_from_ns` is 0 while nobody waits for a message, which need not be awaited."""

    def _measure(self, tensors: Any) -> None:
        first = tensors
        while not isinstance(first, torch.Tensor):
            if not first:
                return
            first = first[0]
        self._on_cpu = first.is_cpu
        alone = tensors is first or (len(tensors) == 1 and tensors[0] is first)
        count = first.numel() if alone else sum(one.numel() for one in _flat(tensors))
        self.length, self.bytes = (first.dtype, count), count * first.element_size()

    @property
    def text(self) -> str:
        """A description of the properties that must be equal at all ranks."""
        words = [self.kind]
        if self.length is not None and self.sized:
            dtype, count = self.length
            words.append(f"{str(dtype).removeprefix('torch.')}[{count}]")
        words.append(_operation(self._options))
        return " ".join(filter(None, words))

    def started(self, work: Any, follow: bool) -> Any:
        """Notes the work that the caller waits for, and returns the work to give to the caller.

        Args:
            work: PyTorch's work, or None if there is nothing to wait for.
            follow: whether to record the end of the call when it happens, which costs the caller a
                little time. Otherwise it is recorded when the status is next read.
        """
        if work is None:
            self._work = None
        elif self.lane.between_two or (self.kind in _AWAITED and self._on_cpu and not self.planned):
            self.waits_from_ns = 0
            work = AwaitedWork(work, self._begun, self._awaited)
            self._work = weakref.ref(work, self._dropped)
        else:
            self._work = work
            if follow and self._on_cpu:
                self._follow(work)
        return work

    def failed(self, error: BaseException) -> None:
        """Notes that the call ended with an error."""
        self.error = str(error) or type(error).__name__
        self._end()

    def over(self) -> bool:
        """Whether the call is no longer in flight."""
        if self.end_ns:
            return True
        work = self._work
        if work is self:  # the call itself has not returned
            return False
        if isinstance(work, weakref.ref):
            return False
        if work is not None:
            if not work.is_completed():
                return False
            if self._on_cpu:
                self._look_for_error(work)
        self._end()
        return True

    def _follow(self, work: Any) -> None:
        try:
            work.get_future().add_done_callback(lambda _: self._note_end())
        except RuntimeError:  # this work has no future
            pass

    def _note_end(self) -> None:
        self.end_ns = self.end_ns or time.monotonic_ns()

    def _begun(self) -> None:
        self.waits_from_ns = time.monotonic_ns()

    def _awaited(self, error: BaseException | None) -> None:
        if error is not None:
            self.error = str(error) or type(error).__name__
        self._end()

    def _dropped(self, _: object) -> None:
        self._end()

    def _end(self) -> None:
        self._note_end()
        self._work = None

    def _look_for_error(self, work: Any) -> None:
        try:
            work.wait()  # already complete; on other devices a wait would order streams
        except Exception as error:  # the error that the caller sees
            self.error = str(error) or type(error).__name__


def _flat(tensors: Any) -> Iterator[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        yield tensors
    else:
        yield from itertools.chain.from_iterable(map(_flat, tensors))


_AWAITED = ("reduce_scatter",)
"""gloo's collectives that PyTorch considers complete only after their caller has waited."""
_OPERATIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def _operation(options: Any) -> str:
    """The operation or the root in one of PyTorch's options objects."""
    operation, root = getattr(options, "reduceOp", None), getattr(options, "rootRank", None)
    words = [x.lower() for x in _OPERATIONS if operation == getattr(dist.ReduceOp, x)]
    words += [f"root {root}"] if root is not None else []
    return " ".join(words)


class Lane:
    """A channel: calls that ranks number in the same order.

    A channel has the collectives of one group, or the messages from one rank to another.

    Args:
        key: a unique name, the same at all members.
        members: the ranks of the job that take part.
        between_two: whether these are messages from the first member to the second.
    """

    def __init__(self, key: str, members: tuple[int, ...], *, between_two: bool = False) -> None:
        self.key, self.members, self.between_two = key, members, between_two
        self.entered = 0
        """Number of calls that this process has made."""
        self.open: deque[Entry] = deque()
        """Calls that were in flight when last checked."""
        self.recent: deque[Entry] = deque(maxlen=_TOLD)
        self.failed: Entry | None = None
        """The last call that ended with an error."""
        self._settling = threading.Lock()

    def settle(self) -> None:
        """Drops calls that have ended, unless another thread is doing so."""
        if not self._settling.acquire(blocking=False):
            return
        try:
            found = self.open
            while found and found[0].over():
                if found[0].error is not None:
                    self.failed = found[0]
                found.popleft()
        finally:
            self._settling.release()

    def first(self) -> Entry | None:
        """The first call in flight that a caller waits for."""
        return next((entry for entry in self.open.copy() if entry.waits_from_ns), None)


class Recorder:
    """Records the calls of a process in all its groups.

    Args:
        follow: whether to record the end of a call when it happens, not when somebody looks.
    """

    def __init__(self, *, follow: bool = False) -> None:
        self.follows = follow
        """Whether the end of a call is recorded when it happens."""
        self.lanes: dict[str, Lane] = {}
        self.kept: deque[Entry] = deque(maxlen=KEPT)
        """The last calls, in the order in which they began."""

    def lane(self, key: str, members: tuple[int, ...], *, between_two: bool = False) -> Lane:
        """The channel of a key, created on first use."""
        found = self.lanes.get(key)
        if found is None:
            found = self.lanes[key] = Lane(key, members, between_two=between_two)
        return found

    def enter(
        self, lane: Lane, kind: str, tensors: Any = None, options: Any = None, sized: bool = True
    ) -> Entry:
        """Records that a call begins.

        Args:
            lane: the channel of the call.
            kind: the kind of collective.
            tensors: this rank's tensor, or lists of tensors.
            options: PyTorch's options, with the operation or the root.
            sized: whether lengths must be equal at all ranks.
        """
        if lane.open:
            lane.settle()
        entry = Entry(lane, kind, tensors, options, sized)
        lane.open.append(entry)
        lane.recent.append(entry)
        self.kept.append(entry)
        return entry

    def started(self, entry: Entry, work: Any) -> Any:
        """Notes the work that a caller waits for, and returns the work to give to the caller."""
        return entry.started(work, self.follows)

    def close(self, key: str) -> None:
        """Forgets the channels of a group that ends, so that none of its objects stay alive."""
        for name in [name for name in self.lanes if name == key or name.startswith(f"{key}:")]:
            for entry in self.lanes.pop(name).open:
                entry.started(None, False)

    def close_all(self) -> None:
        """Forgets all channels."""
        for key in list(self.lanes):
            self.close(key)
