"""The collectives of this process: the last thousand, and which are in flight."""

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
"""Calls that a process keeps."""
_TOLD = 16
"""Calls of a lane whose texts are told to other ranks, by which they see what does not match."""


class Entry:
    """One call: what it is, and from when to when it was in flight, by `time.monotonic_ns`."""

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
        """Type and number of elements."""
        self.bytes = 0
        self._on_cpu = True
        if tensors is not None:
            self._measure(tensors)
        self.number = lane.entered = lane.entered + 1
        self.planned = False
        """Whether a plan of Gradweave's ran it, or gloo in the plan's trial."""
        self.root: int | None = None
        """The rank of the job that all wait for, where it is one."""
        self.error: str | None = None
        self._work: Any = self
        self.end_ns = 0
        """0: it is in flight."""
        self.begin_ns = self.waits_from_ns = time.monotonic_ns()
        """The latter is 0 while nobody waits for a call that nobody need wait for, as messages."""

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
        """What has to be equal at all ranks, in words."""
        words = [self.kind]
        if self.length is not None and self.sized:
            dtype, count = self.length
            words.append(f"{str(dtype).removeprefix('torch.')}[{count}]")
        words.append(_operation(self._options))
        return " ".join(filter(None, words))

    def started(self, work: Any, follow: bool) -> Any:
        """Notes what the caller waits for, and returns what it is to wait for.

        Args:
            work: PyTorch's; None where there is nothing to wait for.
            follow: whether to be told of its end, which costs the caller a little, rather than to
                look whether it has come.
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
        """Notes that it ended with an error."""
        self.error = str(error) or type(error).__name__
        self._end()

    def over(self) -> bool:
        """Whether it is not in flight any more."""
        if self.end_ns:
            return True
        work = self._work
        if work is self:  # the call has not returned
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
        except RuntimeError:  # it has none
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
            work.wait()  # which is over; on other devices it would order streams
        except Exception as error:  # as its caller sees it
            self.error = str(error) or type(error).__name__


def _flat(tensors: Any) -> Iterator[torch.Tensor]:
    if isinstance(tensors, torch.Tensor):
        yield tensors
    else:
        yield from itertools.chain.from_iterable(map(_flat, tensors))


_AWAITED = ("reduce_scatter",)
"""Collectives of gloo's that are over for PyTorch once their caller has waited for them."""
_OPERATIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def _operation(options: Any) -> str:
    """Of an options object of PyTorch's, the operation or the root."""
    operation, root = getattr(options, "reduceOp", None), getattr(options, "rootRank", None)
    words = [x.lower() for x in _OPERATIONS if operation == getattr(dist.ReduceOp, x)]
    words += [f"root {root}"] if root is not None else []
    return " ".join(words)


class Lane:
    """Calls that ranks number alike: the collectives of a group, or messages from one to another.

    Args:
        key: the same at all its members, and no other lane's.
        members: ranks of the job.
        between_two: whether it is messages from the first member to the second.
    """

    def __init__(self, key: str, members: tuple[int, ...], *, between_two: bool = False) -> None:
        self.key, self.members, self.between_two = key, members, between_two
        self.entered = 0
        """Calls of this process."""
        self.open: deque[Entry] = deque()
        """Those that were in flight when they were looked at last."""
        self.recent: deque[Entry] = deque(maxlen=_TOLD)
        self.failed: Entry | None = None
        """The last one that ended with an error."""
        self._settling = threading.Lock()

    def settle(self) -> None:
        """Leaves out what is over, unless another thread does so now."""
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
        """The first call that is in flight and waited for."""
        return next((entry for entry in self.open.copy() if entry.waits_from_ns), None)


class Recorder:
    """Keeps a process's calls, of all its groups.

    Args:
        follow: whether ends are noted when they come, rather than when somebody looks.
    """

    def __init__(self, *, follow: bool = False) -> None:
        self.follows = follow
        """Whether ends are noted when they come."""
        self.lanes: dict[str, Lane] = {}
        self.kept: deque[Entry] = deque(maxlen=KEPT)
        """In the order of their begin."""

    def lane(self, key: str, members: tuple[int, ...], *, between_two: bool = False) -> Lane:
        """The lane of a key, made when it is first asked for."""
        found = self.lanes.get(key)
        if found is None:
            found = self.lanes[key] = Lane(key, members, between_two=between_two)
        return found

    def enter(
        self, lane: Lane, kind: str, tensors: Any = None, options: Any = None, sized: bool = True
    ) -> Entry:
        """Notes that a call begins.

        Args:
            lane: whose.
            kind: of collective.
            tensors: of this rank, alone or in lists.
            options: PyTorch's, with the operation or the root.
            sized: whether lengths have to be equal at all ranks.
        """
        if lane.open:
            lane.settle()
        entry = Entry(lane, kind, tensors, options, sized)
        lane.open.append(entry)
        lane.recent.append(entry)
        self.kept.append(entry)
        return entry

    def started(self, entry: Entry, work: Any) -> Any:
        """Notes what the caller of a call waits for, and returns what it is to wait for."""
        return entry.started(work, self.follows)

    def close(self, key: str) -> None:
        """Forgets the lanes of a group that ends, so that nothing of it is held."""
        for name in [name for name in self.lanes if name == key or name.startswith(f"{key}:")]:
            for entry in self.lanes.pop(name).open:
                entry.started(None, False)

    def close_all(self) -> None:
        """Forgets all."""
        for key in list(self.lanes):
            self.close(key)
