"""Who of a group's processes is silent, by where those that wait say that they stand."""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Generic, Protocol, TypeVar


@dataclasses.dataclass(frozen=True)
class Stand:
    """Where a process stands that has not progressed for a while."""

    heartbeats: int
    """How often it has written so: it is there as long as this rises."""
    calls: int
    """Collectives of the group that it has entered."""
    inside: bool
    """Whether it is in the last one still."""
    awaits: tuple[int, ...]
    """Ranks that it waits for there."""
    operations: Mapping[str, int]
    """PyTorch's own operations that it has started since it entered the last collective, by a
    digest of their group's ranks."""
    still_s: float
    """Seconds since it progressed."""

    def written(self) -> str:
        """As JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def read(cls, text: bytes) -> "Stand":
        """From JSON."""
        fields = json.loads(text)
        return cls(**fields | {"awaits": tuple(fields["awaits"])})


class Beating(Protocol):
    """Where a process stands, written again and again."""

    @property
    def heartbeats(self) -> int:
        """How often it has written so."""
        ...


AnyStand = TypeVar("AnyStand", bound=Beating)


@dataclasses.dataclass
class Heard(Generic[AnyStand]):
    """What a waiting process hears of the others, reading where they stand again and again."""

    stands: dict[int, AnyStand] = dataclasses.field(default_factory=dict)
    """By rank, the last that was read; of processes that are away, too."""
    since: float = 0.0
    """When they were read first, by `time.monotonic`; 0 before."""
    _read: float = 0.0
    _changed: dict[int, float] = dataclasses.field(default_factory=dict)

    def hear(self, stands: dict[int, AnyStand]) -> None:
        """Takes what was read."""
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
        """Where those stand that have written it anew since the first reading.

        Args:
            within_s: and in the last so many seconds before the last reading.
        """
        return {r: self.stands[r] for r, at in self._changed.items() if self._read - at <= within_s}


def silent(
    stands: Mapping[int, Stand],
    gone: Mapping[int, Stand | None],
    size: int,
    waiting: Collection[int] = (),
) -> list[int]:
    """Ranks of those that others wait for, and that wait for nobody.

    A process in a collective waits for those whose messages it lacks, unless they have done their
    part. One that is outside, in an operation of PyTorch's own, waits for those that have started
    fewer of them since the last collective: that holds for collectives, which all members of a
    group start in turn; messages between two are counted too, and may mislead. Whoever is not
    heard, nor waits for anybody when it was last heard and its connection broke, is silent.

    Args:
        stands: of those that are there, by rank.
        gone: those whose connections broke, and where they last stood if they said.
        size: of the group.
        waiting: ranks that wait, besides those in a collective.
    """
    inside = {rank for rank, stand in stands.items() if stand.inside}
    found = ends([*inside, *waiting], lambda rank: _awaited(rank, stands, gone, size))
    return sorted(found - inside - set(waiting))


def ends(waiting: Iterable[int], awaited: Callable[[int], set[int]]) -> set[int]:
    """Ranks that others wait for, at once or by way of others, and that wait for nobody.

    Args:
        waiting: ranks that wait; they are among the result where they wait for nobody.
        awaited: whom a rank waits for.
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
    """Whether a process that is awaited in a collective has not done its part there."""
    if other is None:
        return True
    return other.calls < stand.calls or (other.calls == stand.calls and other.inside)


def _started_fewer(other: Stand | None, stand: Stand) -> bool:
    """Whether a process may be awaited in an operation of PyTorch's own."""
    if other is None or (other.inside and other.calls == stand.calls):
        return any(stand.operations.values())
    return other.calls == stand.calls and any(
        count > other.operations[group]
        for group, count in stand.operations.items()
        if group in other.operations
    )
