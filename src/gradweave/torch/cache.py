"""Files in the cache folder, written by earlier jobs or by other programs."""

import logging
import os
import stat
from pathlib import Path

from gradweave.errors import FileError
from gradweave.printable import in_one_line

ASIDE = ".aside"
"""Suffix of a file that was set aside as unusable."""
_log = logging.getLogger("gradweave")


def check_regular(path: Path) -> None:
    """Refuses anything but a regular file: opening a pipe, for example, could block forever.

    Raises:
        FileError: the path is something else, or cannot be examined.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise FileError(f"{path}: expected a regular file, got {kind}")


_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def set_aside(path: Path, why: object) -> None:
    """Renames an unusable file, so that the next job ignores it, and reports it in one line.

    Args:
        path: the file; its content stays under the name with `ASIDE`.
        why: the reason why the file is unusable.
    """
    try:
        os.replace(path, path.with_name(path.name + ASIDE))
    except OSError as error:
        kept = f"cannot be renamed ({error.strerror}); remove it"
    else:
        kept = f"is kept as {path.name}{ASIDE}"
    _log.warning("%s", in_one_line(f"{path} will be created again; the old file {kept}: {why}"))
