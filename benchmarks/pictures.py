"""Pictures of recorded results, which say what they were drawn from.

A picture `results/NAME.png` is drawn from `results/NAME.json` alone, so that it can be drawn again
without measuring: `python benchmarks/experiments/NAME.py --redraw`. Its text chunk holds digests of
what it shows, by which `render.py --check` sees whether it is older than its data. Times of files
would not do: a clone has none.
"""

import hashlib
import json
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.record import ABOUT, RESULTS, load
from benchmarks.record import rows as rows_of

KEYWORD = b"drawn from"
START = b"\x89PNG\r\n\x1a\n"


class Picture(NamedTuple):
    """How the picture of a result is drawn."""

    name: str
    draw: Callable[[dict[str, Any], Path], None]
    """Takes the result as `load` returns it, and where to write the PNG."""
    parts: tuple[str, ...] = ()
    """Of the result that it shows; none: all."""

    def redraw(self) -> None:
        """Draws it from what is recorded."""
        result, path = load(self.name), RESULTS / f"{self.name}.png"
        self.draw(result, path)
        shown = self.parts or [part for part in result if part not in ABOUT]
        stamp(path, {"parts": {part: digest(result[part]) for part in shown}})
        print(f"drawn: {path.name}")


def figure_with(
    size: tuple[float, float],
    rows: int = 1,
    columns: int = 1,
    *,
    dpi: int = 160,
    layout: Any = "constrained",
    framed: bool = False,
    **options: Any,
) -> tuple[Any, Any]:
    """A figure, and its panels as matplotlib's `subplots` has them.

    Args:
        size: in inches.
        rows, columns: of panels.
        dpi, layout: of the figure.
        framed: whether panels have a line above them and on their right.
        options: of `subplots`.
    """
    from matplotlib.figure import Figure  # not needed to read how a picture was drawn

    figure = Figure(figsize=size, dpi=dpi, layout=layout)
    panels = figure.subplots(rows, columns, **options)
    for panel in [] if framed else figure.axes:
        panel.spines[["top", "right"]].set_visible(False)
    return figure, panels


def stamp_samples(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """For a picture of samples that are not recorded: the rows of the runs that made them."""
    stamp(path, {"rows": [digest(row) for row in rows]})


def digest(value: Any) -> str:
    """Of figures, whatever their source."""

    def figures(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: figures(one) for key, one in value.items() if key != "source"}
        return [figures(one) for one in value] if isinstance(value, list | tuple) else value

    text = json.dumps(figures(value), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def stamp(path: Path, drawn_from: dict[str, Any]) -> None:
    """Writes into a PNG what it was drawn from, in place of what it said before."""
    data = path.read_bytes()
    kept = b"".join(whole for kind, body, whole in _chunks(data) if not _is_stamp(kind, body))
    header = 8 + 4 + 4 + 13 + 4  # the signature and IHDR, which comes first
    body = b"tEXt" + KEYWORD + b"\0" + json.dumps(drawn_from).encode("latin-1")
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    data = START + kept
    path.write_bytes(data[:header] + chunk + data[header:])


def drawn_from(path: Path) -> dict[str, Any] | None:
    """What a PNG says that it was drawn from."""
    for kind, body, _ in _chunks(path.read_bytes()):
        if _is_stamp(kind, body):
            return json.loads(body.partition(b"\0")[2])
    return None


def _is_stamp(kind: bytes, body: bytes) -> bool:
    return kind == b"tEXt" and body.startswith(KEYWORD + b"\0")


def _chunks(data: bytes) -> Iterable[tuple[bytes, bytes, bytes]]:
    """Kind, body, and the whole of each chunk of a PNG."""
    at = len(START)
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        end = at + 12 + length
        yield data[at + 4 : at + 8], data[at + 8 : end - 4], data[at:end]
        at = end


def stale(path: Path) -> str:
    """Why a picture in results/ is not of what is recorded; empty if it is."""
    if not path.with_suffix(".json").exists():
        return f"{path.name}: there is no {path.stem}.json"
    said, result = drawn_from(path), load(path.stem)
    again = f"python benchmarks/experiments/{path.stem}.py --redraw"
    if said is None:
        return f"{path.name} does not say what it was drawn from: {again}"
    if "rows" in said:  # of samples that are not recorded
        recorded = {digest(row) for row in rows_of(result)}
        gone = len(set(said["rows"]) - recorded)
        return f"{path.name}: {gone} of the runs that it shows are not recorded" if gone else ""
    older = [part for part, was in said["parts"].items() if digest(result.get(part)) != was]
    return f"{path.name} is older than {', '.join(older)} of its data: {again}" if older else ""
