"""Resources that belong to the process that made them, and not to its forks.

A fork inherits finalizers and `atexit` handlers, which Python runs at exit. Without this module, a
worker of a DataLoader or a child of `os.fork` would remove its parent's folders, or wait for
threads that do not exist in the fork.
"""

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def owned(function: Callable[..., object]) -> Callable[..., None]:
    """Wraps a function so that it does nothing when a fork of this process calls it."""
    process = os.getpid()

    def called(*args: Any, **kwargs: Any) -> None:
        if os.getpid() == process:
            function(*args, **kwargs)

    return called


@contextlib.contextmanager
def temporary_folder(prefix: str = "gradweave-", inside: Path | None = None) -> Iterator[Path]:
    """Makes a temporary folder, which this process removes after the block or at exit.

    Files that another process is still writing there remain.

    Args:
        prefix: prefix of its name.
        inside: the parent folder, or None for the system's default.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=inside))
    remove = owned(functools.partial(shutil.rmtree, folder, ignore_errors=True))
    atexit.register(remove)
    try:
        yield folder
    finally:
        atexit.unregister(remove)
        remove()
