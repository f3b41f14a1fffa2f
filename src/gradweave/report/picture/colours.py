"""The colours of the page's light theme, in a form that every SVG reader understands.

The page writes pieces' colours in OKLCH, which browsers support and slide programs do not.
"""

import math

PAPER, CELL, INK, MUTED = "#ffffff", "#f0eee8", "#24272d", "#6b6f78"
RULE, LINK, SWITCH, ACCENT, BAR = "#dcd8ce", "#d9d5cb", "#8d8a83", "#3d5a9e", "#f1efe9"
FRAME = "#fbfaf7"
BAR_RIM = "#bcbab6"
"""Rim of bars, with the opacity that it has on the page."""
ON_COLOUR = "#ffffff"
LIGHTNESS, CHROMA = 0.62, 0.135
"""OKLCH lightness and chroma of pieces: ``--piece-lightness`` of page.css, and view.js."""
_SHADED_PIECES = 24
"""With more pieces, neighbours also differ in lightness; as in model.js."""
_SHADE = 0.09


def piece_colours(pieces: int) -> list[str]:
    """A colour for each piece: evenly spaced hues, with neighbours about 137° apart.

    Source: ``pieceHues`` of the page's model.js.
    """
    step = max(1, round(pieces * 0.381966))
    while math.gcd(step, pieces) != 1:
        step += 1
    return [
        _hex(
            LIGHTNESS + _SHADE * ((piece % 3) - 1 if pieces > _SHADED_PIECES else 0),
            CHROMA,
            (piece * step) % pieces * (360 / pieces) + 25,
        )
        for piece in range(pieces)
    ]


def _hex(lightness: float, chroma: float, hue: float) -> str:
    """OKLCH converted to sRGB and clipped.

    Source: Ottosson, "A perceptual color space for image processing", 2020.
    """
    a, b = (chroma * turn(math.radians(hue)) for turn in (math.cos, math.sin))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short,
    )
    return "#" + "".join(f"{round(255 * _gamma(value)):02x}" for value in linear)


def _gamma(value: float) -> float:
    value = min(1.0, max(0.0, value))
    return 12.92 * value if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055
