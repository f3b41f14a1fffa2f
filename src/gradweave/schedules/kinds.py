"""Tells files of schedules from those of networks and placements."""

import zlib
from pathlib import Path

from gradweave.errors import FileError
from gradweave.topology.formats.files import parts_of
from gradweave.topology.formats.readers import SUFFIXES
from gradweave.topology.formats.simai import is_simai

SCHEDULES = (".json", ".json.gz")
"""Suffixes of schedule files; JSON may also hold a network."""
_HEAD_BYTES = 1 << 16


def is_schedule_file(what: str) -> bool:
    """Whether an argument names a schedule's file rather than a network, by content if it exists.

    The suffix decides for JSON that is neither.
    """
    path = Path(what)
    if parts_of(what):
        return False
    if not path.is_file():
        return what.endswith(SCHEDULES) or path.is_dir()
    head = _head(path)
    if any(
        key in head
        for key in (b'"gradweave-schedule"', b'"gradweave-implicit-schedule"', b'"transfers"')
    ):
        return True
    if any(key in head for key in (b'"links"', b'"edges"', b'"nodes"', b'"switches"')):
        return False
    return what.endswith(SCHEDULES)


def is_implicit_file(what: str | Path) -> bool:
    """Whether a file begins like that of an implicit schedule."""
    path = Path(what)
    return path.name.endswith(SCHEDULES) and b'"gradweave-implicit-schedule"' in _head(path)[:256]


def is_placement_file(path: Path) -> bool:
    """Whether a file begins like a placement's, as `gradweave place` writes it."""
    return path.suffix == ".json" and b'"gradweave-placement"' in _head(path)


def check_schedule_file(path: Path, verb: str) -> None:
    """Refuses a network's file where a schedule's is expected; others are for `load` to judge.

    Args:
        path: of the file.
        verb: name of the command.

    Raises:
        FileError: it is a network's.
    """
    if not path.is_file() or is_schedule_file(str(path)):
        return
    if path.suffix.lower() in SUFFIXES or is_simai(_head(path).decode("latin-1")):
        raise FileError(
            f"{path}: is a network; {verb} takes a schedule's file, such as "
            f"'gradweave solve {path} --output s.json' writes"
        )


def _head(path: Path) -> bytes:
    """The unpacked beginning of a file; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return b""
    if not head.startswith(b"\x1f\x8b"):
        return head
    try:
        return zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
    except zlib.error:
        return b""
