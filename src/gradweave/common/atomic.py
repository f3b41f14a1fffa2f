"""Files that are written completely or not at all."""

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from gradweave.errors import FileError

_TEMPORARY = ".gradweave-{}.part"


def atomic_write(path: str | Path, data: bytes) -> None:
    """Writes a file so that a reader finds the old content or the new, never a part.

    The bytes go to a temporary file in the same directory, which is then renamed. A path that is
    not a regular file, such as ``/dev/stdout``, is written in place.

    Args:
        path: where to write; a symbolic link is followed.
        data: the file's whole content.

    Raises:
        FileError: it cannot be written; no temporary file remains, and an existing file is
            unchanged.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _write_and_rename(target, data)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = getattr(error, "strerror", None) or error
        raise FileError(f"{str(path)!r} cannot be written: {reason}") from error


def make_folder(folder: Path) -> None:
    """Makes a folder and its missing parents.

    Raises:
        FileError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: cannot be made a directory: {error.strerror}") from error


def unfinished(folder: Path) -> list[Path]:
    """Temporary files of processes that are writing, or were killed while writing."""
    return sorted(folder.glob(_TEMPORARY.format("*")))


def reopened(path: Path, keep: Callable[[str], bool]) -> TextIO:
    """Opens a file of lines for appending, after dropping lines that are not kept.

    The kept lines survive even if the process is killed at any time.

    Args:
        path: the file; created if missing.
        keep: whether a line, without its end, is kept.

    Raises:
        FileError: it cannot be written.
    """
    if path.exists():
        there = path.read_text()
        kept = "".join(f"{line}\n" for line in there.splitlines() if keep(line))
        if kept != there:
            atomic_write(path, kept.encode())
    try:
        return path.open("a")
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror or error}") from error


def _write_and_rename(target: Path, data: bytes) -> None:
    temporary = target.with_name(_TEMPORARY.format(secrets.token_hex(8)))
    try:
        # Not with tempfile: the new file gets the permissions of the umask instead of 0600.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        if target.exists():
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
