"""The servers that take part in a job's collectives, agreed on through its store.

The list of members is numbered. Each change (a server is lost, or one that returned is admitted)
is proposed under the next number, and the first proposal that reaches the store counts. So all
servers go through the same lists in the same order, whatever each of them has seen.
"""

import dataclasses
import functools
import json
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from torch.distributed import distributed_c10d

from gradweave.errors import RunError
from gradweave.execute.torch_distributed.store import StoreThread, root_store, value_of
from gradweave.processes.peers import Count, peer_value

FIRST = "report"
"""Name of the first meeting of each list, to which a server brings how far it has come."""
_BEAT_S = 0.25
"""Time between two signs of life of a server."""
DEAD_S = 4.0
"""Time without a sign of life after which a server that others wait for counts as lost. Threads of
a busy process may be late by a second or two."""
_POLL_S = 0.02
_ANSWER_S = 60.0
"""Timeout for an answer of the store."""
_Answer = TypeVar("_Answer")


@dataclasses.dataclass(frozen=True)
class Membership:
    """One list of members."""

    ranks: tuple[Count, ...]
    """The members' ranks, ascending."""
    joined: tuple[Count, ...] = ()
    """The ranks of members that still need the others' state."""

    def without(self, lost: Collection[int]) -> "Membership":
        """The list without some members."""
        both = (self.ranks, self.joined)
        return Membership(*(tuple(rank for rank in ranks if rank not in lost) for ranks in both))

    def written(self) -> str:
        """The list as JSON."""
        return json.dumps(dataclasses.asdict(self))


class LeftOutError(RunError):
    """The other servers continue without this server."""


