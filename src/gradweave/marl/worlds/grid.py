"""Worlds of cells: maps drawn as text, and the result of each action.

In a map ``#`` is a wall, ``<`` and ``>`` are cells that can be left only in that direction, and any
other character except ``.`` is a mark that names the cells where it appears.
"""

import dataclasses
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

ACTIONS = ("up", "right", "down", "left", "stay")
STAY = 4
STEPS = ((-1, 0), (0, 1), (1, 0), (0, -1), (0, 0))
"""Number of rows and columns that each action moves by."""


@dataclasses.dataclass(frozen=True)
class Map:
    """A drawn map."""

    drawn: tuple[str, ...]
    """The rows of the map, all of one length."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.drawn), len(self.drawn[0])

    def cells(self, *marks: str) -> frozenset[int]:
        """The numbers of the cells with any of some marks; cells are numbered row by row."""
        text = "".join(self.drawn)
        return frozenset(cell for cell, mark in enumerate(text) if mark in marks)

    def cell(self, mark: str) -> int:
        """The number of the single cell with a mark."""
        (cell,) = self.cells(mark)
        return cell


def moves(
    drawn: Map,
    *,
    closed: Collection[int] = (),
    conveyor: Collection[int] = (),
    sinks: Collection[int] = (),
) -> NDArray[np.int32]:
    """[2, S, 5] the cell after each action, before and after a door is opened.

    Args:
        drawn: the map.
        closed: cells that cannot be entered before the door is opened.
        conveyor: cells in which an agent stands still before the door is opened, and is carried to
            the right afterwards; these cells cannot be entered from the right.
        sinks: cells that cannot be left.
    """
    rows, columns = drawn.shape
    size = rows * columns
    walls, one_way = drawn.cells("#"), {1: drawn.cells(">"), 3: drawn.cells("<")}
    after = np.tile(np.arange(size, dtype=np.int32)[None, :, None], (2, 1, len(ACTIONS)))
    for cell in range(size):
        row, column = divmod(cell, columns)
        if cell in sinks:
            continue
        for action, (down, right) in enumerate(STEPS):
            inside = 0 <= row + down < rows and 0 <= column + right < columns
            to = (row + down) * columns + column + right
            turned = any(cell in cells and action != way for way, cells in one_way.items())
            against = action == 3 and to in conveyor
            if inside and to not in walls and not turned and not against:
                after[1, cell, action] = to
                after[0, cell, action] = cell if to in closed else to
        if cell in conveyor:
            after[0, cell], after[1, cell] = cell, cell + 1
    return after
