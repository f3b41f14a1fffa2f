"""Programs that JAX compiled, kept from one run of the tests to the next.

Each run works in a folder of its own, which begins as links to what is kept: runs side by side do
not meet, and a process that a test kills in the middle of writing harms its own run alone. At the
end, what was written whole is kept. JAX tells programs apart by what they compute, its version and
the compiler's flags, whichever source they come from; the folder is for one `constraints.txt`, one
Python and one kind of processor. Loops that numba compiles are kept beside their sources anyway:
see `gradweave.common.compiled`.
"""

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gradweave.processes.jax_start import MOST_BYTES, processor_kind

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".compiled"
if not os.access(ROOT, os.W_OK):
    FOLDER = Path.home() / ".cache" / "gradweave" / "tests"
RUN = "run-"
PROGRAM, USED = "-cache", "-atime"
"""JAX's suffixes: it writes a program, and then when it was last used."""
DAY_S = 86_400.0
UNUSED_S = 14 * DAY_S
"""After which what belongs to other versions goes."""


def kept_programs() -> contextlib.AbstractContextManager[Path]:
    """The folder for a run of the tests, with what earlier ones compiled."""
    constraints = (ROOT / "constraints.txt").read_bytes()
    said = f"{sys.version} {processor_kind()}".encode()
    return programs(FOLDER / f"kept-{hashlib.sha256(constraints + said).hexdigest()[:12]}")


@contextlib.contextmanager
def programs(kept: Path, most_bytes: int = MOST_BYTES) -> Iterator[Path]:
    """A folder for JAX's compilation cache, with what is kept in it.

    Args:
        kept: where they are, if any are; what is new is added when the context ends.
        most_bytes: what stays there; the least recently used go first.
    """
    kept.mkdir(parents=True, exist_ok=True)
    _remove_unused(kept)
    with of_a_run(kept.parent) as folder:
        for path in kept.glob(f"*{PROGRAM}"):
            with contextlib.suppress(FileNotFoundError):  # another run has just removed it
                _link(path, folder / path.name)
                used = path.stat().st_mtime_ns
                _used_file(folder / path.name).write_bytes(used.to_bytes(8, "little"))
        yield folder
        for path in folder.glob(f"*{PROGRAM}"):
            with contextlib.suppress(FileNotFoundError):  # a process was killed while it wrote
                used = int.from_bytes(_used_file(path).read_bytes(), "little")
                if not (kept / path.name).exists():
                    path.rename(kept / path.name)
                os.utime(kept / path.name, ns=(used, used))
        _remove_oldest(kept, most_bytes)


@contextlib.contextmanager
def of_a_run(parent: Path = FOLDER) -> Iterator[Path]:
    """A folder that goes with a run of the tests; where that is killed, with a later one."""
    parent.mkdir(parents=True, exist_ok=True)
    made = tempfile.TemporaryDirectory(prefix=RUN, dir=parent, ignore_cleanup_errors=True)
    with made as folder:
        yield Path(folder)


def keep_all_meanwhile() -> None:
    """Has JAX, in this process, make no room for a program that it writes.

    To see whether it has to, it reads when each of those that are there was used: .1 ms each, under
    a lock, so that the two thousandth takes a fifth of a second. `programs` makes room at the end.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src.lru_cache import LRUCache

        if hasattr(LRUCache, "_evict_if_needed"):
            LRUCache._evict_if_needed = lambda *_, **__: None


def _used_file(program: Path) -> Path:
    return program.with_name(program.name.removesuffix(PROGRAM) + USED)


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links
        shutil.copy2(source, target)


def _remove_unused(kept: Path) -> None:
    """Folders of other versions that nobody has used for long, and of runs that were killed."""
    os.utime(kept)
    for folder in kept.parent.iterdir():
        limit_s = DAY_S if folder.name.startswith(RUN) else UNUSED_S
        with contextlib.suppress(FileNotFoundError):  # another run has just removed it
            if time.time() - folder.stat().st_mtime > limit_s:
                shutil.rmtree(folder, ignore_errors=True)


def _remove_oldest(kept: Path, most_bytes: int) -> None:
    found = list[tuple[int, int, Path]]()
    for path in kept.iterdir():
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            found.append((status.st_mtime_ns, status.st_size, path))
    excess = sum(size for _, size, _ in found) - most_bytes
    for _, size, path in sorted(found):
        if excess <= 0:
            break
        path.unlink(missing_ok=True)
        excess -= size
