"""What goes with a process that is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradweave.processes import cleared
from gradweave.processes.cleared import cleared_folder
from tests.patience import PATIENCE_S

PROGRAM = """
import subprocess, sys, time
from pathlib import Path
from gradweave.processes.cleared import cleared_folder
inside = Path(sys.argv[2])
with cleared_folder("gradweave-test-", inside=inside, mounts=sys.argv[1]) as folder:
    with (folder / "log").open("w") as log:
        if sys.argv[3] == "writes":
            child = subprocess.Popen(["sleep", "60000"], stdout=log, stderr=log)
        else:
            quiet = subprocess.DEVNULL
            child = subprocess.Popen(["tail", "-f", log.name], stdout=quiet, stderr=quiet)
    print(folder, child.pid, flush=True)
    time.sleep(6e4)
"""


def gone(*paths: Path) -> bool:
    """Whether all of them go in time."""
    until = time.monotonic() + PATIENCE_S
    while (left := any(path.exists() for path in paths)) and time.monotonic() < until:
        time.sleep(0.02)
    return not left


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("child", ["writes", "is told"])
def test_a_killed_process_leaves_neither_folder_nor_names(tmp_path, child):
    mine, others = tmp_path / "lab-1-0", tmp_path / "lab-2-0"
    mine.touch()
    others.touch()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, f"{tmp_path}/lab-1-*", str(tmp_path), child],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        name, number = process.stdout.readline().split()
        folder = Path(name)
        assert folder.parent == tmp_path
    finally:
        process.kill()
    process.communicate(timeout=PATIENCE_S)  # whoever clears up holds none of its pipes
    time.sleep(0.3)
    assert (folder / "log").exists() and mine.exists(), "cleared under a process that uses it"
    os.kill(int(number), signal.SIGKILL)
    assert gone(folder, mine)
    assert others.exists()


def test_a_block_that_ends_leaves_what_it_did_not_make(tmp_path):
    name = tmp_path / "lab-1-0"
    name.touch()
    with cleared_folder("gradweave-test-", mounts=str(name)) as folder:
        assert folder.is_dir()
    assert not folder.exists() and name.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("child", ["writes", "is told"])
def test_a_folder_is_in_use_while_one_other_process_is_there(tmp_path, child):
    assert not cleared._in_use(str(tmp_path))
    with (tmp_path / "log").open("w") as log:
        command = ["sleep", "600"] if child == "writes" else ["tail", "-f", log.name]
        errors = log if child == "writes" else subprocess.DEVNULL
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
    try:
        command_line = Path(f"/proc/{process.pid}/cmdline")
        while not command_line.read_bytes():  # until the kernel has it, a moment after the start
            time.sleep(0.01)
        assert cleared._in_use(str(tmp_path))
    finally:
        process.kill()
        process.wait()
    assert not cleared._in_use(str(tmp_path))
