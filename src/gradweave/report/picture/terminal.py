"""Scenes as characters for terminals: lines in Braille dots, names and pieces as text."""

import dataclasses
import math
from collections.abc import Iterator
from itertools import pairwise

from gradweave.report.picture.colours import LINK, MUTED, RULE
from gradweave.report.picture.shapes import Box, Disc, Label, Layer, Line, Point, Scene

_ACROSS, _DOWN = 2, 4
"""Dots per character."""
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a Braille character by row and column, from Unicode's Braille Patterns block."""
_BLANK = 0x2800
LEAST_COLUMNS = 20
_ASPECT = 2.0
"""A character is about twice as high as it is wide."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """A character and its colour; an empty colour means plain text."""

    text: str
    colour: str = ""


def characters(scene: Scene, columns: int) -> list[list[Cell]]:
    """A scene's links, transfers and names in characters, without heading and legend.

    Args:
        scene: the scene to draw.
        columns: characters per row.

    Returns:
        Rows of cells, without empty rows at the top and bottom.
    """
    columns = max(LEAST_COLUMNS, columns)
    scale = columns / scene.width
    grid = _Grid(columns, math.ceil(scene.height * scale / _ASPECT), scale)
    for layer in scene.layers:
        if layer.name in ("links", "transfers"):
            for shape in layer.shapes:
                if isinstance(shape, Line):
                    for points in shape.lines:
                        grid.line(points, shape.stroke)
        elif layer.name == "frames":
            for shape in layer.shapes:
                if isinstance(shape, Box):
                    grid.line(shape.outline, RULE)
                elif isinstance(shape, Label):
                    grid.write(shape.x, shape.y - 0.35 * shape.size, shape.text, MUTED)
        elif layer.name == "switches":
            for shape in layer.shapes:
                if isinstance(shape, Box):
                    grid.write(shape.x, shape.y, "◆", MUTED)
        elif layer.name in ("servers", "pieces"):
            _write_names(grid, layer)
    return grid.trimmed()


def _write_names(grid: "_Grid", layer: Layer) -> None:
    """Writes servers' names, and pieces' numbers in the colours of their symbols."""
    colour = ""
    for shape in layer.shapes:
        if isinstance(shape, Disc | Box):
            colour = shape.stroke if isinstance(shape, Box) else shape.fill
        elif isinstance(shape, Label):
            y = shape.y - 0.35 * shape.size
            piece = layer.name == "pieces"
            grid.write(shape.x, y, shape.text if piece else f"({shape.text})", colour * piece)


class _Grid:
    def __init__(self, columns: int, rows: int, scale: float) -> None:
        self._columns, self._rows, self._scale = columns, rows, scale
        self._dots = [[0] * columns for _ in range(rows)]
        self._colours = [[""] * columns for _ in range(rows)]
        self._text: dict[tuple[int, int], Cell] = {}

    def line(self, points: tuple[Point, ...], colour: str) -> None:
        """Dots along a polyline; transfers replace characters of links and outlines."""
        for x, y in self._along(points):
            column, row = x // _ACROSS, y // _DOWN
            if not (0 <= column < self._columns and 0 <= row < self._rows):
                continue
            if colour not in (LINK, RULE) and self._colours[row][column] in (LINK, RULE):
                self._dots[row][column] = 0
            self._colours[row][column] = colour
            self._dots[row][column] |= _BITS[y % _DOWN][x % _ACROSS]

    def _along(self, points: tuple[Point, ...]) -> Iterator[tuple[int, int]]:
        across, down = self._scale * _ACROSS, self._scale * _DOWN / _ASPECT
        for (ax, ay), (bx, by) in pairwise(points):
            steps = max(1, math.ceil(max(abs(bx - ax) * across, abs(by - ay) * down)))
            for step in range(steps + 1):
                s = step / steps
                yield int((ax + (bx - ax) * s) * across), int((ay + (by - ay) * s) * down)

    def write(self, x: float, y: float, text: str, colour: str) -> None:
        """Writes text centred at a point."""
        row = int(y * self._scale / _ASPECT)
        first = round(x * self._scale - len(text) / 2)
        for place, character in enumerate(text):
            self._text[row, first + place] = Cell(character, colour)

    def trimmed(self) -> list[list[Cell]]:
        """The rows from the first to the last that is not empty."""
        rows = [
            [self._cell(row, column) for column in range(self._columns)]
            for row in range(self._rows)
        ]
        full = [place for place, row in enumerate(rows) if any(cell.text != " " for cell in row)]
        return rows[full[0] : full[-1] + 1] if full else []

    def _cell(self, row: int, column: int) -> Cell:
        written = self._text.get((row, column))
        if written is not None:
            return written
        dots = self._dots[row][column]
        return Cell(chr(_BLANK + dots) if dots else " ", self._colours[row][column])
