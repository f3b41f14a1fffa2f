"""Over several devices, of which JAX has to know when it starts."""

import os
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE_S

SCRIPT = Path(__file__).with_name("saddle_devices.py")


def test_on_eight_devices_they_are_what_they_are_on_one():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    more = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert len(done.stdout.splitlines()) == 5
