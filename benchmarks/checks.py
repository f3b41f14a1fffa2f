"""What must hold of every recorded result and picture: part of `render.py --check`."""

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.commands import unfit
from benchmarks.pictures import stale
from benchmarks.record import RESULTS, rows

OF_A_SOURCE = ("commit", "date", "hardware", "versions", "command")


def problems() -> Iterator[str]:
    """What does not hold, a line each."""
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text())
        for problem in without_source(result):
            yield f"{path.name}: {problem}"
        command = result.get("command")
        why = unfit(command) if command else "no command"
        if why and "frozen" not in result:
            yield f"{path.name}: {command!r} does not measure again: {why}"
    for path in sorted(RESULTS.glob("*.png")):
        if why := stale(path):
            yield why


def without_source(result: dict[str, Any]) -> Iterator[str]:
    """What a result does not say about where its figures come from."""
    sources = result.get("sources")
    if not sources:
        yield "no sources; benchmarks/record.py writes them"
        return
    for number, source in enumerate(sources):
        lacks = [name for name in OF_A_SOURCE if not source.get(name)]
        if lacks:
            yield f"source {number} lacks {', '.join(lacks)}"
    places = range(len(sources))
    parts = {name: part for name, part in result.items() if name != "sources"}
    lost = sum(row.get("source") not in places for row in rows(parts))
    if lost:
        yield f"{lost} rows name no source"
    if {result.get("source"), *result.get("kept", {}).values()} - set(places):
        yield "its parts name no source"
