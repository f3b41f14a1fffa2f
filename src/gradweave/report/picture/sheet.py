"""Scenes painted by matplotlib, as pixels for PNG and films, and as PDF."""

import functools
import io
import math
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradweave.common.lazy import require
from gradweave.report.picture.colours import PAPER
from gradweave.report.picture.shapes import (
    Box,
    Disc,
    Label,
    Layer,
    Line,
    Point,
    Polygon,
    Scene,
    Shape,
    Slice,
)

if TYPE_CHECKING:
    from matplotlib.path import Path

MOVING = ("pieces", "progress")
"""Layers that differ between frames; they are above all others."""
_ANCHORS = {"start": 0.0, "middle": 0.5, "end": 1.0}
_LETTER_SIZE = 100.0
"""Size at which outlines of letters are cached."""


class Frames:
    """Paints scenes one after another as pixels, without repainting unchanged layers."""

    def __init__(self, width: int) -> None:
        require("a PNG or a film", "matplotlib")
        self._width = width
        self._painted: tuple[Layer, ...] = ()
        self._pixels: NDArray[np.uint8] | None = None

    def paint(self, scene: Scene) -> NDArray[np.uint8]:
        """A scene as [height, width, 3] pixels, with even height as films need."""
        from matplotlib.backends.backend_agg import RendererAgg

        scale = self._width / scene.width
        height = 2 * round(scene.height * scale / 2)
        renderer = RendererAgg(self._width, height, 72)
        painter = _Painter(renderer, scale, height, as_outlines=True)
        sheet = np.asarray(renderer.buffer_rgba())
        still = tuple(layer for layer in scene.layers if layer.name not in MOVING)
        if self._pixels is None or still != self._painted:
            painter.paint(scene, still)
            self._painted, self._pixels = still, sheet.copy()
        else:
            sheet[:] = self._pixels
        painter.layers(layer for layer in scene.layers if layer.name in MOVING)
        return sheet[:, :, :3].copy()


def png(scene: Scene, width: int) -> bytes:
    """A scene as a PNG file.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    data = Frames(width).paint(scene)
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(data).save(file, "png", optimize=True)
    return file.getvalue()


def pdf(scene: Scene, width: float) -> bytes:
    """A scene as a PDF file of one page, with vector lines and real text.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    require("a PDF", "matplotlib")
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

    scale = width / scene.width
    height = scene.height * scale

    class Whole(Artist):
        """The scene, as an artist of matplotlib's figure."""

        def draw(self, renderer: Any) -> None:
            _Painter(renderer, scale, height, as_outlines=False).paint(scene, scene.layers)

    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    figure.add_artist(Whole(), clip=False)
    file = io.BytesIO()
    # No date, so that a scene always gives the same file; text uses TrueType fonts.
    from matplotlib import rc_context

    with rc_context({"pdf.fonttype": 42}):
        figure.savefig(file, format="pdf", metadata={"CreationDate": None, "Title": scene.title})
    return file.getvalue()


