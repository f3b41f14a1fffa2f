"""PNG charts drawn by matplotlib, which the extra ``plot`` installs."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from gradweave.common.atomic import atomic_write
from gradweave.common.lazy import missing
from gradweave.printable import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#23262b"
"""Colour of text."""


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure with a size in inches.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing("a chart", "matplotlib") from error
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def save_png(figure: "Figure", path: str | Path) -> None:
    """Writes a figure, completely or not at all.

    Raises:
        FileError: the file cannot be written.
    """
    image = io.BytesIO()
    figure.savefig(image, format="png")
    atomic_write(path, image.getvalue())


def literal(text: object) -> str:
    """Text without control characters, with dollar signs escaped so they do not start formulas."""
    return printable(str(text)).replace("$", r"\$")
