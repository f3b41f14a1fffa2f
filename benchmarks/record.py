"""Writes a result beside what it was measured on, so that it can be measured again."""

import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("gradweave", "numpy", "numba", "ortools", "networkx", "msgspec")


def record(name: str, command: str, **content: Any) -> Path:
    """Writes benchmarks/results/NAME.json.

    Args:
        name: of the result.
        command: the exact command, from the repository's root, that measures it again.
        content: seeds, rows and whatever else there is to say.
    """
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    result = {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": hardware(),
        "versions": versions(),
        **content,
    }
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(f"written: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
    return path


def load(name: str) -> dict[str, Any]:
    """Reads benchmarks/results/NAME.json."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def hardware() -> dict[str, Any]:
    """The processor, how many cores, how much memory."""
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), cpu)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": cpu, "cores": os.cpu_count(), "memory_gib": round(memory / 2**30, 1)}


def versions() -> dict[str, str]:
    """Python's version, and those of the packages that matter here."""
    found = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
