"""What notebooks draw by themselves where it is the value of a cell."""

from gradweave.lazy import LazyModule

_NOTEBOOK = LazyModule("gradweave.report.notebook")
"""Which draws; it stands above all that is drawn, and is loaded when a notebook first asks."""


class Drawn:
    """Base of what has a picture: networks, schedules, solutions, placements, machines."""

    def _repr_svg_(self) -> str | None:
        """Its picture as SVG; None where it is too large for one in passing, or has none."""
        return _NOTEBOOK.svg_in_notebook(self)

    def _repr_html_(self) -> str | None:
        """Its picture with what it is in words; None as above."""
        return _NOTEBOOK.html_in_notebook(self)
