"""A temporary folder that is removed even if the process that made it is killed.

Python's clean-up at exit does not run in a killed process. So a second process, the keeper, waits
at a pipe until the owner has reported that it has cleaned up, or is gone. In the latter case, the
keeper first waits for processes whose command names the folder, or that write their errors to a
file in it: PyTorch's file store in a removed folder would wait for its file for five minutes and
block all other threads of its process.

The keeper runs this file by its path, without the package, so that it starts quickly.
"""

import contextlib
import ctypes
import functools
import glob
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_CLEARED = b"."
_CLEAR_S = 60.0
"""Timeout for processes that use the folder to end; they may still be importing."""
_AGAIN_S = 0.1
_END_S = 3.0
"""How long the keeper may take to end; after that, it is killed."""
_DETACH = 2  # MNT_DETACH of umount2: detaches a mount that is still in use


@contextlib.contextmanager
def cleared_folder(prefix: str, *, inside: Path | None = None, mounts: str = "") -> Iterator[Path]:
    """A temporary folder, removed with the block or with this process.

    Args:
        prefix: prefix of its name.
        inside: the parent folder; if None, the usual place for temporary files.
        mounts: a pattern of mount points, such as those of a network namespace. The block must
            remove them itself; if this process is killed, the keeper does.
    """
    from gradweave.processes.owned import owned, temporary_folder  # the keeper has no package

    # If a process that is just ending still writes there, the keeper removes the rest.
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder(prefix, inside))
        keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(folder), mounts],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # a signal to this process's group does not end the keeper
        )
        end = owned(functools.partial(_end, keeper, folder))
        try:
            with stack:
                yield folder
        finally:
            end()


def _end(keeper: subprocess.Popen[bytes], folder: Path) -> None:
    try:
        keeper.communicate(b"" if folder.exists() else _CLEARED, timeout=_END_S)
    except subprocess.TimeoutExpired:
        keeper.kill()
        keeper.communicate()


def _clear(folder: str, mounts: str) -> None:
    until = time.monotonic() + _CLEAR_S
    while _in_use(folder) and time.monotonic() < until:
        time.sleep(_AGAIN_S)
    for path in glob.glob(mounts):
        ctypes.CDLL(None).umount2(path.encode(), _DETACH)
        with contextlib.suppress(OSError):
            os.unlink(path)
    shutil.rmtree(folder, ignore_errors=True)


def _in_use(folder: str) -> bool:
    """Whether another process writes its errors there, or was started with the folder's name.

    False if the system has no such information.
    """
    others = [path for path in glob.glob("/proc/[0-9]*") if path != f"/proc/{os.getpid()}"]
    return any(_names(process, folder) for process in others)


def _names(process: str, folder: str) -> bool:
    with contextlib.suppress(OSError):
        if os.readlink(f"{process}/fd/2").startswith(f"{folder}/"):
            return True
        with open(f"{process}/cmdline", "rb") as command:
            return os.fsencode(folder) in command.read()
    return False


def main(folder: str, mounts: str) -> None:
    """Waits for the process at the other end of standard input, and cleans up after it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.stdin.buffer.read(1) != _CLEARED:  # a fork may keep the pipe open
        _clear(folder, mounts)


if __name__ == "__main__":
    main(*sys.argv[1:])
