"""A process group that records its collectives, whatever carries them out."""

import functools
import json
import logging
import math
import uuid
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradweave.errors import GradweaveError
from gradweave.execute.torch_distributed.store import root_store
from gradweave.torch.monitor import Monitor
from gradweave.torch.progress import PlannedWork
from gradweave.torch.record import Entry, Recorder
from gradweave.torch.settings import Recording
from gradweave.torch.wrapper import GroupWrapper

JOB = "gradweave job"
"""Key in a job's store, below all prefixes: the prefix of what its ranks tell, and their number."""
_log = logging.getLogger("gradweave")


def recorded(group: dist.ProcessGroup, options: Any) -> dist.ProcessGroup:
    """A group, or one that records its calls where rank 0 of the group wants that; collective.

    Args:
        group: of any kind.
        options: PyTorch's `DistributedBackendOptions`, by which it was made.
    """
    if options.group_size == 1:
        return group
    if options.group_rank == 0:
        text = _wanted()
        options.store.set("gradweave recording", text)
    else:
        text = options.store.get("gradweave recording")
    key, asked = json.loads(text)
    if asked is None:
        return group
    members = tuple(options.global_ranks_in_group) or tuple(range(options.group_size))
    return RecordedGroup(group, _process.of(Recording.read(asked), options), key, members)


def _wanted() -> str:
    """A key for the group, and what is wanted of it."""
    asked = Recording()
    try:
        asked = Recording.of()
    except GradweaveError as error:
        _log.warning("nothing is recorded: %s", error)
    return json.dumps([uuid.uuid4().hex[:8], asked.written() if asked.wanted else None])


class _Process:
    """What the recorded groups of a process share, from the first to the end of the last."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self._monitor: Monitor | None = None
        self._groups: set[str] = set()

    def of(self, asked: Recording, options: Any) -> "_Process":
        """It, begun where it has not been."""
        if self.recorder is None:
            self._begin(asked, options)
        return self

    def joined(self, key: str) -> Recorder:
        """Notes that there is a group; what its calls are kept in."""
        assert self.recorder is not None
        self._groups.add(key)
        return self.recorder

    def ended(self, key: str) -> None:
        """Notes that a group has ended."""
        self._groups.discard(key)
        if self.recorder is not None and not self._groups:
            recorder, monitor = self.recorder, self._monitor
            self.recorder = self._monitor = None
            if monitor is not None:
                monitor.close()
            recorder.close_all()
        elif self.recorder is not None:
            self.recorder.close(key)

    def _begin(self, asked: Recording, options: Any) -> None:
        here = dist.is_initialized()
        store = distributed_c10d._get_default_store() if here else options.store
        rank = dist.get_rank() if here else options.group_rank
        size = dist.get_world_size() if here else options.group_size
        name = store.compare_set("gradweave job", "", uuid.uuid4().hex[:8]).decode()
        root = root_store(store)
        if rank == 0:
            root.set(JOB, json.dumps([f"gradweave {name}", size]))
        self.recorder = Recorder(follow=asked.trace is not None)
        self._monitor = Monitor(
            self.recorder,
            distributed_c10d.PrefixStore(f"gradweave {name}", root),
            rank,
            size,
            asked.slow_after_s or math.inf,
        )


_process = _Process()


class RecordedGroup(GroupWrapper):
    """A process group that hands its calls on to another one, and records them.

    Args:
        inner: the other one.
        process: what the groups of this process share.
        key: of this group, the same at all its ranks.
        members: ranks of the job, by their ranks in the group.
    """

    def __init__(
        self, inner: dist.ProcessGroup, process: _Process, key: str, members: tuple[int, ...]
    ) -> None:
        super().__init__(inner)
        self._key, self._members, self._process = key, members, process
        self._recorder = process.joined(key)
        self._lane = self._recorder.lane(key, members)

    def __getattr__(self, name: str) -> Any:
        """What the other one has besides, such as its choices of plans."""
        if name.startswith("__") or "_inner" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._inner, name)

    def shutdown(self) -> None:
        """Ends it."""
        self._process.ended(self._key)
        self._inner.shutdown()

    def abort(self) -> None:
        """Ends it, and what is in flight."""
        self._process.ended(self._key)
        self._inner.abort()

    def _enter(self, call: "_Call", args: tuple, kwargs: dict) -> Entry:
        tensors = args[call.place] if call.place is not None and call.place < len(args) else None
        if call.peer:
            here, there = self._members[self.rank()], self._members[args[1]]
            pair = (here, there) if call.peer == "to" else (there, here)
            key = f"{self._key}:{pair[0]}>{pair[1]}"
            lane = self._recorder.lane(key, pair, between_two=True)
            return self._recorder.enter(lane, call.kind, tensors)
        options = kwargs.get("opts", args[-1] if args else None)
        entry = self._recorder.enter(self._lane, call.kind, tensors, options, call.sized)
        if call.from_root:
            entry.root = self._members[getattr(options, "rootRank", 0)]
        return entry


class _Call(NamedTuple):
    """A method of process groups."""

    kind: str
    place: int | None = 0
    """Of the argument whose length has to be equal at all ranks."""
    sized: bool = True
    """Whether it has to be."""
    from_root: bool = False
    """Whether the root alone is waited for."""
    peer: str = ""
    """``to`` or ``from``, where it is a message."""


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
"""Methods of process groups by the names that they have in one PyTorch or another, and how ranks
tell calls of them apart."""


def _recording(name: str, call: _Call) -> Any:
    def method(self: RecordedGroup, *args: Any, **kwargs: Any) -> Any:
        entry = self._enter(call, args, kwargs)
        try:
            work = getattr(self._inner, name)(*args, **kwargs)
        except BaseException as error:
            entry.failed(error)
            raise
        entry.planned = isinstance(work, PlannedWork)
        self._recorder.started(entry, work)
        return work

    return functools.update_wrapper(method, getattr(dist.ProcessGroup, name))


for _name, _call in _CALLS.items():
    if hasattr(dist.ProcessGroup, _name):
        setattr(RecordedGroup, _name, _recording(_name, _call))
