"""Liveness check of a group's processes: where each stands, as it writes to the store."""

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
from gradweave.execute.torch_distributed.store import StoreThread, group_timeout, store_holder
from gradweave.topology.topology import Topology

GRACE_S = (2.0, 10.0)
"""Bounds on the time for who is awaited to be heard, which is half the group's timeout."""
_TICK_S = (0.25, 2.5)
"""Bounds on the time between two times that a process tells where it stands, which is a sixteenth
of the timeout."""
_QUIET = 4
"""A process that has progressed within this fraction of the timeout says nothing: a step costs
nothing, and who ends a training in time does not hear of a store that has ended before."""
NEARLY = 0.9
"""Of the timeout: after that, who does not progress is silent, and whose connection breaks may have
given up waiting for someone. Others began to wait after it had begun to do whatever keeps it."""
_FAILED_S = 1.0
"""How long a process that ends with an error looks whether others know whose loss is behind it."""
_Answer = TypeVar("_Answer")
_log = logging.getLogger("gradweave")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What all processes raise."""

    lost: tuple[int, ...]
    """Ranks; empty where no process is to blame."""
    how: tuple[str, ...]
    """Of each, or the whole message."""

    def error(self, topology: Topology) -> RunError:
        """It names the first one, and then the others."""
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
    """Tells where this process stands while it does not progress, and hears of the verdict.

    One for a group, whichever collectives run on it; kept as long as the group or one of them is.

    Args:
        group: the process group.
        topology: whose servers are its processes, by rank.
    """

    @staticmethod
    def of(group: dist.ProcessGroup, topology: Topology) -> "Liveness":
        """The one of a group."""
        if group not in _of_group:
            _of_group[group] = Liveness(group, topology)
        return _of_group[group]

    def __init__(self, group: dist.ProcessGroup, topology: Topology) -> None:
        self.size, self._rank = dist.get_world_size(group), dist.get_rank(group)
        self.holder = store_holder(group)
        """Rank of the process that holds the store, where it is one of the group."""
        self.timeout_s = group_timeout(group).total_seconds()
        self.grace_s = min(max(self.timeout_s / 2, GRACE_S[0]), GRACE_S[1])
        self.call: PendingCollective | None = None
        """The collective under way."""
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
        atexit.register(_leave, this)

    def ask(self, request: Callable[[distributed_c10d.Store], _Answer]) -> "Future[_Answer]":
        """As the store's thread has it."""
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
        """Where those stand that have written it."""
        keys = {rank: f"stands {rank}" for rank in range(self.size)}
        return {r: Stand.read(store.get(k)) for r, k in keys.items() if store.check([k])}

    def decide(self, verdict: Verdict, store: distributed_c10d.Store) -> Verdict:
        """Writes a verdict, unless another process has; returns the one in the store."""
        return self._accept(
            store.compare_set("lost", "", json.dumps(dataclasses.asdict(verdict))), store
        )

    def verdict(self, store: distributed_c10d.Store) -> Verdict | None:
        """The one in the store."""
        return self._accept(store.get("lost"), store) if store.check(["lost"]) else None

    def all_know(self, store: distributed_c10d.Store) -> bool:
        """Whether all that are left have read the verdict."""
        lost = self.known.lost if self.known else ()
        return store.add("knowing", 0) >= self.size - len(lost)

    def evaluate(
        self,
        heard: Heard,
        gone: Mapping[int, Stand | None],
        long: bool,
        waiting: Collection[int] = (),
    ) -> Verdict | None:
        """The verdict by what was heard; None where it cannot be told yet.

        Args:
            heard: of the others.
            gone: processes whose connections broke, and where they last stood.
            long: whether who was not heard until now has had long enough.
            waiting: ranks that wait, besides those in a collective.
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
        more = ", though its process is there" if there else ""
        return f"{what} for {self.timeout_s:g} s, the process group's timeout{more}"

    def _nothing_moves(self) -> str:
        return (
            f"torch.distributed: no server completed a message for {self.timeout_s:g} s, the "
            "process group's timeout, though the processes of all are there; if the network is "
            "that slow, give init_process_group a longer timeout"
        )

    def _accept(self, written: bytes, store: distributed_c10d.Store) -> Verdict:
        if self.known is None:
            fields = json.loads(written)
            self.known = Verdict(tuple(fields["lost"]), tuple(fields["how"]))
            store.add("knowing", 1)
        return self.known

    def _tick(self, store: distributed_c10d.Store) -> None:
        """Tells where this process stands, unless it has progressed lately."""
        if self._group() not in distributed_c10d._world.pg_map:
            return  # it was destroyed
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
        """How many of PyTorch's own operations this process has started, by groups of processes.

        Groups have other names in other processes, so their ranks tell which they are.
        """
        counts: dict[str, int] = {}
        for group in list(distributed_c10d._world.pg_map):
            if group is self._group():
                continue  # its messages are those of the collectives here
            try:
                count = cast(Any, group)._get_sequence_number_for_group()
            except RuntimeError:  # a backend that does not count
                continue
            ranks = ",".join(map(str, dist.get_process_group_ranks(group)))
            key = f"{zlib.crc32(ranks.encode()):x}"
            counts[key] = counts.get(key, 0) + count
        return counts

    def _report(self, verdict: Verdict) -> None:
        """Reports who was lost where no collective is under way that would raise it."""
        if not self._reported:
            self._reported = True
            _log.error("%s", verdict.error(self._topology))

    def _leave(self) -> None:
        """At the end of the process: stays a while where others wait and do not know for whom.

        PyTorch's own operation, which waited for the silent one too, has given up. If this process
        went away, and the store with it, the others would take it for the lost one.
        """
        waited = self._stand().still_s > self.timeout_s / 2
        failed = isinstance(getattr(sys, "last_value", None), RuntimeError)  # was not caught
        try:
            verdict = self._last_news(waited, failed) if waited or failed else None
        except (TimeoutError, RuntimeError) as error:
            verdict = self.known or self._without_store(error, failed)
        if verdict is not None:
            self._report(verdict)
        self._store.close()

    def _without_store(self, error: Exception, failed: bool) -> Verdict | None:
        """What to say where the process that holds the store is not there."""
        if not failed or self.holder is None or self.holder == self._rank:
            return None
        how = "does not answer" if isinstance(error, TimeoutError) else "ended"
        return Verdict((self.holder,), (f"the process that holds the store {how}",))

    def _last_news(self, waited: bool, failed: bool) -> Verdict | None:
        """The verdict; where nobody is in a collective any more, what this process thinks."""
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
