"""Where a rank stands in its collectives, as it tells the others by the job's store."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from gradweave.torch.sockets import Connection


@dataclasses.dataclass(frozen=True)
class LaneStand:
    """Where a rank stands among the calls of a lane; see `record.Lane`."""

    members: tuple[int, ...]
    entered: int
    """Calls that it has entered."""
    open: int | None
    """Number of the first call that it is in still, or that failed; None: it is in none."""
    open_s: float
    """For how long."""
    root: int | None
    """The rank that all wait for in that call, where it is one."""
    recent: tuple[str, ...]
    """What its last calls were, the one that it entered last at the end."""

    def text(self, number: int) -> str | None:
        """What a call was, where that is still known."""
        place = number - self.entered - 1
        return self.recent[place] if -len(self.recent) <= place < 0 else None

    def done(self, number: int) -> bool:
        """Whether it has completed a call."""
        return self.entered >= number and (self.open is None or self.open > number)


@dataclasses.dataclass(frozen=True)
class RankStand:
    """Where a rank stands."""

    heartbeats: int
    """How often it has written so: it is there as long as this rises."""
    at_s: float
    """When it did, by its own `time.monotonic`."""
    host: str
    machine: str
    """Where process ids are the same, and `time.monotonic`."""
    process: int
    lanes: Mapping[str, LaneStand]
    last: str
    """The last call that was over; empty where there was none."""
    idle_s: float
    """Seconds since then, or since the beginning."""
    where: str
    """The line of its program that it is at."""
    failed: str
    """The error of a call, where one has failed lately."""
    left: bool
    """Whether it has left the job."""
    connections: tuple[Connection, ...]

    def written(self) -> str:
        """As JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def read(cls, text: bytes | str) -> "RankStand":
        """From JSON."""
        fields = json.loads(text)
        lanes = {key: _lane(lane) for key, lane in fields["lanes"].items()}
        ends_ = tuple(Connection(*each) for each in fields["connections"])
        return cls(**fields | {"lanes": lanes, "connections": ends_})

    @property
    def open(self) -> Iterable[tuple[str, LaneStand]]:
        """Lanes in which it waits, by their keys."""
        return ((key, lane) for key, lane in self.lanes.items() if lane.open is not None)


def _lane(fields: dict[str, Any]) -> LaneStand:
    tuples: dict[str, Any] = {name: tuple(fields[name]) for name in ("members", "recent")}
    return LaneStand(**{**fields, **tuples})
