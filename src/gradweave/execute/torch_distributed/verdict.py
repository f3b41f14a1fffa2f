"""The verdict that servers of a group are lost: how it follows, and how all processes share it."""

import contextlib
import dataclasses
import json
from collections.abc import Collection, Mapping
from types import MappingProxyType

from torch.distributed import distributed_c10d

from gradweave.errors import RunError
from gradweave.execute.lost import lost_server
from gradweave.execute.torch_distributed.own_status import PLANNED
from gradweave.execute.torch_distributed.status import Heard, RankStatus
from gradweave.execute.torch_distributed.store import value_of
from gradweave.execute.torch_distributed.waits import ends
from gradweave.processes.peers import peer_value
from gradweave.topology.topology import Topology

NEARLY = 0.9
"""Fraction of the timeout after which a process without progress counts as silent, and after which
a process whose connection breaks may have given up waiting for another. It is below 1 because other
processes began to wait somewhat later than this process stopped progressing."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The finding that all processes raise as an error."""

    lost: tuple[int, ...]
    """Ranks of the lost processes; empty if all processes are alive."""
    how: tuple[str, ...]
    """For each lost process, how it was lost; or the whole message."""

    @classmethod
    def read(cls, written: bytes, size: int) -> "Verdict":
        """Reads a verdict from JSON.

        Raises:
            RunError: no process of a group of that size can have written it.
        """
        read: Verdict = peer_value(written, cls, "the verdict in the job's store")
        if len(read.how) == max(len(read.lost), 1) and set(read.lost) <= set(range(size)):
            return read
        raise RunError(f"the verdict in the job's store names {read.lost} of {size} ranks")

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


class SharedVerdict:
    """A group's verdict in its store: the first one written counts.

    Args:
        rank: rank of this process.
        size: number of ranks in the group.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self.known: Verdict | None = None
        """The verdict, once this process has read it."""

    def read(self, store: distributed_c10d.Store) -> Verdict | None:
        """The verdict in the store, if any."""
        written = value_of(store, "lost")
        with contextlib.suppress(RunError):  # the value is not a verdict
            return None if written is None else self._accept(written, store)

    def decide(self, verdict: Verdict, store: distributed_c10d.Store) -> Verdict:
        """Writes a verdict, unless another process has; returns the verdict in the store."""
        mine = json.dumps(dataclasses.asdict(verdict))
        written = store.compare_set("lost", "", mine)
        try:
            return self._accept(written, store)
        except RunError:  # the value is not a verdict
            store.set("lost", mine)
            return self._accept(mine.encode(), store)

    def all_know(self, store: distributed_c10d.Store) -> bool:
        """Whether all remaining processes have read the verdict."""
        lost = self.known.lost if self.known else ()
        return store.check([f"knows {rank}" for rank in range(self._size) if rank not in lost])

    def _accept(self, written: bytes, store: distributed_c10d.Store) -> Verdict:
        if self.known is None:
            self.known = Verdict.read(written, self._size)
            store.set(f"knows {self._rank}", "")
        return self.known


@dataclasses.dataclass(frozen=True)
class Judge:
    """Finds the silent processes of a group, from the status of those that wait.

    A process in a collective waits for those whose messages it lacks, unless they have done their
    part. A process outside, in an operation of PyTorch's, waits for those that have started fewer
    such operations since the last collective. That is right for collectives, which all members of a
    group start in turn; messages between two ranks are counted as well, and may mislead. A process
    is silent if others wait for it and nothing is heard of it, or if its connection broke, or if it
    has been outside for the timeout, and if it waits for nobody itself.
    """

    size: int
    """Number of ranks in the group."""
    timeout_s: float
    """The group's timeout."""

    def verdict(
        self,
        heard: Heard,
        *,
        long: bool,
        gone: Mapping[int, RankStatus | None] = MappingProxyType({}),
        waiting: Collection[int] = (),
    ) -> Verdict | None:
        """The verdict that follows from the status of all ranks, or None if it is unclear yet.

        Args:
            heard: the status of the other ranks.
            long: whether silent ranks have had enough time.
            gone: processes whose connections broke, with their last status if known.
            waiting: ranks that wait, in addition to those in a collective.
        """
        present = {r: s for r, s in heard.present().items() if r not in gone}
        found = self.silent(present, gone, waiting)
        absent = [rank for rank in found if rank not in present]
        least_s = NEARLY * self.timeout_s
        late = [r for r in found if r in present and present[r].idle_s >= least_s]
        if any(rank not in gone for rank in absent) and not long:
            return None
        if lost := sorted(absent + late):
            return Verdict(tuple(lost), tuple(self._how(rank in present) for rank in lost))
        if found or not long or any(s.idle_s < self.timeout_s for s in present.values()):
            return None
        text = "torch.distributed: no server completed a message for "
        text += f"{self._timeout}, although all processes are alive; if the network is "
        return Verdict((), (f"{text}that slow, give init_process_group a longer timeout",))

    def silent(
        self,
        present: Mapping[int, RankStatus],
        gone: Mapping[int, RankStatus | None],
        waiting: Collection[int] = (),
    ) -> list[int]:
        """Ranks that others wait for, and that wait for nobody.

        Args:
            present: status of the live processes, by rank.
            gone: see `verdict`.
            waiting: see `verdict`.
        """
        wait = {r for r, status in present.items() if PLANNED in dict(status.open)} | set(waiting)
        able = {**{r: status for r, status in gone.items() if status is not None}, **present}
        known = {rank: present.get(rank) for rank in range(self.size)}
        return sorted(ends(wait, able, known) - wait)

    def _how(self, there: bool) -> str:
        what = "it did not enter the collective" if there else "nothing was heard of it"
        return f"{what} for {self._timeout}{', although its process is alive' * there}"

    @property
    def _timeout(self) -> str:
        return f"{self.timeout_s:g} s, the process group's timeout"
