"""A process group that records its collectives, whichever backend runs them."""

import dataclasses
import functools
import json
import logging
import math
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradweave.errors import GradweaveError
from gradweave.execute.torch_distributed.store import root_store
from gradweave.processes.peers import MOST_TEXT, Text, peer_value
from gradweave.torch.kept import TraceFile, kept
from gradweave.torch.machine import machine
from gradweave.torch.monitor import Monitor
from gradweave.torch.progress import PlannedWork
from gradweave.torch.record import Entry, Recorder
from gradweave.torch.settings import Recording
from gradweave.torch.wrapper import METHODS, GroupWrapper, untraced

JOB = "gradweave job"
"""Key in a job's store, without any prefix; its value is the prefix of the ranks' status and the
number of ranks."""
_log = logging.getLogger("gradweave")


def group_record(options: Any) -> "GroupRecord | None":
    """The recorder for the calls of a new group, if the group's rank 0 wants one; collective.

    Args:
        options: PyTorch's `DistributedBackendOptions` for the group.
    """
    if options.group_size == 1:
        return None
    if options.group_rank == 0:
        text = _wanted()
        options.store.set("gradweave recording", text)
    else:
        text = options.store.get("gradweave recording")
    key, asked = peer_value(text, tuple[Text, Text | None], "the recording settings of rank 0")
    if asked is None:
        return None
    members = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    recorder = _process.joined(key, Recording.read(asked), options)
    return GroupRecord(recorder, key, members, functools.partial(_process.ended, key))


@dataclasses.dataclass(frozen=True)
class GroupRecord:
    """Where to record the calls of a group."""

    recorder: Recorder
    key: str
    """A name of the group, the same at all its ranks."""
    members: tuple[int, ...]
    """The job's ranks, in the order of their ranks in the group."""
    end: Callable[[], None] = lambda: None
    """Must be called when the group ends."""


def _wanted() -> str:
    """A key for the group, and the requested recording as JSON."""
    asked = Recording()
    try:
        asked = Recording.of()
    except GradweaveError as error:
        _log.warning("nothing is recorded: %s", error)
    return json.dumps([uuid.uuid4().hex[:8], asked.written() if asked.wanted else None])


