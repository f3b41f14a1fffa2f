"""Which arguments are schedules' files, and which name networks."""

from pathlib import Path

from gradweave.errors import FileError
from gradweave.topology.formats.files import SUFFIXES

SCHEDULES = (".json", ".json.gz")
"""How schedules' files end; JSON may hold a network, too."""
_NETWORKS = tuple(suffix for suffix in SUFFIXES if suffix not in SCHEDULES)
_HEAD_BYTES = 1 << 16


def is_schedule_file(what: str) -> bool:
    """Whether an argument names a schedule's file, and not a network."""
    path = Path(what)
    if what.lower().endswith(_NETWORKS):
        return False
    if not path.is_file():
        return what.endswith(SCHEDULES) or path.is_dir()
    return not (what.endswith(".json") and _holds_network(path))


def is_placement_file(path: Path) -> bool:
    """Whether a file begins like a placement's, as `gradweave place` writes it."""
    return path.suffix == ".json" and b'"gradweave-placement"' in _head(path)


def check_schedule_file(path: Path, verb: str) -> None:
    """Refuses a network's file where a schedule's is expected; others are for `load` to judge.

    Args:
        path: of the file.
        verb: that takes a schedule's.

    Raises:
        FileError: it is a network's.
    """
    if path.is_file() and not is_schedule_file(str(path)):
        raise FileError(
            f"{path}: is a network; {verb} takes a schedule's file, such as "
            f"'gradweave schedule {path} --output s.json' writes"
        )


def _holds_network(path: Path) -> bool:
    """Whether a JSON file begins like a network's, not like a schedule's."""
    head = _head(path)
    if b'"gradweave-schedule"' in head or b'"transfers"' in head:
        return False
    return any(key in head for key in (b'"links"', b'"edges"', b'"nodes"', b'"switches"'))


def _head(path: Path) -> bytes:
    """The beginning of a file; nothing if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return b""
