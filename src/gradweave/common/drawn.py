"""Automatic drawings in notebooks for objects that are a cell's value."""

from gradweave.common.lazy import LazyModule

_NOTEBOOK = LazyModule("gradweave.report.notebook")
"""The module that draws. It imports the modules of drawn objects, so it is loaded on first use."""


class Drawn:
    """Base class of objects with pictures: networks, schedules, solutions, placements, machines."""

    def _repr_svg_(self) -> str | None:
        """The picture as SVG, or None if there is none or it is too large to draw unasked."""
        return _NOTEBOOK.svg_in_notebook(self)

    def _repr_html_(self) -> str | None:
        """The picture with a description, or None as above."""
        return _NOTEBOOK.html_in_notebook(self)
