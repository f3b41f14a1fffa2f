"""The status of a rank, its progress through its calls, which ranks share through a store."""

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Iterable, Mapping

from torch.distributed import distributed_c10d

from gradweave.errors import RunError
from gradweave.execute.torch_distributed.sockets import Connection
from gradweave.execute.torch_distributed.store import value_of
from gradweave.processes.peers import Count, Text, peer_value


@dataclasses.dataclass(frozen=True)
class LaneStatus:
    """A rank's progress through the calls of one channel, which ranks number in the same order."""

    members: tuple[Count, ...]
    """The ranks that take part."""
    entered: Count
    """Number of calls that the rank has entered."""
    open: Count | None
    """Number of the first call that is in flight or has failed; otherwise None."""
    open_s: float = 0.0
    """How long the rank has waited in that call."""
    root: Count | None = None
    """The rank that all others wait for in that call, if there is one."""
    recent: tuple[Text, ...] = ()
    """Texts of the last calls, ending with the call entered last."""
    awaits: tuple[Count, ...] | None = None
    """The ranks from or to which that call still lacks messages, if known."""
    assumed: bool = False
    """Whether it is unknown if that call is still in flight, and which ranks take part."""

    def text(self, number: int) -> str | None:
        """The text of a call, or None if it is no longer known."""
        place = number - self.entered - 1
        return self.recent[place] if -len(self.recent) <= place < 0 else None

    def done(self, number: int) -> bool:
        """Whether the rank has completed a call."""
        return self.entered >= number and (self.open is None or self.open > number)


@dataclasses.dataclass(frozen=True)
class RankStatus:
    """The status of a rank."""

    heartbeats: Count
    """Number of status reports so far: the rank is alive as long as this rises."""
    lanes: Mapping[Text, LaneStatus]
    idle_s: float
    """Seconds since a call last ended or progressed, or since the start."""
    at_s: float = 0.0
    """Time of this report, by the rank's `time.monotonic`."""
    host: Text = ""
    machine: Text = ""
    """A name shared by exactly the processes with the same process ids and monotonic clock."""
    process: Count = 0
    last: Text = ""
    """The last call that ended; empty if no call has."""
    where: Text = ""
    """The line of user code that the rank is executing."""
    failed: Text = ""
    """The error of a call that failed recently, if any."""
    left: bool = False
    """Whether the rank has left the job."""
    connections: tuple[Connection, ...] = ()

    def write(self, rank: int, store: distributed_c10d.Store) -> None:
        """Writes the status to a store, as the status of a rank."""
        store.set(f"stand {rank}", self.written())

    def written(self) -> str:
        """The status as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def read(cls, text: bytes | str) -> "RankStatus":
        """Reads a status from JSON.

        Raises:
            RunError: the text is not a status.
        """
        return peer_value(text, cls, "a rank's status")

    def within(self, size: int) -> bool:
        """Whether all ranks named in this status exist in a group of that size."""
        return all(
            max((*lane.members, *(lane.awaits or ()), lane.root or 0), default=0) < size
            for lane in self.lanes.values()
        )

    @property
    def open(self) -> Iterable[tuple[str, LaneStatus]]:
        """The channels with a call in flight, by key."""
        return ((key, lane) for key, lane in self.lanes.items() if lane.open is not None)


def statuses(
    store: distributed_c10d.Store, size: int, first: int | None = None
) -> dict[int, RankStatus]:
    """The latest status of each rank, without values in the store that no rank can have written.

    Args:
        store: the store.
        size: number of ranks.
        first: read only this many ranks, from rank 0 on; all ranks if not given.
    """
    found = {}
    for rank in range(size if first is None else first):
        written = value_of(store, f"stand {rank}")
        with contextlib.suppress(RunError):
            if written is not None and (status := RankStatus.read(written)).within(size):
                found[rank] = status
    return found


class Heard:
    """The statuses of other ranks, read repeatedly."""

    def __init__(self) -> None:
        self.since = 0.0
        """Time of the first reading."""
        self.statuses: dict[int, RankStatus] = {}
        """The last reading."""
        self._read = 0.0
        self._changed: dict[int, float] = {}

    def hear(self, found: dict[int, RankStatus]) -> None:
        """Records a reading."""
        now = time.monotonic()
        if not self.since:
            self.since, self.statuses = now, found
        for rank, status in found.items():
            before = self.statuses.get(rank)
            if status.heartbeats > (before.heartbeats if before is not None else 0):
                self._changed[rank] = now
        self.statuses, self._read = found, now

    def present(self, within_s: float = math.inf) -> dict[int, RankStatus]:
        """The status of each rank that has written a new one since the first reading.

        Args:
            within_s: the status must also be at most this old at the last reading.
        """
        lately = (r for r, at in self._changed.items() if self._read - at <= within_s)
        return {r: self.statuses[r] for r in lately if r in self.statuses}
