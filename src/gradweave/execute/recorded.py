"""Collectives recorded by the ranks of a job, in one file per rank.

Backends of torch.distributed write these files; see `gradweave.torch`.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from gradweave.errors import FileError

SUFFIX = ".collectives.json"
"""Suffix of the files that ranks write."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


@dataclasses.dataclass(frozen=True)
class RecordedLane:
    """A channel: a group's collectives, or the messages from one rank to another."""

    members: tuple[int, ...]
    """Ranks of the job; for messages, the sender and the receiver."""
    between_two: bool


@dataclasses.dataclass(frozen=True)
class RecordedCall:
    """A rank's record of one call."""

    lane: str
    number: _Count
    text: str
    """A description of the call."""
    bytes: _Count
    begin_ns: _Count
    """Time by the rank's clock."""
    end_ns: _Count
    """0 if the call had not ended."""
    planned: bool
    """Whether a Gradweave plan was responsible for the call."""
    error: str


@dataclasses.dataclass(frozen=True)
class RecordedRank:
    """The calls that one rank has recorded."""

    rank: Annotated[int, msgspec.Meta(ge=0, lt=1 << 30)]
    ranks: Annotated[int, msgspec.Meta(ge=1, lt=1 << 30)]
    """Number of ranks in the job."""
    host: str
    machine: str
    """A name shared by the ranks with the same clock."""
    wall_ns: int
    """Offset from this clock to nanoseconds since 1970."""
    written_ns: _Count
    """Time of this record, by the rank's clock."""
    ends_are_noted: bool
    """Whether end times are exact; otherwise they are the times when the rank noticed the end."""
    lanes: dict[str, RecordedLane]
    calls: tuple[RecordedCall, ...]

    def written(self) -> bytes:
        """The record in the format of its file."""
        return msgspec.json.encode(self)

    @classmethod
    def read(cls, content: bytes, name: str) -> "RecordedRank":
        """Parses a file's content.

        Args:
            content: the content of the file.
            name: the name of the file, for the message.

        Raises:
            FileError: the content is something else.
        """
        try:
            found = msgspec.json.decode(content, type=cls)
        except msgspec.MsgspecError as error:
            raise FileError(f"{name}: not a record of a rank's collectives: {error}") from error
        if unknown := {call.lane for call in found.calls} - set(found.lanes):
            raise FileError(f"{name}: calls of {min(unknown)!r}, which is not among its channels")
        return found


def read_recorded(paths: Iterable[str | Path]) -> list[RecordedRank]:
    """Reads the records of a job's ranks.

    Args:
        paths: files, or folders of such files.

    Returns:
        One record per rank, in the order of ranks.

    Raises:
        FileError: there is no file, a file is not a readable record, or two are of the same rank.
    """
    found: dict[int, tuple[Path, RecordedRank]] = {}
    for path in map(Path, paths):
        files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
        if not files:
            raise FileError(f"{path}: it has no files of ranks (*{SUFFIX})")
        for file in files:
            try:
                rank = RecordedRank.read(file.read_bytes(), str(file))
            except OSError as error:
                raise FileError(f"{file}: cannot be read: {error.strerror}") from error
            if rank.rank in found:
                other = found[rank.rank][0]
                raise FileError(f"{file}: of rank {rank.rank}, like {other}; give one job's files")
            found[rank.rank] = file, rank
    return [found[rank][1] for rank in sorted(found)]
