"""A network as shapes: links, switches, and servers with the contributions that they hold."""

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from gradweave.report.frames import named
from gradweave.report.picture import colours
from gradweave.report.picture.geometry import DENSE_RADIUS, Geometry
from gradweave.report.picture.shapes import (
    Box,
    Disc,
    Label,
    Layer,
    Line,
    Point,
    Shape,
    Slice,
    centred,
)

_LEAST_SLICE = 3.2
"""Width in pixels of the narrowest slice of a ring; below it a ring has a single arc."""
_LEAST_TEXT = 6.0
"""Size in pixels of the smallest names that are written."""


@dataclasses.dataclass(frozen=True, eq=False)
class Rings:
    """The pieces in the servers' rings."""

    share: NDArray[np.float64]
    """[P] part of the gradient in each piece."""
    colours: list[str]
    """[P] colours of the pieces."""
    complete: NDArray[np.int64]
    """[P] number of contributions in a complete sum."""
    asked: NDArray[np.bool_]
    """[V, P] whether a node must receive each piece."""


def links(geometry: Geometry) -> Layer:
    """All links, one shape per bandwidth, wider for higher bandwidth."""
    topology = geometry.topology
    bands, band = np.unique(topology.bandwidth_bytes_per_s, return_inverse=True)
    most = max(0.8, 0.6 * _least_gap(geometry))
    lines: list[list[tuple[Point, ...]]] = [[] for _ in bands]
    ends = zip(topology.source.tolist(), topology.target.tolist(), band.tolist(), strict=True)
    for source, target, of in ends:
        if source < target:
            lines[of].append(tuple(geometry.lane(source, target)))
    shapes = [
        Line(tuple(some), colours.LINK, min(most, geometry.stroke * width + 0.3))
        for some, width in zip(lines, band_widths(len(bands)), strict=True)
        if some
    ]
    return Layer("links", tuple(shapes))


def band_widths(bands: int) -> list[float]:
    """Thickness of links of each bandwidth relative to a track, by rank of bandwidth."""
    return [0.75] if bands < 2 else [0.5 + 1.7 * band / (bands - 1) for band in range(bands)]


def frames(geometry: Geometry) -> Layer:
    """Outlines of boxes, racks and pods, with their names."""
    shapes: list[Shape] = []
    written = named(geometry.frames)
    for frame, (text, size) in zip(geometry.frames, written, strict=True):
        corner = min(0.3 * frame.strip, 8.0)
        box = (frame.x, frame.y, 2 * frame.wide, 2 * frame.high, corner)
        shapes.append(Box(*box, colours.FRAME, colours.RULE, 1.0))
        if size >= _LEAST_TEXT:
            side = 1 if frame.below else -1
            y = frame.y + side * (frame.high - frame.strip / 2)
            shapes.append(Label(frame.x, y + 0.35 * size, text, size, colours.MUTED))
    return Layer("frames", tuple(shapes))


def bars(geometry: Geometry) -> Layer:
    """Switches drawn as bars, with space for lanes."""
    shapes = []
    for node in np.flatnonzero(geometry.bar).tolist():
        thick = max(2.0, float(geometry.room[node])) / 2
        (x, y), reach = geometry.at[node].tolist(), geometry.reach[node]
        wide, high = max(float(reach[0]), thick), max(float(reach[1]), thick)
        corner = min(thick, geometry.radius * 0.4)
        rim = max(0.5, geometry.stroke * 0.35)
        box = Box(x, y, 2 * wide, 2 * high, corner, colours.BAR, colours.BAR_RIM, rim)
        shapes.append(box)
    return Layer("bars", tuple(shapes))


def switches(geometry: Geometry) -> Layer:
    """Switches drawn as points."""
    side = 2 * max(1.2, geometry.radius * 0.46)
    points = ~geometry.topology.is_server & ~geometry.bar
    return Layer(
        "switches",
        tuple(
            Box(
                *(x, y, side, side, side * 0.15),
                *(colours.SWITCH, colours.PAPER, 2.0 if side > 8 else 0.5),
                turned=True,
            )
            for x, y in geometry.at[points].tolist()
        ),
    )


def servers(geometry: Geometry, rings: Rings | None, held: NDArray | None) -> Layer:
    """Servers: rings with a slice for each piece, shaded by its contributions, and names.

    Args:
        geometry: their positions.
        rings: the pieces, or None for a network without a schedule.
        held: [V, P] contributions that each node has of each piece.
    """
    shapes: list[Shape] = []
    for node in geometry.topology.servers.tolist():
        shapes += _server(geometry, node, rings, None if held is None else held[node])
    return Layer("servers", tuple(shapes))


def _server(
    geometry: Geometry, node: int, rings: Rings | None, held: NDArray | None
) -> list[Shape]:
    x, y = geometry.at[node].tolist()
    radius = geometry.radius
    inner = radius * 0.64
    rim = min(1.5, radius * 0.15)
    shapes: list[Shape] = [Disc(x, y, radius + rim, colours.PAPER)]
    dense = radius < DENSE_RADIUS
    shapes.append(Disc(x, y, radius, colours.BAR_RIM if dense else colours.CELL))
    complete = False
    if rings is not None and held is not None:
        shape, asked = (x, y, inner, radius - min(0.5, 0.1 * radius)), rings.asked[node]
        shapes += _ring(shape, rings, held, asked)
        complete = bool(asked.any() and (held == rings.complete)[asked].all())
    shapes.append(Disc(x, y, inner, colours.INK if complete else colours.PAPER))
    name = geometry.short_names[node]
    size = radius * min(0.58, 1.8 / len(name))
    if size >= _LEAST_TEXT:
        ink = colours.PAPER if complete else colours.INK
        shapes.append(centred(x, y, name, size, ink))
    return shapes


def _ring(
    place: tuple[float, float, float, float], rings: Rings, held: NDArray, asked: NDArray
) -> list[Shape]:
    """Slices of one ring, or arcs if slices would be too narrow."""
    least = float(rings.share.min())
    if 2 * math.pi * place[3] * 0.8 * least < _LEAST_SLICE:
        sizes = rings.share * asked / max(float(rings.share[asked].sum()), 1e-300)
        whole = float(sizes[held == rings.complete].sum())
        part = float((np.minimum(held / rings.complete, 1.0) * sizes).sum())
        arcs = ((part, 0.28), (whole, 1.0))
        return [
            Slice(*place, 0.0, min(end, 0.9999), colours.ACCENT, opacity)
            for end, opacity in arcs
            if end > 0
        ]
    gap = 0.0 if len(rings.share) < 2 else min(0.012, 0.12 * least)
    begins = np.concatenate([[0.0], np.cumsum(rings.share)]).tolist()
    return [
        Slice(
            *(*place, begins[piece] + gap / 2),
            min(begins[piece + 1] - gap / 2, begins[piece] + 0.9999),
            *(rings.colours[piece], depth(value, int(rings.complete[piece]))),
        )
        for piece, value in enumerate(held.tolist())
        if value > 0
    ]


def depth(value: float, everyone: int) -> float:
    """Opacity for a number of contributions; a complete sum is clearly stronger."""
    return 1.0 if value >= everyone else round(0.16 + 0.52 * value / everyone, 3)


def _least_gap(geometry: Geometry) -> float:
    """The smallest distance between two links that end next to each other on a bar."""
    least = math.inf
    source = geometry.topology.source
    for bar in np.flatnonzero(geometry.bar):
        ends = geometry.ends[source == bar]
        # Links that leave the end of an upright bar lie side by side.
        across = np.abs(ends[:, 0] - geometry.at[bar, 0]) > 1e-3
        across |= geometry.reach[bar, 0] >= geometry.reach[bar, 1]
        for along in (ends[across, 0], ends[~across, 1]):
            gaps: NDArray[np.float64] = np.diff(np.unique(along))
            least = min(least, float(gaps[gaps > 0.05].min(initial=math.inf)))
    return least
