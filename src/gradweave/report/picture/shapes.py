"""What a picture consists of: a few kinds of shapes, in an order, on a sheet.

Whatever writes pictures, `svg`, `sheet` and `film`, knows these shapes alone; whatever draws
networks makes them. Coordinates are pixels, y growing downwards.
"""

import dataclasses
import math
from typing import Literal

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]


@dataclasses.dataclass(frozen=True)
class Line:
    """Polylines of one look; they do not join."""

    lines: tuple[tuple[Point, ...], ...]
    stroke: str
    width: float
    dashes: tuple[float, float] | None = None
    """Length of a dash and of a gap."""
    opacity: float = 1.0


@dataclasses.dataclass(frozen=True)
class Polygon:
    """A filled outline."""

    points: tuple[Point, ...]
    fill: str
    opacity: float = 1.0


@dataclasses.dataclass(frozen=True)
class Disc:
    """A disc, with a rim where `width` is positive; only the rim where `fill` is empty."""

    x: float
    y: float
    radius: float
    fill: str
    stroke: str = ""
    width: float = 0.0


@dataclasses.dataclass(frozen=True)
class Box:
    """A rectangle with rounded corners, by its middle."""

    x: float
    y: float
    wide: float
    high: float
    corner: float
    fill: str
    stroke: str = ""
    width: float = 0.0
    turned: bool = False
    """Whether it stands on a corner: turned by 45°."""

    @property
    def outline(self) -> tuple[Point, ...]:
        """Its rim, once around, without the corners' rounding; of a box that is not turned."""
        left, right = self.x - self.wide / 2, self.x + self.wide / 2
        top, foot = self.y - self.high / 2, self.y + self.high / 2
        return (left, top), (right, top), (right, foot), (left, foot), (left, top)


@dataclasses.dataclass(frozen=True)
class Slice:
    """A part of a ring, from one share of the turn to another, clockwise from the top."""

    x: float
    y: float
    inner: float
    outer: float
    begin: float
    end: float
    fill: str
    opacity: float = 1.0

    def corner(self, radius: float, share: float) -> Point:
        """A point at a share of the turn."""
        angle = (share - 0.25) * 2 * math.pi
        return self.x + radius * math.cos(angle), self.y + radius * math.sin(angle)


@dataclasses.dataclass(frozen=True)
class Label:
    """Text on its baseline."""

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
    """Shapes that belong together, one over the other."""

    name: str
    shapes: tuple[Shape, ...]


@dataclasses.dataclass(frozen=True)
class Scene:
    """A sheet with its layers, the lowest first."""

    width: float
    height: float
    title: str
    """What it shows, for readers who do not see it."""
    layers: tuple[Layer, ...]


def centred(x: float, y: float, text: str, size: float, fill: str) -> Label:
    """Bold text about a point; 0.35 of the size is half the height of a capital."""
    return Label(x, y + 0.35 * size, text, size, fill, bold=True)
