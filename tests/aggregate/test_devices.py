"""Aggregations where JAX has eight devices, which it has to know when it starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

pytest.importorskip("jax")

CASES = Path(__file__).with_name("device_cases.py")


@pytest.mark.slow
def test_on_eight_devices():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    environment = {
        **os.environ,
        "XLA_FLAGS": flags,
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # programs that run for a moment only
    }
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(CASES)],
        cwd=CASES.parents[2],
        env={name: value for name, value in environment.items() if "XDIST" not in name},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout
