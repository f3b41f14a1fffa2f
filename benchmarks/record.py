"""Writes and reads results, with what is needed to measure them again."""

import json
import os
import platform
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("gradweave", "numpy", "numba", "ortools", "networkx", "msgspec")


def record(
    name: str, command: str | None = None, libraries: Iterable[str] = (), **content: Any
) -> Path:
    """Writes benchmarks/results/NAME.json.

    Args:
        name: of the result.
        command: the exact command, from the repository's root, that measures it again; if not
            given, that of experiments/NAME.py without arguments.
        libraries: packages whose versions matter besides the usual ones.
        content: seeds, rows and anything else worth recording.
    """
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    result = {
        "command": command or f"python benchmarks/experiments/{name}.py",
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": hardware(),
        "versions": versions() | {library: version(library) for library in libraries},
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
    """The versions of Python and of the packages that schedules depend on."""
    by_name = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            by_name[package] = version(package)
        except PackageNotFoundError:
            by_name[package] = "not installed"
    return by_name


def show(row: dict[str, Any], digits: int = 4) -> None:
    """Prints a row, its numbers rounded."""
    rounded = {k: round(x, digits) if isinstance(x, float) else x for k, x in row.items()}
    print(rounded, flush=True)
