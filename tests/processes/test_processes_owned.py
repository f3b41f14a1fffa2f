"""Resources of a process that its forks leave alone."""

import atexit
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from gradweave.processes.children import Children
from gradweave.processes.cleared import cleared_folder
from gradweave.processes.owned import owned, temporary_folder

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks"),
    # Another test of this process may have started JAX, which then warns of every fork.
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]


def forked(act: Callable[[], None]) -> int:
    """Exit status of a fork that does something and then ends as Python does, `atexit` included."""
    child = os.fork()
    if not child:
        try:
            act()
            atexit._run_exitfuncs()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_calls_nothing_of_its_parents():
    class Kept:
        pass

    called, kept = list[int](), Kept()
    function = owned(called.append)
    weakref.finalize(kept, function, 2)

    def act() -> None:
        nonlocal kept
        function(1)
        del kept
        gc.collect()
        assert not called

    assert forked(act) == 0
    function(1)
    del kept
    gc.collect()
    assert called == [1, 2]


def test_a_thread_works_in_its_folder_while_forks_end():
    """As a search for a plan does, while the training starts workers."""
    there, done, found = threading.Event(), threading.Event(), list[Path]()

    def works() -> None:
        with temporary_folder() as folder:
            found.append(folder)
            there.set()
            done.wait(60)

    thread = threading.Thread(target=works)
    thread.start()
    there.wait(60)
    assert forked(lambda: None) == 0
    worker = multiprocessing.get_context("fork").Process(target=lambda: None)
    worker.start()
    worker.join(60)
    assert worker.exitcode == 0 and found[0].is_dir()
    done.set()
    thread.join(60)
    assert not found[0].exists()


def test_a_fork_that_leaves_a_block_ends_nothing_of_it():
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    child = -1
    try:
        with (
            cleared_folder("gradweave-") as folder,
            Children([(command, os.environ)], None) as others,
        ):
            child = os.fork()
            if not child:
                raise SystemExit  # the fork's way out of the blocks
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
            assert folder.is_dir() and others.processes[0].poll() is None
    finally:
        if not child:
            os._exit(3)
    assert not folder.exists() and others.processes[0].poll() is not None


def test_a_folder_goes_with_its_process(tmp_path: Path):
    program = (
        "import atexit, sys\n"
        "from pathlib import Path\n"
        "from gradweave.processes.owned import temporary_folder\n"
        "folder = temporary_folder(inside=Path(sys.argv[1]))\n"
        "Path(folder.__enter__(), 'file').write_text('x')\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
    assert not list(tmp_path.iterdir())
