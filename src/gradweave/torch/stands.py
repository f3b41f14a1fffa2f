"""The status of a rank: its progress through its collectives, shared through the job's store."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from gradweave.processes.peers import MOST_TEXT, peer_value
from gradweave.torch.sockets import Connection

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Text = Annotated[str, msgspec.Meta(max_length=MOST_TEXT)]


@dataclasses.dataclass(frozen=True)
class LaneStand:
    """A rank's progress through the calls of one channel; see `record.Lane`."""

    members: tuple[Count, ...]
    entered: Count
    """Number of calls that the rank has entered."""
    open: Count | None
    """Number of the first call that is in flight or has failed; otherwise None."""
    open_s: float
    """How long the rank has waited in that call."""
    root: Count | None
    """The rank that all others wait for in that call, if there is one."""
    recent: tuple[Text, ...]
    """Texts of the last calls, ending with the call entered last."""

    def text(self, number: int) -> str | None:
        """The text of a call, or None if it is no longer known."""
        place = number - self.entered - 1
        return self.recent[place] if -len(self.recent) <= place < 0 else None

    def done(self, number: int) -> bool:
        """Whether the rank has completed a call."""
        return self.entered >= number and (self.open is None or self.open > number)


@dataclasses.dataclass(frozen=True)
class RankStand:
    """The status of a rank."""

    heartbeats: Count
    """Number of status reports so far: the rank is alive as long as this rises."""
    at_s: float
    """Time of this report, by the rank's `time.monotonic`."""
    host: Text
    machine: Text
    """A name shared by exactly the processes with the same process ids and monotonic clock."""
    process: Count
    lanes: Mapping[Text, LaneStand]
    last: Text
    """The last call that ended; empty if no call has."""
    idle_s: float
    """Seconds since that call ended, or since the start."""
    where: Text
    """The line of user code that the rank is executing."""
    failed: Text
    """The error of a call that failed recently, if any."""
    left: bool
    """Whether the rank has left the job."""
    connections: tuple[Connection, ...]

    def written(self) -> str:
        """The status as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def read(cls, text: bytes | str) -> "RankStand":
        """Reads a status from JSON.

        Raises:
            RunError: the text is not a status.
        """
        return peer_value(text, cls, "a rank's status")

    def within(self, size: int) -> bool:
        """Whether all ranks named in this status exist in a job of that size."""
        return all(
            max((*lane.members, lane.root or 0), default=0) < size for lane in self.lanes.values()
        )

    @property
    def open(self) -> Iterable[tuple[str, LaneStand]]:
        """The channels with a call in flight, by key."""
        return ((key, lane) for key, lane in self.lanes.items() if lane.open is not None)
