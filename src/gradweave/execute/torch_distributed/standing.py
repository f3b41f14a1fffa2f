"""Finds the silent processes of a group, from the status of those that wait."""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from gradweave.processes.peers import peer_value


@dataclasses.dataclass(frozen=True)
class Stand:
    """The status of a process that has not progressed for a while."""

    heartbeats: int
    """Number of status reports so far: the process is alive as long as this rises."""
    calls: int
    """Number of the group's collectives that it has entered."""
    inside: bool
    """Whether it is still in the last of them."""
    awaits: tuple[int, ...]
    """Ranks that it waits for in that collective."""
    operations: Mapping[str, int]
    """PyTorch operations that it has started since it entered the last collective, by a digest of
    their group's ranks."""
    still_s: float
    """Seconds since it last progressed."""

    def written(self) -> str:
        """The status as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def read(cls, text: bytes) -> "Stand":
        """Reads a status from JSON.

        Raises:
            RunError: the text is not a status.
        """
        return peer_value(text, cls, "a rank's status")


class Beating(Protocol):
    """A status that a process writes repeatedly."""

    @property
    def heartbeats(self) -> int:
        """Number of status reports so far."""
        ...


AnyStand = TypeVar("AnyStand", bound=Beating)


@dataclasses.dataclass
class Heard(Generic[AnyStand]):
    """The status of other processes, read repeatedly by a waiting process."""

    stands: dict[int, AnyStand] = dataclasses.field(default_factory=dict)
    """The status of each rank in the last reading, including processes that are away."""
    since: float = 0.0
    """Time of the first reading, by `time.monotonic`; 0 before it."""
    _read: float = 0.0
    _changed: dict[int, float] = dataclasses.field(default_factory=dict)

    def hear(self, stands: dict[int, AnyStand]) -> None:
        """Records a reading."""
        now = time.monotonic()
        if not self.since:
            self.since = now
            self.stands = stands
        for rank, stand in stands.items():
            before = self.stands.get(rank)
            if stand.heartbeats > (before.heartbeats if before is not None else 0):
                self._changed[rank] = now
        self.stands, self._read = stands, now

    def present(self, within_s: float = math.inf) -> dict[int, AnyStand]:
        """The status of each process that has written a new one since the first reading.

        Args:
            within_s: the status must also be at most this old at the last reading.
        """
        lately = (r for r, at in self._changed.items() if self._read - at <= within_s)
        return {r: self.stands[r] for r in lately if r in self.stands}


def silent(
    stands: Mapping[int, Stand],
    gone: Mapping[int, Stand | None],
    size: int,
    waiting: Collection[int] = (),
) -> list[int]:
    """Ranks that others wait for, and that wait for nobody.

    A process in a collective waits for those whose messages it lacks, unless they have done their
    part. A process outside, in an operation of PyTorch's, waits for those that have started fewer
    such operations since the last collective. That is right for collectives, which all members of a
    group start in turn; messages between two ranks are counted as well, and may mislead. A process
    is silent if nothing is heard of it, or if its connection broke and its last status waited for
    nobody.

    Args:
        stands: status of the live processes, by rank.
        gone: processes whose connections broke, with their last status if known.
        size: number of ranks in the group.
        waiting: ranks that wait, in addition to those in a collective.
    """
    inside = {rank for rank, stand in stands.items() if stand.inside}
    found = ends([*inside, *waiting], lambda rank: _awaited(rank, stands, gone, size))
    return sorted(found - inside - set(waiting))


def ends(waiting: Iterable[int], awaited: Callable[[int], set[int]]) -> set[int]:
    """Ranks that others wait for, directly or indirectly, and that wait for nobody.

    Args:
        waiting: ranks that wait; those that wait for nobody are in the result.
        awaited: returns the ranks that a rank waits for.
    """
    left, found = list(waiting), set[int]()
    seen = set(left)
    while left:
        rank = left.pop()
        behind = awaited(rank)
        if not behind:
            found.add(rank)
        left += behind - seen
        seen |= behind
    return found


def _awaited(
    rank: int, stands: Mapping[int, Stand], gone: Mapping[int, Stand | None], size: int
) -> set[int]:
    """Ranks that a process waits for."""
    stand = stands.get(rank) or gone.get(rank)
    if stand is None:
        return set()
    others: Collection[int] = stand.awaits if stand.inside else set(range(size)) - {rank}
    behind = _lacks if stand.inside else _started_fewer
    return {other for other in others if behind(stands.get(other), stand)}


def _lacks(other: Stand | None, stand: Stand) -> bool:
    """Whether a process that is awaited in a collective has not done its part in it."""
    if other is None:
        return True
    return other.calls < stand.calls or (other.calls == stand.calls and other.inside)


def _started_fewer(other: Stand | None, stand: Stand) -> bool:
    """Whether a process may be awaited in an operation of PyTorch's."""
    if other is None or (other.inside and other.calls == stand.calls):
        return any(stand.operations.values())
    return other.calls == stand.calls and any(
        count > other.operations[group]
        for group, count in stand.operations.items()
        if group in other.operations
    )
