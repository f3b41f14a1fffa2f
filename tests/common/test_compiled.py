"""Compiled loops: kept where that is possible, and their compiling takes no time."""

import errno
import os
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import pytest
from numba.core import caching
from numba.core.errors import NumbaError
from numpy.typing import NDArray

import gradweave as gw
from gradweave.common import clock, compiled
from tests.patience import PATIENCE_S

SOURCES = sorted(Path(gw.__file__).parent.rglob("*.py"))
NOWHERE = {"NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator", "NUMBA_CACHE_DIR": __file__}
"""For a process: the one directory that numba may keep code in is no directory. This is what it
finds where the package cannot be written and there is no home."""


@pytest.fixture(autouse=True)
def nothing_refused(monkeypatch):
    monkeypatch.setattr(compiled, "_refused", set())


def triple(number):
    return 3 * number


def made_and_called() -> int:
    return compiled.kernel(triple)(14)


def test_one_place_compiles():
    elsewhere = [path for path in SOURCES if re.search(r"\bn?jit\(", path.read_text())]
    numbas = [path.name for path in elsewhere if "import numba" in path.read_text()]
    assert numbas == ["compiled.py"]


def test_what_is_compiled_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    first, second = compiled.kernel(triple), compiled.kernel(triple)
    assert (first(14), second(15)) == (42, 45)
    assert sum(first.stats.cache_misses.values()) == 1
    assert sum(second.stats.cache_hits.values()) == 1


def test_what_an_earlier_version_kept_is_compiled_again(tmp_path):
    """Numba keeps the types of arguments too, by the names of their classes."""
    module = tmp_path / "earlier.py"
    text = """
from typing import NamedTuple
from gradweave.common.compiled import kernel

class Numbers(NamedTuple):
    first: int

@kernel
def triple(numbers):
    return 3 * numbers.first

assert triple(Numbers(14)) == 42
print(sum(triple.stats.cache_hits.values()))
"""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kept")}

    def hits(text: str) -> int:
        module.write_text(text)
        os.utime(module, (0, 0))  # what numba goes by: only names differ
        command = [sys.executable, "-c", "import earlier"]
        run = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return int(run.stdout)

    later = text.replace("Numbers", "Figures")
    assert [hits(each) for each in (text, text, later, later)] == [0, 1, 0, 1]


def test_what_another_file_changes_is_compiled_again(tmp_path):
    """A loop that a kernel calls, or a constant."""
    package = tmp_path / "loops"
    package.mkdir()
    (package / "outer.py").write_text("""
from gradweave.common.compiled import kernel
from loops import table
from loops.inside import one_more
from loops.numbers import HALF

@kernel
def answer(number):
    return one_more(number) * table.FACTOR + HALF

print(answer(2), sum(answer.stats.cache_hits.values()))
""")
    more = "\n".join(
        [
            "from gradweave.common.compiled import kernel",
            "@kernel(inner=True)",
            "def one_more(number):",
            "    return number",
        ]
    )
    files = {
        "__init__": "",
        "table": "FACTOR = 5.0",
        "inside": f"{more} + 1",
        "numbers": "HALF = 0.5",
    }
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kept")}

    def answered(**changed: str) -> str:
        for name, text in changed.items():
            (package / f"{name}.py").write_text(text)
        command = [sys.executable, "-B", "-c", "import loops.outer"]
        run = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return run.stdout.strip()

    assert [answered(**files), answered()] == ["15.5 0", "15.5 1"]
    assert answered(table="FACTOR = 10.0") == "30.5 0"
    assert answered(inside=f"{more} + 21") == "230.5 0"
    assert answered(numbers="HALF = 0.25") == "230.25 0"
    assert answered() == "230.25 1"


