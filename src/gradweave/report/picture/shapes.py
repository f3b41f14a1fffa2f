"""The shapes that a picture consists of: a few kinds, in order, on a sheet.

The writers of pictures, `svg`, `sheet` and `film`, know only these shapes, and the code that draws
networks makes them. Coordinates are pixels, y growing downwards.
"""

import dataclasses
import math
from typing import Literal

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]


@dataclasses.dataclass(frozen=True)
class Line:
    """Separate polylines with the same look."""

    lines: tuple[tuple[Point, ...], ...]
    stroke: str
    width: float
    dashes: tuple[float, float] | None = None
    """Lengths of a dash and of a gap."""
    opacity: float = 1.0


@dataclasses.dataclass(frozen=True)
class Polygon:
    """A filled outline."""

    points: tuple[Point, ...]
    fill: str
    opacity: float = 1.0


@dataclasses.dataclass(frozen=True)
class Disc:
    """A disc, with a rim if `width` is positive; only the rim if `fill` is empty."""

    x: float
    y: float
    radius: float
    fill: str
    stroke: str = ""
    width: float = 0.0


@dataclasses.dataclass(frozen=True)
class Box:
    """A rectangle with rounded corners, given by its centre."""

    x: float
    y: float
    wide: float
    high: float
    corner: float
    fill: str
    stroke: str = ""
    width: float = 0.0
    turned: bool = False
    """Whether it stands on a corner, turned by 45°."""

    @property
    def outline(self) -> tuple[Point, ...]:
        """Its rim as a closed path, without rounded corners; for a box that is not turned."""
        left, right = self.x - self.wide / 2, self.x + self.wide / 2
        top, foot = self.y - self.high / 2, self.y + self.high / 2
        return (left, top), (right, top), (right, foot), (left, foot), (left, top)


@dataclasses.dataclass(frozen=True)
class Slice:
    """A part of a ring between two fractions of a turn, clockwise from the top."""

    x: float
    y: float
    inner: float
    outer: float
    begin: float
    end: float
    fill: str
    opacity: float = 1.0

    def corner(self, radius: float, share: float) -> Point:
        """The point at a radius and a fraction of a turn."""
        angle = (share - 0.25) * 2 * math.pi
        return self.x + radius * math.cos(angle), self.y + radius * math.sin(angle)


@dataclasses.dataclass(frozen=True)
class Label:
    """Text at its baseline."""

    x: float
    y: float
    text: str
    size: float
    fill: str
    anchor: Anchor = "middle"
    bold: bool = False


Shape = Line | Polygon | Disc | Box | Slice | Label


@dataclasses.dataclass(frozen=True)
class Layer:
    """Shapes that belong together, painted in order."""

    name: str
    shapes: tuple[Shape, ...]


@dataclasses.dataclass(frozen=True)
class Scene:
    """A sheet with its layers, the lowest first."""

    width: float
    height: float
    title: str
    """A description of its content for readers who cannot see it."""
    layers: tuple[Layer, ...]


def centred(x: float, y: float, text: str, size: float, fill: str) -> Label:
    """Bold text centred at a point; 0.35 of the size is half the height of a capital."""
    return Label(x, y + 0.35 * size, text, size, fill, bold=True)
