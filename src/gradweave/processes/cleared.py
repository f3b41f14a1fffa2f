"""A temporary folder that goes with the process that made it, even where that is killed.

What Python clears at its end stays where it is given no end. So a process beside it waits at a pipe
until the one that made the folder has said that it has cleared up, or is gone. Then it waits for
those whose command names the folder, or that write their errors to a file in it: PyTorch's file
store, made in a folder that is gone, waits for it for five minutes and lets no other thread of its
process run.

That process runs this file by its path, without the package, so that it starts quickly.
"""

import contextlib
import ctypes
import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_CLEARED = b"."
_CLEAR_S = 60.0
"""How long processes that use the folder may take to end; they may still be importing."""
_AGAIN_S = 0.1
_END_S = 3.0
"""How long the process beside has to end, before it is killed."""
_DETACH = 2  # MNT_DETACH of umount2: whatever still uses what is mounted


@contextlib.contextmanager
def cleared_folder(prefix: str, *, inside: Path | None = None, mounts: str = "") -> Iterator[Path]:
    """A temporary folder, removed with the block or with this process.

    Args:
        prefix: of its name.
        inside: where it is made; None for where temporary files usually are.
        mounts: pattern of files that something is mounted on, as a network namespace is by its
            name; the block removes them itself, and they go too where this process is killed.
    """
    # Of what a process that is just ending still writes there, the one beside takes care.
    folder = tempfile.TemporaryDirectory(prefix=prefix, dir=inside, ignore_cleanup_errors=True)
    keeper = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, folder.name, mounts],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # what ends this process's group leaves it
    )
    try:
        with folder:
            yield Path(folder.name)
    finally:
        try:
            answer = b"" if os.path.exists(folder.name) else _CLEARED
            keeper.communicate(answer, timeout=_END_S)
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

    False where nothing tells.
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
    """Waits for the process at the other end of standard input, and clears up after it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.stdin.buffer.read() != _CLEARED:
        _clear(folder, mounts)


if __name__ == "__main__":
    main(*sys.argv[1:])
