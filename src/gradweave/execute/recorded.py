"""Collectives that a job's ranks have recorded: one file of each rank.

Backends of torch.distributed write them; see `gradweave.torch`.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from gradweave.errors import FileError

SUFFIX = ".collectives.json"
"""Of the files that ranks write."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


@dataclasses.dataclass(frozen=True)
class RecordedLane:
    """Calls that ranks number alike: a group's collectives, or messages from one to another."""

    members: tuple[int, ...]
    """Ranks of the job; of messages, the sender and the receiver."""
    between_two: bool


@dataclasses.dataclass(frozen=True)
class RecordedCall:
    """One call of a rank."""

    lane: str
    number: _Count
    text: str
    """What it was."""
    bytes: _Count
    begin_ns: _Count
    """By the rank's clock."""
    end_ns: _Count
    """0: it had not ended."""
    planned: bool
    """Whether it was given to a plan of Gradweave's."""
    error: str


@dataclasses.dataclass(frozen=True)
class RecordedRank:
    """What one rank has recorded."""

    rank: Annotated[int, msgspec.Meta(ge=0, lt=1 << 30)]
    ranks: Annotated[int, msgspec.Meta(ge=1, lt=1 << 30)]
    """In the job."""
    host: str
    machine: str
    """Where the clock is the same."""
    wall_ns: int
    """What has to be added to its clock's times for those since 1970."""
    written_ns: _Count
    """When this was written, by its clock."""
    ends_are_noted: bool
    """Whether ends are those of the calls; if not, they are when the rank noticed them."""
    lanes: dict[str, RecordedLane]
    calls: tuple[RecordedCall, ...]

    def written(self) -> bytes:
        """As a file has it."""
        return msgspec.json.encode(self)

    @classmethod
    def read(cls, content: bytes, name: str) -> "RecordedRank":
        """From a file's content.

        Args:
            content: the file's.
            name: of the file, for the message.

        Raises:
            FileError: it is something else.
        """
        try:
            found = msgspec.json.decode(content, type=cls)
        except msgspec.MsgspecError as error:
            raise FileError(f"{name}: no record of a rank's collectives: {error}") from error
        if unknown := {call.lane for call in found.calls} - set(found.lanes):
            raise FileError(f"{name}: calls of {min(unknown)!r}, which is not among its lanes")
        return found


def read_recorded(paths: Iterable[str | Path]) -> list[RecordedRank]:
    """Reads what ranks have written.

    Args:
        paths: files, and folders of them.

    Returns:
        One of each rank, in their order.

    Raises:
        FileError: there is none, one cannot be read or is something else, or two are of one rank.
    """
    found: dict[int, tuple[Path, RecordedRank]] = {}
    for path in map(Path, paths):
        files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
        if not files:
            raise FileError(f"{path}: no files of ranks in it, which end in {SUFFIX}")
        for file in files:
            try:
                rank = RecordedRank.read(file.read_bytes(), str(file))
            except OSError as error:
                raise FileError(f"{file}: cannot be read: {error.strerror}") from error
            if rank.rank in found:
                other = found[rank.rank][0]
                raise FileError(f"{file}: of rank {rank.rank}, as {other} is; give one job's files")
            found[rank.rank] = file, rank
    return [found[rank][1] for rank in sorted(found)]
