"""Processes that experiments start."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any


def printed_json(command: list[str]) -> Any:
    """The JSON that a command prints; its messages pass through.

    Raises:
        SystemExit: it failed.
    """
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return json.loads(done.stdout)


def with_compilation_cache(folder: Path) -> dict[str, str]:
    """The environment of a process whose compiled JAX programs, small ones too, are kept."""
    return os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