class _Process:
    """The state shared by a process's recorded groups, from the first to the end of the last."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self._monitor: Monitor | None = None
        self._trace: TraceFile | None = None
        self._groups: set[str] = set()

    def joined(self, key: str, asked: Recording, options: Any) -> Recorder:
        """Registers a group, and starts recording with the first group. Returns the recorder."""
        if self.recorder is None:
            self._begin(key, asked, options)
        assert self.recorder is not None
        self._groups.add(key)
        return self.recorder

    def ended(self, key: str) -> None:
        """Removes a group that has ended, and stops the recording with the last group."""
        self._groups.discard(key)
        if self.recorder is not None and not self._groups:
            recorder, monitor = self.recorder, self._monitor
            self.recorder = self._monitor = None
            if monitor is not None:
                monitor.close()
            if self._trace is not None:
                self._trace.close()
                self._trace = None
            recorder.close_all()
        elif self.recorder is not None:
            self.recorder.close(key)

    def _begin(self, key: str, asked: Recording, options: Any) -> None:
        here = dist.is_initialized()
        store = distributed_c10d._get_default_store() if here else options.store
        rank = dist.get_rank() if here else options.group_rank
        size = dist.get_world_size() if here else options.group_size
        name = key
        if here:  # the ranks' first recorded groups may differ
            name = store.compare_set("gradweave job", "", key).decode(errors="replace")[:MOST_TEXT]
        root = root_store(store)
        if rank == 0:
            root.set(JOB, json.dumps([f"gradweave {name}", size]))
        self.recorder = recorder = Recorder(follow=asked.trace is not None)
        about = recorder, rank, size, machine()
        if asked.trace is not None:
            self._trace = TraceFile(asked.trace, *about)
        self._monitor = Monitor(
            recorder,
            distributed_c10d.PrefixStore(f"gradweave {name}", root),
            rank,
            size,
            asked.slow_after_s or math.inf,
            lambda: kept(*about).written(),
        )


_process = _Process()


class RecordedGroup(GroupWrapper):
    """A process group that records its calls.

    Args:
        record: where to record them.
        inner: the group that carries them out.
        more: further arguments, for a class combined with this class.
    """

    def __init__(self, record: GroupRecord, inner: dist.ProcessGroup, *more: Any) -> None:
        super().__init__(inner, *more)
        self._record = record
        self._lane = record.recorder.lane(record.key, record.members)

    def shutdown(self) -> None:
        """Ends the group."""
        self._record.end()
        super().shutdown()

    def abort(self) -> None:
        """Ends the group and all calls in flight."""
        self._record.end()
        super().abort()

    def _enter(self, call: "_Call", args: tuple, kwargs: dict) -> Entry:
        record = self._record
        tensors = args[call.place] if call.place is not None and call.place < len(args) else None
        if call.peer:
            here, there = record.members[self.rank()], record.members[args[1]]
            pair = (here, there) if call.peer == "to" else (there, here)
            key = f"{record.key}:{pair[0]}>{pair[1]}"
            lane = record.recorder.lane(key, pair, between_two=True)
            return record.recorder.enter(lane, call.kind, tensors)
        options = kwargs.get("opts", args[-1] if args else None)
        entry = record.recorder.enter(self._lane, call.kind, tensors, options, call.sized)
        if call.from_root:
            entry.root = record.members[getattr(options, "rootRank", 0)]
        return entry


class _Call(NamedTuple):
    """How to record one method of a process group."""

    kind: str
    place: int | None = 0
    """Position of the argument with the tensors."""
    sized: bool = True
    """Whether the tensors' length must be equal at all ranks."""
    from_root: bool = False
    """Whether the ranks wait only for the root."""
    peer: str = ""
    """``to`` or ``from`` if the call is a message."""


_GATHER, _SCATTER = _Call("all_gather", 1), _Call("reduce_scatter")
_CALLS = {
    "all_gather_single": _GATHER,
    "_allgather_base": _GATHER,
    "all_gather_single_coalesced": _GATHER,
    "allgather_into_tensor_coalesced": _GATHER,
    "allgather": _Call("all_gather", 1, sized=False),
    "allgather_coalesced": _Call("all_gather", 1, sized=False),
    "allreduce": _Call("all_reduce"),
    "allreduce_coalesced": _Call("all_reduce"),
    "alltoall": _Call("all_to_all", 1, sized=False),
    "all_to_all_single": _Call("all_to_all", 1, sized=False),
    "alltoall_base": _Call("all_to_all", 1, sized=False),
    "barrier": _Call("barrier", None),
    "broadcast": _Call("broadcast", from_root=True),
    "gather": _Call("gather", 1),
    "recv": _Call("message", peer="from"),
    "reduce": _Call("reduce"),
    "reduce_scatter": _SCATTER,
    "reduce_scatter_single": _SCATTER,
    "_reduce_scatter_base": _SCATTER,
    "reduce_scatter_single_coalesced": _SCATTER,
    "reduce_scatter_tensor_coalesced": _SCATTER,
    "scatter": _Call("scatter", from_root=True),
    "send": _Call("message", peer="to"),
}
"""How to record each method."""


def _recording(name: str, call: _Call) -> Any:
    def method(self: RecordedGroup, *args: Any, **kwargs: Any) -> Any:
        entry = self._enter(call, args, kwargs)
        try:
            work = getattr(super(RecordedGroup, self), name)(*args, **kwargs)
        except BaseException as error:
            entry.failed(error)
            raise
        entry.planned = isinstance(work, PlannedWork)
        return self._record.recorder.started(entry, work)

    return functools.update_wrapper(method, getattr(dist.ProcessGroup, name))


for _name in METHODS:
    if hasattr(dist.ProcessGroup, _name):
        setattr(RecordedGroup, _name, _recording(_name, _CALLS[_name]))
untraced(RecordedGroup)
