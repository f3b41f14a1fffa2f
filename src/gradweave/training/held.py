"""A lock on a folder, so that two trainings never mix their logs and results there."""

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

from gradweave.common.atomic import make_folder
from gradweave.errors import FileError

P = ParamSpec("P")
T = TypeVar("T")


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Locks a folder for the duration of the block; a killed process releases it.

    The folder is created if it is missing, and removed again if the block leaves it empty. If the
    system has no such locks, as on some network file systems, nothing is locked.

    Raises:
        FileError: another training holds the folder, or it cannot be created.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    descriptor = _locked(folder)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder is not empty
            for each in missing:
                each.rmdir()
        os.close(descriptor)


def lock_of(file: Path) -> Path:
    """The folder to lock instead of a file, which loses its lock if it is rewritten."""
    return file.with_name(f".{file.name}.lock")


def one_at_a_time(train: Callable[P, T]) -> Callable[P, T]:
    """Decorates a training so that it holds its argument `folder`."""
    signature = inspect.signature(train)

    @functools.wraps(train)
    def alone(*args: P.args, **kwargs: P.kwargs) -> T:
        with held(signature.bind(*args, **kwargs).arguments["folder"]):
            return train(*args, **kwargs)

    return alone


def _locked(folder: Path) -> int:
    """The descriptor of a locked folder that still has its name."""
    while True:
        make_folder(folder)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            _lock(descriptor)
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                return descriptor
        except FileNotFoundError:
            pass  # another training that left the folder empty has just removed it
        except BlockingIOError as error:
            os.close(descriptor)
            raise FileError(
                f"{folder}: another training writes there; wait until it ends, or give another "
                "folder"
            ) from error
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    """Raises BlockingIOError if another process, or this process, holds the lock."""
    try:
        import fcntl  # only Unix has it
    except ImportError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return
