"""Schedules on many devices, in one process and in several, against the oracle.

JAX learns at its start how many devices it has, so this needs processes of its own.
"""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

pytest.importorskip("jax")

ROOT = Path(__file__).parents[2]
GROUPS = ("networks 1", "networks 2", "large", "derivatives", "transformations")


def started(module: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.execute.{module}", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_many_devices(group: str):
    process = started("jax_mesh_cases", group)
    try:
        said, complaint = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 0, complaint
    found = json.loads(said)
    assert len(found["seconds"]) > 4
    assert not found["wrong"], "\n".join(f"{k}: {v}" for k, v in found["wrong"].items())


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.parametrize(
    "count", [pytest.param(2, marks=pytest.mark.quick), pytest.param(4, marks=pytest.mark.slow)]
)
def test_several_processes(count: int):
    address = f"127.0.0.1:{free_port()}"
    processes = [
        started("jax_mesh_process", address, str(count), str(number)) for number in range(count)
    ]
    try:
        for process in processes:
            said, complaint = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, complaint
            assert said.splitlines()[-1] == "equal"
    finally:
        for process in processes:
            process.kill()
            process.wait()
