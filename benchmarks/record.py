"""Writes and reads results, with what is needed to measure them again.

A result is a JSON file. Where its figures come from stands at its head, in `sources`: for each the
commit, the date, the hardware, the versions and the command. Each row, which is an object in a
list, names its source by its place there; everything else is of the last one, `source`, except
parts that `kept` names. `frozen` is the last commit with the script of a settled ablation, which
was removed after it (CONTRIBUTING.md). Experiments need not care: `record` adds what is missing,
and rows that are read by `recorded` keep the source that they had.
"""

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gradweave.common.atomic import atomic_write

RESULTS = Path(__file__).parent / "results"
EXPERIMENTS = Path(__file__).parent / "experiments"
PACKAGES = ("gradweave", "numpy", "numba", "ortools", "networkx", "msgspec")
ABOUT = ("command", "frozen", "source", "kept", "sources")
"""Keys of a result that are not what was measured."""

Source = dict[str, Any]


def record(
    name: str,
    command: str | None = None,
    libraries: Iterable[str] = (),
    *,
    other_versions: Mapping[str, str] | None = None,
    kept: Mapping[str, Source] | None = None,
    **content: Any,
) -> Path:
    """Writes benchmarks/results/NAME.json.

    Args:
        name: of the result.
        command: the exact command, from the repository's root, that measures it again; if not
            given, the one that experiments/NAME.py begins with, without arguments.
        libraries: packages whose versions matter besides the usual ones.
        other_versions: by name, of what another interpreter imported.
        kept: sources of parts that were not measured now, as `recorded` returns them.
        content: seeds, rows and anything else worth recording.
    """
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    command = command or command_of(name)
    now = source_now(command, libraries)
    now["versions"] |= other_versions or {}
    atomic_write(path, as_text(command, now, content, kept or {}).encode())
    print(f"written: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
    return path


def command_of(name: str) -> str:
    """The command that an experiment names first, on how many cores included."""
    plain, script = f"python benchmarks/experiments/{name}.py", EXPERIMENTS / f"{name}.py"
    text = script.read_text() if script.exists() else ""
    found = re.search(rf"^ *((taskset -c 0 )?{re.escape(plain)})", text, re.MULTILINE)
    return found[1] if found else plain


def as_text(
    command: str, now: Source, content: Mapping[str, Any], kept: Mapping[str, Source]
) -> str:
    """A result as its file has it: a source a line, and rows that name theirs by its place."""
    sources: list[Source] = []

    def place(source: Source) -> int:
        if source not in sources:
            sources.append(source)
        return sources.index(source)

    def numbered(value: Any) -> Any:
        if isinstance(value, dict):
            own = value.get("source")
            if isinstance(own, int):
                raise ValueError(f"source {own} is a place in another file: read rows by recorded")
            inside = {key: numbered(one) for key, one in value.items()}
            return inside | {"source": place(own)} if isinstance(own, dict) else inside
        return [numbered(one) for one in value] if isinstance(value, list | tuple) else value

    parts = {name: numbered(part) for name, part in content.items()}
    parts_kept = {name: place(one) for name, one in kept.items() if name in parts and one != now}
    for row in rows(parts):
        row.setdefault("source", place(now))
    head: dict[str, Any] = {"command": command, "source": place(now)}
    head |= {"kept": parts_kept} if parts_kept else {}
    lines = ",\n".join(f"  {json.dumps(one, ensure_ascii=False)}" for one in sources)
    text = json.dumps(head | {"sources": None} | parts, indent=1, ensure_ascii=False)
    return text.replace('\n "sources": null', f'\n "sources": [\n{lines}\n ]', 1) + "\n"


def rows(parts: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The objects in lists of a result, also where a part holds several lists by name."""
    for part in parts.values():
        for values in part.values() if isinstance(part, dict) else [part]:
            if isinstance(values, list):
                yield from (row for row in values if isinstance(row, dict))


def load(name: str) -> dict[str, Any]:
    """Reads benchmarks/results/NAME.json."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def recorded(name: str, parts: Collection[str]) -> tuple[dict[str, Any], dict[str, Source]]:
    """Parts that an earlier run recorded, to be recorded again beside others.

    Returns:
        The parts that there are, rows with their source itself rather than its place, and
        `record`'s `kept`: the sources of these parts, from which those measured now are taken out.
    """
    if not (RESULTS / f"{name}.json").exists():
        return {}, {}
    result = load(name)
    sources, places = result["sources"], result.get("kept", {})

    def with_source(value: Any) -> Any:
        if isinstance(value, dict):
            inside = {key: with_source(one) for key, one in value.items()}
            own = inside.get("source")
            return inside | {"source": sources[own]} if isinstance(own, int) else inside
        return [with_source(one) for one in value] if isinstance(value, list) else value

    there = {part: with_source(result[part]) for part in parts if part in result}
    without_rows = [part for part, value in there.items() if not isinstance(value, list)]
    return there, {part: sources[places.get(part, result["source"])] for part in without_rows}


def source_now(command: str, libraries: Iterable[str] = ()) -> Source:
    """Where what is measured now comes from."""
    return {
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": hardware(),
        "versions": versions() | {library: version(library) for library in libraries},
        "command": command,
    }


@cache
def commit() -> str:
    """The commit when it is first asked for; `-dirty` where anything but results differs from it.

    Experiments ask as they start, since the tree may change while they run.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(RESULTS.parents[1]), *arguments]
        return subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL).strip()

    try:
        differs = git("status", "--porcelain", "--", ":/", ":(top,exclude)benchmarks/results")
        return git("rev-parse", "HEAD") + "-dirty" * bool(differs)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def hardware() -> dict[str, Any]:
    """The processor, how many cores, how much memory; and the GPU, if there is one."""
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), cpu)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    here = {"cpu": cpu, "cores": os.cpu_count(), "memory_gib": round(memory / 2**30, 1)}
    ask = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return here | {"gpu": subprocess.check_output(ask, text=True).strip()}
    except (OSError, subprocess.CalledProcessError):
        return here


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
    """Prints a row, its numbers rounded, without long lists."""
    rounded = {k: round(x, digits) if isinstance(x, float) else x for k, x in row.items()}
    short = {k: x for k, x in rounded.items() if not isinstance(x, dict | list) or len(x) <= 8}
    print(short, flush=True)


def printed(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows as they are measured, each shown as soon as it is there."""
    there = []
    for row in rows:
        there.append(row)
        show(row)
    return there
