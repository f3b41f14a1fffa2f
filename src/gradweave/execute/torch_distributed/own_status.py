"""The status of this process: its progress through the planned collectives of a group."""

import contextlib
import time
import weakref
import zlib
from collections.abc import Iterator
from typing import Any, cast

import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradweave.execute.torch_distributed.pending import PendingCollective
from gradweave.execute.torch_distributed.status import LaneStatus, RankStatus

PLANNED = "planned"
"""Key of the channel of a group's planned collectives in the status of its ranks."""


class OwnStatus:
    """The status of this process in a group.

    Args:
        group: the process group.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = weakref.ref(group)
        self.call: PendingCollective | None = None
        """The planned collective in progress."""
        self.calls = 0
        """Number of planned collectives that it has entered."""
        self._heartbeats = 0
        self._started: dict[str, int] = {}
        self._before = (0, False, self._started)
        self._progressed = time.monotonic()

    @contextlib.contextmanager
    def inside(self, call: PendingCollective) -> Iterator[None]:
        """Notes that this process is in a collective."""
        self._started = self._operations()
        self.calls += 1
        self.call = call
        try:
            yield
        finally:
            self.call = None
            self._progressed = time.monotonic()

    def now(self) -> RankStatus:
        """The status to report."""
        call, operations = self.call, self._operations()
        now = self.calls, call is not None, operations
        if now != self._before:
            self._before, self._progressed = now, time.monotonic()
        self._heartbeats += 1
        if call is not None:  # and in no operation of PyTorch's
            idle_s, counts = call.still_s(), dict.fromkeys(operations, 0)
            planned = LaneStatus((), self.calls, self.calls, idle_s, awaits=tuple(call.awaited()))
        else:
            idle_s, planned = time.monotonic() - self._progressed, LaneStatus((), self.calls, None)
            counts = {key: max(n - self._started.get(key, 0), 0) for key, n in operations.items()}
        lanes = {  # comparable only among ranks that have entered as many collectives
            f"{key} {self.calls}": LaneStatus((), count, count or None, idle_s, assumed=True)
            for key, count in counts.items()
        }
        return RankStatus(self._heartbeats, {PLANNED: planned, **lanes}, idle_s)

    def _operations(self) -> dict[str, int]:
        """The number of PyTorch operations that this process has started, by group of processes.

        The names of groups differ between processes, so groups are identified by their ranks.
        """
        counts: dict[str, int] = {}
        for group in list(distributed_c10d._world.pg_map):
            if group is self._group():
                continue  # its messages belong to the planned collectives
            try:
                count = cast(Any, group)._get_sequence_number_for_group()
            except RuntimeError:  # a backend that does not count
                continue
            ranks = ",".join(map(str, dist.get_process_group_ranks(group)))
            key = f"{zlib.crc32(ranks.encode()):x}"
            counts[key] = counts.get(key, 0) + count
        return counts
