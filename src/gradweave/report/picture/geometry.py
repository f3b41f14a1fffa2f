"""Positions of nodes, links and routes on a sheet of a given width.

Pictures use this module as the page uses geometry.js, which takes the width of the reader's window;
a test compares the two. Both start from the positions of `gradweave.report.layout`.
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gradweave.report.bars import bar_room
from gradweave.report.frames import Frame
from gradweave.report.layout import bends, draw, node_radius
from gradweave.report.picture.shapes import Point
from gradweave.report.short_names import short_names
from gradweave.topology.topology import Topology

DENSE_RADIUS = 12.0
"""If servers are smaller, lines and lanes are drawn closer together; as on the page."""
_MANY = 60
"""With more servers, the drawing fills more of the sheet, and is as high as it is wide."""
_STEPS = 16
"""Number of straight segments of a bowed link."""


@dataclasses.dataclass(frozen=True, eq=False)
class Geometry:
    """A network laid out on a sheet; all lengths in pixels, y growing downwards."""

    topology: Topology
    width: float
    height: float
    """Height of the drawing without heading and legend."""
    radius: float
    """Radius of a server."""
    at: NDArray[np.float64]
    """[V, 2] position of each node; the centre of a bar."""
    reach: NDArray[np.float64]
    """[V, 2] half of a bar's extent along x and y; zeros for a point."""
    ends: NDArray[np.float64]
    """[L, 2] where each link direction leaves its source."""
    bend: NDArray[np.float64]
    """[L] how far each link bows to its right, as a fraction of its length."""
    frames: tuple[Frame, ...] = ()
    """Outlines of boxes, racks and pods."""

    @staticmethod
    def of(topology: Topology, width: float) -> "Geometry":
        """Fits a network into a width, with a margin for links that bow beyond the nodes."""
        drawing = draw(topology)
        flip = np.array([1.0, -1.0])
        at, ends = drawing.positions * flip, drawing.ends * flip
        bend = bends(topology, drawing)
        least, largest = drawing.extent
        low, high = (
            np.array([x, y]) for x, y in ((least[0], -largest[1]), (largest[0], -least[1]))
        )
        low[0], high[0] = _with_bows(topology, at, bend, low[0], high[0])
        wide, tall = np.maximum(high - low, 1e-6)
        many = topology.num_servers > _MANY
        side = 50 if many else 110
        room = 0.9 * width if many else width - side if width < 700 else 0.56 * width
        scale = min((width - side) / wide, room / tall)
        radius = max(1.6, min(40.0, node_radius(topology, drawing) * scale))
        margin = radius * 1.5 + (6 if many else 12) + _bulge(topology, at, bend, scale)
        height = tall * scale + 2 * margin
        middle, centre = (low + high) / 2, np.array([width / 2, height / 2])

        def place(points: NDArray) -> NDArray:
            return centre + (points - middle) * scale

        return Geometry(
            topology,
            width,
            float(height),
            float(radius),
            place(at),
            drawing.reach * scale,
            place(ends),
            bend,
            tuple(frame.scaled(lambda at: place(at * flip), scale) for frame in drawing.frames),
        )

    def trimmed(self, top: float, margin: float) -> "Geometry":
        """The same drawing with its highest point at `top` and less space above and below.

        If links bow beyond the sides, the sheet is made wider.
        """
        low, high = self._extent()
        over = max(0.0, margin - float(low[0]), float(high[0]) - (self.width - margin))
        move = np.array([over, top - float(low[1])])
        return dataclasses.replace(
            self,
            width=self.width + 2 * over,
            height=float(high[1] - low[1]) + margin,
            at=self.at + move,
            ends=self.ends + move,
            frames=tuple(frame.scaled(lambda at: at + move, 1.0) for frame in self.frames),
        )

    def _extent(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The top left and bottom right corners of everything that is drawn, lanes included."""
        own = np.full((len(self.at), 2), self.radius * 1.1)
        thick = np.where(self.bar[:, None], np.maximum(self.reach, self.room[:, None] / 2), own)
        lows, highs = [self.at - thick], [self.at + thick]
        for frame in self.frames:
            lows.append(np.array([[frame.x - frame.wide, frame.y - frame.high]]))
            highs.append(np.array([[frame.x + frame.wide, frame.y + frame.high]]))
        for link in np.flatnonzero(self.bend):
            ends = int(self.topology.source[link]), int(self.topology.target[link])
            lane = np.array(self.lane(*ends, self.radius * 0.9))
            lows.append(lane)
            highs.append(lane)
        return np.concatenate(lows).min(axis=0), np.concatenate(highs).max(axis=0)

    @property
    def side(self) -> float:
        """Distance of a link's first lane from its centre, to the right."""
        return max(1.0 if self.radius < DENSE_RADIUS else 2.4, self.radius * 0.26)

    @property
    def stroke(self) -> float:
        """Width of a transfer's track."""
        return max(0.8, min(4.0, self.radius * 0.14))

    @cached_property
    def short_names(self) -> list[str]:
        """[V] the text in each node."""
        return short_names(self.topology)

    @cached_property
    def bar(self) -> NDArray[np.bool_]:
        """[V] whether a switch is drawn as a bar."""
        return np.asarray(self.reach.any(axis=1))

    @cached_property
    def radii(self) -> list[float]:
        """[V] distance that links keep from each node's centre."""
        server, bar = self.topology.is_server, self.bar
        other = np.where(bar, 0.0, max(1.6, self.radius * 0.62))
        return np.where(server, self.radius, other).tolist()

    @cached_property
    def room(self) -> NDArray[np.float64]:
        """[V] thickness of each bar; see `bar_room`."""
        room = bar_room(self.at, self.reach, self.radius, np.asarray(self.radii))
        return np.where(self.bar, np.maximum(room, 1.6), 0.0)

    def link(self, source: int, target: int) -> int:
        """The link direction between two nodes."""
        return self._link_of[source, target]

    @cached_property
    def _link_of(self) -> dict[tuple[int, int], int]:
        pairs = zip(self.topology.source.tolist(), self.topology.target.tolist(), strict=True)
        return {pair: link for link, pair in enumerate(pairs)}

    @cached_property
    def _ends(self) -> list[list[float]]:
        return self.ends.tolist()

    @cached_property
    def _at(self) -> list[list[float]]:
        return self.at.tolist()

    def lane(
        self, source: int, target: int, offset: float = 0.0, trims: Point = (0.0, 0.0)
    ) -> list[Point]:
        """Points along a link direction, shifted to its right, from one node's edge to the other's.

        Args:
            source: node.
            target: node.
            offset: shift to the right.
            trims: length to leave out at each end.
        """
        link = self.link(source, target)
        (ax, ay), (bx, by) = self._ends[link], self._ends[self.link(target, source)]
        dx, dy = bx - ax, by - ay
        length = math.hypot(dx, dy) or 1.0
        nx, ny = -dy / length, dx / length
        bow = float(self.bend[link]) * length
        begin, end = min(trims[0] / length, 0.45), 1 - min(trims[1] / length, 0.45)
        steps = _STEPS if bow else 1
        points = []
        for step in range(steps + 1):
            s = begin + (end - begin) * step / steps
            out = offset + 2 * s * (1 - s) * bow
            points.append((ax + dx * s + nx * out, ay + dy * s + ny * out))
        return points

    def way(
        self, route: Sequence[int], offsets: Sequence[float], lanes: Sequence[float]
    ) -> list[Point]:
        """Points along a whole route, with soft turns at points and straight runs along bars.

        Args:
            route: its nodes.
            offsets: shift of each of its links to the right.
            lanes: distance from the centre line of each bar, by place in the route.
        """
        points: list[Point] = []
        final = len(route) - 2
        for i, (source, target) in enumerate(pairwise(route)):
            trims = (
                self.radii[source] * (0.75 if i else 1.0) + (0.0 if i else self.stroke * 0.8),
                self.radii[target] * (1.0 if i == final else 0.75)
                + (self.stroke * 1.3 if i == final else 0.0),
            )
            part = self.lane(source, target, offsets[i], trims)
            if self.bar[source]:
                part[0] = self._onto_lane(source, part[0], lanes[i])
            elif i:
                points += _turn(points[-1], part[0], self._at[source])
            if self.bar[target]:
                part[-1] = self._onto_lane(target, part[-1], lanes[i + 1])
            points += part
        return points

    def _onto_lane(self, bar: int, point: Point, offset: float) -> Point:
        if self.reach[bar, 0] > 0:
            return point[0], self._at[bar][1] + offset
        return self._at[bar][0] + offset, point[1]

    def span_on_bar(self, before: int, bar: int, after: int) -> Point:
        """The start and end coordinates of a route's run along a bar."""
        along = 0 if self.reach[bar, 0] > 0 else 1
        a, b = (self._ends[self.link(bar, other)][along] for other in (before, after))
        return min(a, b), max(a, b)


class Way:
    """A polyline, parametrised by arc length."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = tuple(points)
        self._along = [0.0]
        for a, b in pairwise(self.points):
            self._along.append(self._along[-1] + math.dist(a, b))

    def at(self, share: float) -> Point:
        """The point at a fraction of its length."""
        want = share * self._along[-1]
        i = 1
        while i < len(self.points) - 1 and self._along[i] < want:
            i += 1
        (ax, ay), (bx, by) = self.points[i - 1], self.points[i]
        s = (want - self._along[i - 1]) / ((self._along[i] - self._along[i - 1]) or 1.0)
        return ax + (bx - ax) * s, ay + (by - ay) * s

    def head(self, size: float) -> tuple[Point, ...]:
        """The arrowhead at its end."""
        (px, py), (x, y) = self.points[-2:]
        length = math.hypot(x - px, y - py) or 1.0
        ux, uy = (x - px) / length * size, (y - py) / length * size
        return (
            (x - ux - uy * 0.62, y - uy + ux * 0.62),
            (x + ux * 0.25, y + uy * 0.25),
            (x - ux + uy * 0.62, y - uy - ux * 0.62),
        )


def _turn(a: Point, b: Point, middle: Sequence[float]) -> list[Point]:
    """A quadratic curve between two points, pulled towards the centre of the node in between."""
    cx, cy = (a[0] + b[0]) / 4 + middle[0] / 2, (a[1] + b[1]) / 4 + middle[1] / 2
    return [
        (
            a[0] * (1 - s) ** 2 + 2 * cx * s * (1 - s) + b[0] * s**2,
            a[1] * (1 - s) ** 2 + 2 * cy * s * (1 - s) + b[1] * s**2,
        )
        for s in (0.2, 0.4, 0.6, 0.8)
    ]


def _with_bows(
    topology: Topology, at: NDArray, bend: NDArray, left: float, right: float
) -> tuple[float, float]:
    """The horizontal extent of a drawing, including the midpoints of bowed links."""
    bowed = np.flatnonzero(bend)
    a, b = at[topology.source[bowed]], at[topology.target[bowed]]
    middle = (a[:, 0] + b[:, 0]) / 2 - (b[:, 1] - a[:, 1]) * bend[bowed] / 2
    return min([left, *middle.tolist()]), max([right, *middle.tolist()])


def _bulge(topology: Topology, at: NDArray, bend: NDArray, scale: float) -> float:
    """Approximate distance by which bowed links extend beyond the outermost nodes."""
    if not bend.any():
        return 0.0
    span = np.hypot(*(at[topology.source] - at[topology.target]).T)
    return float((np.abs(bend) * span).max()) * scale * 0.3
