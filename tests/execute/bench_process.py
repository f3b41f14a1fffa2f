"""``gradweave bench`` as a process, and what it leaves behind."""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.patience import PATIENCE_S

COMMAND = [sys.executable, "-m", "gradweave", "bench"]
MPIRUN = [
    *(str(Path(sys.executable).with_name("mpirun")), "--allow-run-as-root", "--oversubscribe"),
    *("--with-ft", "ulfm"),
]
SHUTDOWN_GRACE_S = PATIENCE_S
"""How long the other servers have to end once one is lost."""


def started(arguments: Sequence[object], *, before: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Starts the verb, by a launcher if one is given."""
    return subprocess.Popen(
        [*before, *COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def pid(logs: Path, number: int) -> int:
    """Id of one of the processes, from its log."""
    found = re.match(r"pid (\d+)", (logs / f"process-{number}.log").read_text())
    assert found is not None
    return int(found[1])


def wait_for(verb: subprocess.Popen[str], logs: Path, numbers: Sequence[int], text: str) -> None:
    """Waits until a line in each of these processes' logs begins so."""
    until = time.monotonic() + PATIENCE_S
    waiting = {logs / f"process-{number}.log" for number in numbers}
    while waiting:
        assert verb.poll() is None, verb.communicate()
        assert time.monotonic() < until, f"{waiting} never said {text!r}"
        waiting -= {log for log in waiting if log.exists() and f"\n{text}" in log.read_text()}
        time.sleep(0.05)


def gone(pids: Sequence[int], within_s: float) -> list[int]:
    """Which of some processes are still there after so long."""
    until = time.monotonic() + within_s
    while (left := [each for each in pids if lives(each)]) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def lives(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def left_behind(verb: int) -> list[Path]:
    """Temporary files of a run, by the id of its process."""
    places = {Path("/dev/shm"), Path(tempfile.gettempdir())}
    names = (f"gradweave-run-{verb}-*", f"ompi.{verb}*")
    return [path for place in places for name in names for path in place.glob(name)]


def said(stderr: str) -> list[str]:
    """Lines on standard error but those of progress."""
    return [line for line in stderr.splitlines() if line.strip() and not is_progress(line)]


def is_progress(line: str) -> bool:
    return re.match(r" *\d+ s  ", line) is not None
