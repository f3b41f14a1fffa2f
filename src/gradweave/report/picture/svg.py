"""Scenes as SVG: plain shapes and text without scripts or styles, for slides and notebooks."""

import html
from collections.abc import Iterable

from gradweave.report.picture.colours import PAPER
from gradweave.report.picture.shapes import (
    Box,
    Disc,
    Label,
    Line,
    Point,
    Polygon,
    Scene,
    Shape,
    Slice,
)

_FONTS = "system-ui, 'Segoe UI', 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"


def svg(scene: Scene, width: float | None = None) -> str:
    """A scene as one SVG element.

    Args:
        scene: the scene to write.
        width: width of the picture in pixels; the scene's width if not given.
    """
    wide = scene.width if width is None else width
    high = scene.height * wide / scene.width
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(wide)}" height="{_n(high)}" '
        f'viewBox="0 0 {_n(scene.width)} {_n(scene.height)}" role="img" '
        f'style="max-width:100%;height:auto" font-family="{_FONTS}">'
    )
    title = html.escape(scene.title, quote=False)
    sheet = f'<rect width="{_n(scene.width)}" height="{_n(scene.height)}" fill="{PAPER}"/>'
    lines = [head, f"<title>{title}</title>", sheet]
    for layer in scene.layers:
        if layer.shapes:
            lines += [f'<g class="{layer.name}">', *map(_element, layer.shapes), "</g>"]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _element(shape: Shape) -> str:
    match shape:
        case Line():
            data = "".join(map(_path, shape.lines))
            cap = "butt" if shape.dashes else "round"
            pattern = " ".join(map(_n, shape.dashes or ()))
            dashes = f' stroke-dasharray="{pattern}"' if pattern else ""
            return (
                f'<path d="{data}" fill="none" stroke="{shape.stroke}" '
                f'stroke-width="{_n(shape.width)}" stroke-linecap="{cap}" '
                f'stroke-linejoin="round"{dashes}{_faint("stroke", shape.opacity)}/>'
            )
        case Polygon():
            faint = _faint("fill", shape.opacity)
            return f'<path d="{_path(shape.points)}Z" fill="{shape.fill}"{faint}/>'
        case Disc():
            return (
                f'<circle cx="{_n(shape.x)}" cy="{_n(shape.y)}" r="{_n(shape.radius)}"'
                f"{_painted(shape)}/>"
            )
        case Box():
            return _box(shape)
        case Slice():
            faint = _faint("fill", shape.opacity)
            return f'<path d="{_slice(shape)}" fill="{shape.fill}"{faint}/>'
        case Label():
            return _label(shape)


def _box(shape: Box) -> str:
    turned = f' transform="rotate(45 {_n(shape.x)} {_n(shape.y)})"' if shape.turned else ""
    return (
        f'<rect x="{_n(shape.x - shape.wide / 2)}" y="{_n(shape.y - shape.high / 2)}" '
        f'width="{_n(shape.wide)}" height="{_n(shape.high)}" rx="{_n(shape.corner)}"'
        f"{_painted(shape)}{turned}/>"
    )


def _label(shape: Label) -> str:
    bold = ' font-weight="600"' if shape.bold else ""
    anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
    return (
        f'<text x="{_n(shape.x)}" y="{_n(shape.y)}" font-size="{_n(shape.size)}" '
        f'fill="{shape.fill}"{anchor}{bold}>{html.escape(shape.text, quote=False)}</text>'
    )


def _slice(shape: Slice) -> str:
    large = int(shape.end - shape.begin > 0.5)
    outer, inner = f"{_n(shape.outer)} {_n(shape.outer)}", f"{_n(shape.inner)} {_n(shape.inner)}"
    corners = [
        " ".join(map(_n, shape.corner(radius, share)))
        for radius, share in (
            (shape.outer, shape.begin),
            (shape.outer, shape.end),
            (shape.inner, shape.end),
            (shape.inner, shape.begin),
        )
    ]
    return (
        f"M{corners[0]}A{outer} 0 {large} 1 {corners[1]}"
        f"L{corners[2]}A{inner} 0 {large} 0 {corners[3]}Z"
    )


def _painted(shape: Disc | Box) -> str:
    rim = f' stroke="{shape.stroke}" stroke-width="{_n(shape.width)}"' if shape.stroke else ""
    return f' fill="{shape.fill or "none"}"{rim}'


def _path(points: Iterable[Point]) -> str:
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)


def _faint(what: str, opacity: float) -> str:
    return "" if opacity >= 1 else f' {what}-opacity="{_n(opacity)}"'


def _n(value: float) -> str:
    """A number with at most two decimals."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text