def test_processes_side_by_side_compile_a_loop_once(tmp_path):
    """All are about to call it when the first begins to compile; one is killed in its turn."""
    (tmp_path / "shared.py").write_text(
        """
import sys, time
from pathlib import Path
from typing import NamedTuple
from gradweave.common.compiled import kernel

@kernel
def triple(number):
    return 3 * number

def begins(own, *rest):
    if sys.argv[1] == "killed":
        print("its turn", flush=True)
        time.sleep(60)
    return before(own, *rest)

before, triple._compiler.compile = triple._compiler.compile, lambda *rest: begins(*rest)
if sys.argv[1] != "killed":
    print("ready", flush=True)
    sys.stdin.readline()
assert triple(14) == 42
print(sum(triple.stats.cache_hits.values()), sum(triple.stats.cache_misses.values()))
"""
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kept")}
    processes = []

    def start(how: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", f"import sys; sys.argv[1:] = [{how!r}]; import shared"]
        started = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(started)
        return started

    try:
        killed = start("killed")
        assert killed.stdout is not None and killed.stdout.readline() == "its turn\n"
        others = [start("others") for _ in range(3)]
        for each in others:
            assert each.stdout is not None and each.stdout.readline() == "ready\n"
        for each in others:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        time.sleep(0.5)  # they wait
        assert all(each.poll() is None for each in others)
        killed.kill()
        ends = sorted(each.communicate(timeout=PATIENCE_S)[0].strip() for each in others)
        assert ends == ["0 1", "1 0", "1 0"]
    finally:
        for each in processes:
            each.kill()
            each.communicate()


def test_inner_loops_are_kept_within_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    compiled.kernel(inner=True)(triple)
    assert list(tmp_path.iterdir()) == []


@compiled.kernel(inner=True)
def made(numbers):
    return numbers.copy()


def total_of_new(numbers):
    return numbers.copy().sum()


def total_of_sum(numbers):
    return (numbers + 1.0).sum()


def total_of_made(numbers):
    return made(numbers).sum()


def total_of_list(numbers):
    return len([numbers[0]])


def itself(numbers):
    return numbers


@pytest.mark.parametrize("function", [total_of_new, total_of_sum, total_of_made, itself])
def test_loops_that_must_not_allocate_say_where_they_do(function):
    """A call of what allocates would else never free it, and what is returned be freed twice."""
    where = rf"{function.__name__} must not allocate, but .*array\(float64, 1d, C\)"
    loop = compiled.kernel(inner=True, allocates=False)(function)
    with pytest.raises(TypeError, match=where):
        loop.compile((numba.float64[::1],))


def test_lists_of_loops_that_must_not_allocate_are_refused():
    loop = compiled.kernel(inner=True, allocates=False)(total_of_list)
    with pytest.raises(NumbaError, match="NRT required"):
        loop.compile((numba.float64[::1],))


class Rows(NamedTuple):
    numbers: NDArray[np.float64]
    first: NDArray[np.int64]


def total_until_negative(rows):
    total, at = 0.0, 0
    while at < len(rows.first):
        for number in rows.numbers[rows.first[at] :]:
            if number < 0:
                break
            total += number
        at += 1
    return total


@pytest.mark.parametrize("options, counts", [({"allocates": False}, False), ({}, True)])
def test_loops_that_do_not_allocate_count_no_references(options, counts):
    inner = compiled.kernel(inner=True, **options)(total_until_negative)
    outer = numba.njit(lambda rows: inner(rows))
    assert outer(Rows(np.array([1.0, 2.0, -1.0]), np.arange(3))) == 5.0
    assert ("NRT_incref" in inner.inspect_llvm(inner.signatures[0])) == counts


def test_without_a_place_to_keep_it_code_is_compiled_all_the_same(monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", __file__)
    monkeypatch.setattr(numba.config, "CACHE_LOCATOR_CLASSES", "UserProvidedCacheLocator")
    with pytest.warns(compiled.NotKeptWarning, match="set NUMBA_CACHE_DIR to a writable directory"):
        assert made_and_called() == 42
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        assert made_and_called() == 42


@pytest.mark.parametrize("operation", ["load", "save"])
def test_a_place_that_fails_later_is_not_used(operation, tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(caching.IndexDataCacheFile, operation, fail)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert made_and_called() == 42
    said = [str(one.message) for one in warned]
    assert len(said) == (operation == "save")
    assert all("No space left on device" in line and str(tmp_path) in line for line in said)


def test_compiling_takes_no_time_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    said: list[str] = []
    pause = clock.pause
    monkeypatch.setattr(clock, "pause", lambda doing="": (said.append(doing), pause(doing))[1])
    limited = compiled.kernel(triple)
    begun, begun_by_the_clock = os.times().elapsed, clock.now()
    assert limited(14) == 42
    taken = os.times().elapsed - begun
    assert clock.now() - begun_by_the_clock < taken / 2
    assert "compiling, first run only" in said
    assert clock.waiting_for() == ""


def test_the_command_without_a_place_to_keep_code():
    done = subprocess.run(
        [sys.executable, "-m", "gradweave", "solve", "ring:3", "--scheduler", "ring"],
        capture_output=True,
        text=True,
        env={**os.environ, **NOWHERE},
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0
    assert "verified" in done.stdout
    lines = [line for line in done.stderr.splitlines() if " s  " not in line]
    assert len(lines) == 1
    assert lines[0].startswith("gradweave: warning: compiled loops cannot be kept")
