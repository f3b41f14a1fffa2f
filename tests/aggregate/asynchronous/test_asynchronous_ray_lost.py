"""Ray itself is killed under a run."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("optax", reason="the extra learn is not installed")
pytest.importorskip("ray", reason="the extra ray is not installed")

import psutil

from tests.patience import PATIENCE_S

RUNS = '''
import json, os, signal, sys
from gradweave.aggregate.asynchronous import train_on_ray
from gradweave.errors import RunError
from tests.aggregate.asynchronous.cases import task

def killing(name):
    """Kills at the fourteenth update of the run, whichever number a checkpoint lets it begin at."""
    reports = 0
    def report(told):
        nonlocal reports
        reports += 1
        if reports == 14:
            import psutil
            started = psutil.Process().children(recursive=True)
            print(json.dumps([one.pid for one in started]), flush=True)
            os.kill(next(one.pid for one in started if one.name() == name), signal.SIGKILL)
    return report

given = task(workers=2, servers=2, steps=10_000)
try:
    train_on_ray(given, folder=sys.argv[1], checkpoint_every=5, report=killing("raylet"))
except RunError as error:
    print(json.dumps(str(error)), flush=True)
train_on_ray(given, folder=sys.argv[1], checkpoint_every=5, report=killing("gcs_server"))
'''


def there(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_raylet_and_then_a_gcs_that_are_killed_end_the_run(tmp_path):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        done = subprocess.run(
            [sys.executable, "-c", RUNS, str(tmp_path / "run")],
            cwd=Path(__file__).parents[3],
            env={**os.environ, "RAY_TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert os.listdir(folder) == [], "nothing of Ray's is left in its folder"
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert len(lines) == 3, "no log of Ray's"
    first, how, second = map(json.loads, lines)
    kept = r"updates up to \d+ are kept: train again with folder \S+ to resume"
    assert re.fullmatch(rf"Ray's raylet \(process \d+\) ended; {kept}", how)
    *traceback, last = done.stderr.splitlines()
    assert all(line.startswith(("Traceback", " ")) for line in traceback), "no log of Ray's"
    error = r"gradweave\.errors\.RunError: Ray's GCS \(process \d+\) ended; "
    assert re.fullmatch(error + kept, last)
    assert len(first) > 8
    assert not [process for process in (*first, *second) if there(process)]