class _Painter:
    """Paints shapes through any renderer of matplotlib.

    Text is painted as text if the file format keeps it, otherwise as outlines. These are cached,
    since letters took most of a film's time.
    """

    def __init__(self, renderer: Any, scale: float, height: float, *, as_outlines: bool) -> None:
        from matplotlib.transforms import Affine2D

        self._renderer, self._scale, self._height = renderer, scale, height
        self._to_sheet = Affine2D().scale(scale, -scale).translate(0, height)
        self._as_outlines = as_outlines

    def paint(self, scene: Scene, layers: Iterable[Layer]) -> None:
        """Paints some of a scene's layers on a white background."""
        self._shape(Box(*(scene.width / 2, scene.height / 2, scene.width, scene.height, 0), PAPER))
        self.layers(layers)

    def layers(self, layers: Iterable[Layer]) -> None:
        """Paints layers on top of the existing ones."""
        with warnings.catch_warnings():
            # About characters that the font lacks, which are drawn as boxes.
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            for layer in layers:
                for shape in layer.shapes:
                    self._shape(shape)

    def _shape(self, shape: Shape) -> None:
        match shape:
            case Line():
                self._path(_lines(shape), "", shape.stroke, shape.width, shape)
            case Label():
                self._text(shape)
            case Disc() | Box():
                self._path(_outline(shape), shape.fill, shape.stroke, shape.width)
            case Polygon() | Slice():
                self._path(_outline(shape), shape.fill, "", 0.0, opacity=shape.opacity)

    def _path(
        self,
        path: "Path",
        fill: str,
        stroke: str,
        width: float,
        line: Line | None = None,
        opacity: float = 1.0,
    ) -> None:
        from matplotlib.colors import to_rgba

        context = self._renderer.new_gc()
        context.set_snap(False)
        context.set_linewidth(width * self._scale if stroke else 0.0)
        if stroke:
            context.set_foreground(to_rgba(stroke, line.opacity if line else 1.0), isRGBA=True)
        context.set_joinstyle("round" if line else "miter")
        if line and line.dashes:
            context.set_capstyle("butt")
            context.set_dashes(0, [part * self._scale for part in line.dashes])
        elif line:
            context.set_capstyle("round")
        face = to_rgba(fill, opacity) if fill else None
        self._renderer.draw_path(context, path, self._to_sheet, face)
        context.restore()

    def _text(self, label: Label) -> None:
        if not label.text:
            return
        if self._as_outlines:
            return self._outlined(label)
        font = _font(label.bold, label.size * self._scale)
        wide, _, _ = self._renderer.get_text_width_height_descent(label.text, font, False)
        x = label.x * self._scale - _ANCHORS[label.anchor] * wide
        y = label.y * self._scale
        if not self._renderer.flipy():
            y = self._height - y
        context = self._renderer.new_gc()
        context.set_foreground(label.fill)
        self._renderer.draw_text(context, x, y, label.text, font, 0.0, False)
        context.restore()

    def _outlined(self, label: Label) -> None:
        from matplotlib.colors import to_rgba
        from matplotlib.transforms import Affine2D

        path, wide = _letters(label.text, label.bold)
        size = label.size / _LETTER_SIZE
        x = label.x - _ANCHORS[label.anchor] * wide * size
        place = Affine2D().scale(size, -size).translate(x, label.y)
        context = self._renderer.new_gc()
        context.set_snap(False)
        context.set_linewidth(0.0)
        self._renderer.draw_path(context, path, place + self._to_sheet, to_rgba(label.fill))
        context.restore()


def _font(bold: bool, size: float) -> Any:
    from matplotlib.font_manager import FontProperties

    return FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal", size=size)


@functools.lru_cache(maxsize=4096)
def _letters(text: str, bold: bool) -> tuple["Path", float]:
    """The outlines of a text, y growing upwards, and its width."""
    from matplotlib.textpath import TextPath, text_to_path

    font = _font(bold, _LETTER_SIZE)
    wide, _, _ = text_to_path.get_text_width_height_descent(text, font, False)
    return TextPath((0, 0), text, prop=font, usetex=False, size=_LETTER_SIZE), wide


def _lines(shape: Line) -> "Path":
    from matplotlib.path import Path

    points = [point for line in shape.lines for point in line]
    codes = [
        Path.LINETO if place else Path.MOVETO for line in shape.lines for place in range(len(line))
    ]
    return Path(np.array(points), codes)


def _outline(shape: Polygon | Disc | Box | Slice) -> "Path":
    from matplotlib.path import Path

    match shape:
        case Disc():
            return Path.circle((shape.x, shape.y), shape.radius)
        case Polygon():
            return Path(np.array([*shape.points, shape.points[0]]), closed=True)
        case Slice():
            place = shape.x, shape.y, shape.inner, shape.outer, shape.begin, shape.end
            return _arc(*place)
        case Box():
            return _box(shape)


@functools.lru_cache(maxsize=1 << 14)
def _arc(x: float, y: float, inner: float, outer: float, begin: float, end: float) -> "Path":
    """The outline of a slice, with arcs in steps of at most a hundredth of a turn."""
    from matplotlib.path import Path

    angles = (np.linspace(begin, end, max(3, math.ceil((end - begin) * 100) + 1)) - 0.25) * math.tau
    turn = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    points = np.concatenate([turn * outer, turn[::-1] * inner, turn[:1] * outer])
    return Path(points + np.array([x, y]), closed=True)


def _box(shape: Box) -> "Path":
    from matplotlib.path import Path
    from matplotlib.transforms import Affine2D

    wide, high, corner = shape.wide / 2, shape.high / 2, shape.corner
    points: list[Point] = [(-wide + corner, -high)]
    codes = [int(Path.MOVETO)]
    # Each side, then a quadratic curve around the corner after it.
    for sx, sy in ((1, -1), (1, 1), (-1, 1), (-1, -1)):
        before = (sx * (wide - corner), sy * high), (sx * wide, sy * (high - corner))
        first, last = before if sx * sy < 0 else before[::-1]
        points += [first, (sx * wide, sy * high), last]
        codes += [int(code) for code in (Path.LINETO, Path.CURVE3, Path.CURVE3)]
    points.append(points[0])
    codes.append(int(Path.CLOSEPOLY))
    place = Affine2D().rotate_deg(45.0 if shape.turned else 0.0).translate(shape.x, shape.y)
    return place.transform_path(Path(np.array(points), codes))
