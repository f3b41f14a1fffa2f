"""Liveness check of a group's processes, by the status that each writes to the store."""

import atexit
import contextlib
import dataclasses
import json
import logging
import sys
import time
import weakref
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar, cast

import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradweave.errors import RunError
from gradweave.execute.lost import lost_server
from gradweave.execute.torch_distributed.pending import PendingCollective
from gradweave.execute.torch_distributed.standing import Heard, Stand, silent
from gradweave.execute.torch_distributed.store import (
    StoreThread,
    group_timeout,
    store_holder,
    value_of,
)
from gradweave.processes.owned import owned
from gradweave.processes.peers import peer_value
from gradweave.topology.topology import Topology

GRACE_S = (2.0, 10.0)
"""Bounds on the time to wait for the status of other processes: half the group's timeout."""
_TICK_S = (0.25, 2.5)
"""Bounds on the time between two status reports of a process: a sixteenth of the timeout."""
_QUIET = 4
"""A process that has progressed within this fraction of the timeout writes nothing. So a training
step costs nothing, and a process that ends in time does not notice that the store has ended."""
NEARLY = 0.9
"""Fraction of the timeout after which a process without progress counts as silent, and after which
a process whose connection breaks may have given up waiting for another. It is below 1 because other
processes began to wait somewhat later than this process stopped progressing."""
_FAILED_S = 1.0
"""How long a process that ends with an error looks for the loss that caused it."""
_Answer = TypeVar("_Answer")
_log = logging.getLogger("gradweave")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The finding that all processes raise as an error."""

    lost: tuple[int, ...]
    """Ranks of the lost processes; empty if no process is to blame."""
    how: tuple[str, ...]
    """For each lost process, how it was lost; or the whole message."""

    def check(self, size: int) -> None:
        """Refuses a verdict that no process of a group of that size can have written.

        Raises:
            RunError: no such process can have written it.
        """
        if not (len(self.how) == max(len(self.lost), 1) and set(self.lost) <= set(range(size))):
            raise RunError(f"the verdict in the job's store names {self.lost} of {size} ranks")

    def error(self, topology: Topology) -> RunError:
        """The error, which names the first lost process, and then the others."""
        if not self.lost:
            return RunError(self.how[0])
        how = self.how[0]
        others = list(zip(self.lost, self.how, strict=True))[1:]
        named = {rank: topology.id_name(int(topology.servers[rank])) for rank, _ in others}
        if alike := [named[rank] for rank, other in others if other == how]:
            how += f"; likewise server{'s' * (len(alike) > 1)} {', '.join(alike)}"
        unlike = [(rank, other) for rank, other in others if other != self.how[0]]
        how += "".join(f"; server {named[rank]}: {other}" for rank, other in unlike)
        return lost_server(topology, self.lost[0], how)


class Liveness:
    """Reports the status of this process while it does not progress, and reads the verdict.

    There is one object per group, whichever collectives run on the group; it is kept as long as the
    group or one of them.

    Args:
        group: the process group.
        topology: the network whose servers are the group's processes, by rank.
    """

    @staticmethod
    def of(group: dist.ProcessGroup, topology: Topology) -> "Liveness":
        """The object of a group, made on first use."""
        if group not in _of_group:
            _of_group[group] = Liveness(group, topology)
        return _of_group[group]

    def __init__(self, group: dist.ProcessGroup, topology: Topology) -> None:
        self.size, self._rank = dist.get_world_size(group), dist.get_rank(group)
        self.holder = store_holder(group)
        """Rank of the process that holds the store, if it is in the group."""
        self.timeout_s = group_timeout(group).total_seconds()
        self.grace_s = min(max(self.timeout_s / 2, GRACE_S[0]), GRACE_S[1])
        self.call: PendingCollective | None = None
        """The collective in progress."""
        self._topology, self._group = topology, weakref.ref(group)
        self._calls = self._heartbeats = 0
        self._started: dict[str, int] = {}
        self._before = (0, False, self._started)
        self._progressed = time.monotonic()
        self.known: Verdict | None = None
        """The verdict, once this process has read it."""
        self._reported = False
        tick_s = min(max(self.timeout_s / 16, _TICK_S[0]), _TICK_S[1])
        this: weakref.ref[Liveness] = weakref.ref(self)

        def tick(store: distributed_c10d.Store) -> float:
            liveness = this()
            if liveness is not None:
                liveness._tick(store)
            return tick_s

        self._store = StoreThread(group, "gradweave", tick)
        atexit.register(owned(_leave), this)

    def ask(self, request: Callable[[distributed_c10d.Store], _Answer]) -> "Future[_Answer]":
        """Sends a request to the store's thread; see `StoreThread.ask`."""
        return self._store.ask(request)

    @contextlib.contextmanager
    def inside(self, call: PendingCollective) -> Iterator[None]:
        """Notes that this process is in a collective."""
        self._started = self._operations()
        self._calls += 1
        self.call = call
        try:
            yield
        finally:
            self.call = None
            self._progressed = time.monotonic()

    def stands(self, store: distributed_c10d.Store) -> dict[int, Stand]:
        """The status of each rank that has written one."""
        found, ranks = {}, set(range(self.size))
        for rank in ranks:
            written = value_of(store, f"stands {rank}")
            with contextlib.suppress(RunError):  # another program has written there
                if written is not None and set((stand := Stand.read(written)).awaits) <= ranks:
                    found[rank] = stand
        return found

    def decide(self, verdict: Verdict, store: distributed_c10d.Store) -> Verdict:
        """Writes a verdict, unless another process has; returns the verdict in the store."""
        mine = json.dumps(dataclasses.asdict(verdict))
        written = store.compare_set("lost", "", mine)
        try:
            return self._accept(written, store)
        except RunError:  # the value is not a verdict
            store.set("lost", mine)
            return self._accept(mine.encode(), store)

    def verdict(self, store: distributed_c10d.Store) -> Verdict | None:
        """The verdict in the store, if any."""
        written = value_of(store, "lost")
        with contextlib.suppress(RunError):  # the value is not a verdict
            return None if written is None else self._accept(written, store)

    def all_know(self, store: distributed_c10d.Store) -> bool:
        """Whether all remaining processes have read the verdict."""
        lost = self.known.lost if self.known else ()
        return store.check([f"knows {rank}" for rank in range(self.size) if rank not in lost])

    def evaluate(
        self,
        heard: Heard,
        gone: Mapping[int, Stand | None],
        long: bool,
        waiting: Collection[int] = (),
    ) -> Verdict | None:
        """The verdict that follows from the status of all ranks, or None if it is unclear yet.

        Args:
            heard: the status of the other ranks.
            gone: processes whose connections broke, with their last status.
            long: whether silent ranks have had enough time.
            waiting: ranks that wait, in addition to those in a collective.
        """
        present = {r: s for r, s in heard.present().items() if r not in gone}
        found = silent(present, gone, self.size, waiting)
        absent = [rank for rank in found if rank not in present]
        least_s = NEARLY * self.timeout_s
        late = [r for r in found if r in present and present[r].still_s >= least_s]
        if any(rank not in gone for rank in absent) and not long:
            return None
        if lost := sorted(absent + late):
            return Verdict(tuple(lost), tuple(self._how(rank in present) for rank in lost))
        if found or not long or any(s.still_s < self.timeout_s for s in present.values()):
            return None
        return Verdict((), (self._nothing_moves(),))

    def _how(self, there: bool) -> str:
        what = "it did not enter the collective" if there else "nothing was heard of it"
        more = ", although its process is alive" if there else ""
        return f"{what} for {self.timeout_s:g} s, the process group's timeout{more}"

    def _nothing_moves(self) -> str:
        return (
            f"torch.distributed: no server completed a message for {self.timeout_s:g} s, the "
            "process group's timeout, although all processes are alive; if the network is "
            "that slow, give init_process_group a longer timeout"
        )

    def _accept(self, written: bytes, store: distributed_c10d.Store) -> Verdict:
        if self.known is None:
            found: Verdict = peer_value(written, Verdict, "the verdict in the job's store")
            found.check(self.size)
            self.known = found
            store.set(f"knows {self._rank}", "")
        return self.known

    def _tick(self, store: distributed_c10d.Store) -> None:
        """Writes this process's status, unless it has progressed recently."""
        if self._group() not in distributed_c10d._world.pg_map:
            return  # the group was destroyed
        stand = self._stand()
        if stand.still_s < self.timeout_s / _QUIET:
            return
        store.set(f"stands {self._rank}", stand.written())
        if (verdict := self.verdict(store)) and not stand.inside:
            self._report(verdict)

    def _stand(self) -> Stand:
        call, operations = self.call, self._operations()
        now = self._calls, call is not None, operations
        if now != self._before:
            self._before, self._progressed = now, time.monotonic()
        self._heartbeats += 1
        return Stand(
            self._heartbeats,
            self._calls,
            call is not None,
            tuple(call.awaited()) if call else (),
            {group: count - self._started.get(group, 0) for group, count in operations.items()},
            call.still_s() if call else time.monotonic() - self._progressed,
        )

    def _operations(self) -> dict[str, int]:
        """The number of PyTorch operations that this process has started, by group of processes.

        The names of groups differ between processes, so groups are identified by their ranks.
        """
        counts: dict[str, int] = {}
        for group in list(distributed_c10d._world.pg_map):
            if group is self._group():
                continue  # its messages belong to the collectives here
            try:
                count = cast(Any, group)._get_sequence_number_for_group()
            except RuntimeError:  # a backend that does not count
                continue
            ranks = ",".join(map(str, dist.get_process_group_ranks(group)))
            key = f"{zlib.crc32(ranks.encode()):x}"
            counts[key] = counts.get(key, 0) + count
        return counts

    def _report(self, verdict: Verdict) -> None:
        """Logs which process was lost, if no collective is in progress that would raise it."""
        if not self._reported:
            self._reported = True
            _log.error("%s", verdict.error(self._topology))

    def _leave(self) -> None:
        """Stays for a while at the end of the process if others wait without knowing for which.

        In this situation, PyTorch's operation has given up waiting for the silent process. If this
        process left, and the store with it, the others would take this process for the lost one.
        """
        waited = self._stand().still_s > self.timeout_s / 2
        failed = isinstance(getattr(sys, "last_value", None), RuntimeError)  # an uncaught error
        try:
            verdict = self._last_news(waited, failed) if waited or failed else None
        except (TimeoutError, RuntimeError) as error:
            verdict = self.known or self._without_store(error, failed)
        if verdict is not None:
            self._report(verdict)
        self._store.close()

    def _without_store(self, error: Exception, failed: bool) -> Verdict | None:
        """The verdict if the process that holds the store is gone."""
        if not failed or self.holder is None or self.holder == self._rank:
            return None
        how = "does not answer" if isinstance(error, TimeoutError) else "ended"
        return Verdict((self.holder,), (f"the process that holds the store {how}",))

    def _last_news(self, waited: bool, failed: bool) -> Verdict | None:
        """The verdict; this process's own finding if nobody is in a collective any more."""
        begin, heard = time.monotonic(), Heard()
        while (for_s := time.monotonic() - begin) < (2 * self.grace_s if waited else _FAILED_S):
            verdict = self.ask(self.verdict).result(self.grace_s)
            if verdict and self.ask(self.all_know).result(self.grace_s):
                return verdict
            heard.hear(self.ask(self.stands).result(self.grace_s))
            wait = any(s.inside and s.calls > self._calls for s in heard.present().values())
            if waited and not verdict and not wait:
                long = for_s > self.grace_s
                if not failed:
                    return None
                if found := self.evaluate(heard, {}, long, {self._rank}):
                    return found
            time.sleep(_TICK_S[0])
        return self.known


def _leave(liveness: "weakref.ref[Liveness]") -> None:
    if (there := liveness()) is not None:
        there._leave()


_of_group: weakref.WeakKeyDictionary[dist.ProcessGroup, Liveness]
_of_group = weakref.WeakKeyDictionary()