class Members:
    """This server's view of the members.

    A thread writes a sign of life to the store, and reads which servers ask to be admitted.

    Args:
        store: the store of the job, which must outlive the servers that may be lost.
        name: distinguishes several `Members` in a store.
        rank: rank of this server.
        size: number of servers of the whole job.
        block: number of consecutive ranks that are lost together: the shards of one replica.
        timeout_s: how long a living server may take to come to a meeting.
    """

    def __init__(
        self,
        store: distributed_c10d.Store,
        name: str,
        rank: int,
        size: int,
        *,
        block: int = 1,
        timeout_s: float,
    ) -> None:
        self.rank, self.size, self._block, self._timeout_s = rank, size, block, timeout_s
        self.place = distributed_c10d.PrefixStore(f"gradweave members {name}", root_store(store))
        """The part of the store that the members share."""
        self.number, self.membership = 0, Membership(tuple(range(size)))
        self.asking: frozenset[int] = frozenset()
        """Servers outside the membership that ask to be admitted."""
        self.notice: Callable[[Callable[[str], None]], None] = lambda bring: None
        """Called in the thread while the store has a newer list than `membership`, with a function
        that brings something to its first meeting (`FIRST`)."""
        self._alive = True
        """Whether to write signs of life."""
        this, beats = weakref.ref(self), 0

        def tick(store: distributed_c10d.Store) -> float:
            nonlocal beats
            if (members := this()) is not None:
                beats += 1
                members._tick(store, beats)
            return _BEAT_S

        self._asks: dict[int, bytes | None] = {}
        self._thread = StoreThread(self.place, "members", tick)
        self.close = self._thread.close
        """Ends the thread."""

    @classmethod
    def returning(
        cls,
        store: distributed_c10d.Store,
        name: str,
        rank: int,
        size: int,
        *,
        block: int = 1,
        timeout_s: float,
    ) -> "Members":
        """The members' list after they have admitted this server, which was lost or is new.

        Raises:
            RunError: they have not within the timeout.
        """
        made = cls(store, name, rank, size, block=block, timeout_s=timeout_s)
        made.number, made._alive = -1, False  # must not be taken for the lost process
        while made._follow() is not None:
            pass
        try:
            made.be_admitted()
        except BaseException:
            made.close()
            raise
        return made

    def be_admitted(self) -> None:
        """Asks to be a member, and waits for the list that has this server.

        Raises:
            RunError: the others have not admitted it within the timeout.
        """
        until = time.monotonic() + self._timeout_s
        while (membership := self._follow()) is None or self.rank not in membership.joined:
            self._ask(lambda store: store.set(_request(self.rank), str(time.time_ns())))
            if time.monotonic() > until:
                raise RunError(
                    f"rank {self.rank} was not admitted within {self._timeout_s:g} s: the other "
                    "servers have ended, or have no optimizer given that marks the end of a step"
                )
            time.sleep(_BEAT_S / 4)
        self._alive = True

    def _next(self) -> Membership | None:
        """The next list, or None if no server has proposed one."""
        written = self._ask(lambda store: value_of(store, _membership(self.number + 1)))
        return None if written is None else self._read(written)

    def _follow(self) -> Membership | None:
        """Goes on to the next list if there is one, whether or not it has this server."""
        if (membership := self._next()) is not None:
            self.number, self.membership = self.number + 1, membership
        return membership

    def _read(self, written: bytes) -> Membership:
        read: Membership = peer_value(written, Membership, "the list of members in the job's store")
        if not set(read.joined) <= set(read.ranks) <= set(range(self.size)) or not read.ranks:
            raise RunError(f"the list of members in the job's store names {read.ranks}")
        return read

    def propose(self, membership: Membership) -> None:
        """Goes on to the next list, which is the first that any server has proposed.

        Raises:
            LeftOutError: it does not have this server.
        """
        key, mine = _membership(self.number + 1), membership.written()

        def first(store: distributed_c10d.Store) -> bytes:
            if self.number == 0:  # for servers that come later
                store.compare_set(_membership(0), "", self.membership.written())
            return store.compare_set(key, "", mine)

        self._go_on(self._read(self._ask(first)))

    def _go_on(self, membership: Membership) -> None:
        self.number, self.membership = self.number + 1, membership
        self.asking -= set(membership.ranks)
        if self.rank not in membership.ranks:
            self._alive = False
            raise LeftOutError(
                f"rank {self.rank} was taken for lost: the other servers continue without it"
            )

    def advance(self) -> bool:
        """Goes on to the next list, if another server has proposed one.

        Raises:
            LeftOutError: it does not have this server.
        """
        if (membership := self._next()) is None:
            return False
        self._go_on(membership)
        return True

    def settled(self) -> None:
        """Notes that all members have the others' state."""
        self.membership = dataclasses.replace(self.membership, joined=())

    def lose(self, lost: Collection[int]) -> None:
        """Goes on to a list without lost servers, and those that are lost with them.

        Raises:
            LeftOutError: it does not have this server.
        """
        gone = self.together(lost)
        while gone & set(self.membership.ranks):
            self.propose(self.membership.without(gone))
            gone -= set(self.membership.joined)  # another process that has taken the place

    def together(self, lost: Collection[int]) -> set[int]:
        """The servers that are lost if these are."""
        blocks = {rank // self._block for rank in lost}
        return {rank for rank in range(self.size) if rank // self._block in blocks}

    def meet(self, what: str, mine: str) -> dict[int, bytes] | None:
        """Waits until all members have come, and tells what each of them brought.

        Args:
            what: name of the meeting; each is held once per list.
            mine: what this server brings.

        Returns:
            Their contributions, or None if the list has changed because another member is lost.

        Raises:
            LeftOutError: the new list does not have this server.
        """
        keys = {rank: f"{what} {self.number} {rank}" for rank in self.membership.ranks}
        self._ask(lambda store: store.set(keys[self.rank], mine))
        begin, beats = time.monotonic(), _Beats()
        while True:
            if self.advance():
                return None
            if self._ask(lambda store: store.check(list(keys.values()))):
                found = self._ask(lambda store: store.multi_get(list(keys.values())))
                return dict(zip(keys, found, strict=True))
            missing = self._ask(functools.partial(_absent, keys))
            late = time.monotonic() - begin > self._timeout_s
            lost = missing if late else beats.ended(self._ask(functools.partial(_beats, missing)))
            if lost:
                self.lose(lost)
                return None
            time.sleep(_POLL_S)

    def _ask(self, request: Callable[[distributed_c10d.Store], _Answer]) -> _Answer:
        try:
            return self._thread.ask(request).result(_ANSWER_S)
        except RunError:
            raise
        except (RuntimeError, TimeoutError) as error:
            raise RunError(
                "the job's store has ended or does not answer, so that the servers cannot agree "
                f"who is left: {error}"
            ) from error

    def _tick(self, store: distributed_c10d.Store, beats: int) -> None:
        if not self._alive:
            return
        store.set(_beat(self.rank), str(beats))
        newest = self.number
        while store.check([_membership(newest + 1)]):
            newest += 1
        if newest > self.number:
            self.notice(lambda mine: store.set(f"{FIRST} {newest} {self.rank}", mine))
        others = set(range(self.size)) - set(self.membership.ranks)
        asks = {rank: value_of(store, _request(rank)) for rank in others}
        # A request that does not change any more is that of a process that has ended.
        self.asking = frozenset(r for r in asks if r in self._asks and asks[r] != self._asks[r])
        self._asks = asks


class _Beats:
    """Signs of life, read repeatedly."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[bytes | None, float]] = {}

    def ended(self, beats: dict[int, bytes | None]) -> list[int]:
        """The servers whose last sign of life is too old."""
        now = time.monotonic()
        for rank, beat in beats.items():
            if rank not in self._seen or self._seen[rank][0] != beat:
                self._seen[rank] = beat, now
        return [rank for rank in beats if now - self._seen[rank][1] > DEAD_S]


def _beats(ranks: Sequence[int], store: distributed_c10d.Store) -> dict[int, bytes | None]:
    return {rank: value_of(store, _beat(rank)) for rank in ranks}


def _absent(keys: dict[int, str], store: distributed_c10d.Store) -> list[int]:
    return [rank for rank, key in keys.items() if not store.check([key])]


def _beat(rank: int) -> str:
    return f"alive {rank}"


def _request(rank: int) -> str:
    return f"asks {rank}"


def _membership(number: int) -> str:
    return f"membership {number}"
