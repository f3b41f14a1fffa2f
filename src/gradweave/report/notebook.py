"""Pictures and pages in notebooks."""

import dataclasses
import html
import os
from pathlib import Path

import numpy as np

from gradweave.automata.machine import Machine
from gradweave.common.atomic import atomic_write
from gradweave.common.wording import counted
from gradweave.errors import OptionError
from gradweave.placement.placement import Placement
from gradweave.report.machine_page import machine_page
from gradweave.report.page import page
from gradweave.report.picture.picture import to_svg
from gradweave.report.placement import placement_page
from gradweave.schedulers.solving.solution import Solution
from gradweave.schedules.given import ScheduleLike, as_schedule, schedule_or_network
from gradweave.schedules.schedule import Schedule
from gradweave.topology.topology import Topology

MOST_NODES = 200
MOST_TRANSFERS = 50_000
"""Limits for automatic drawings of cell values, which must take at most about a second, including
the layout of nodes without positions."""
_WIDTH = 720
"""Width of such a picture in pixels: that of the text in a notebook."""
_HEIGHT = 760
"""Height in pixels of a page's frame before the page reports how tall it is; the page scrolls in it
if scripts do not run."""
_FIT = """<script>
addEventListener("message", ({ source, data }) => {
  const height = Number(data?.gradweaveHeight);
  if (!(height > 0 && height < 20000)) return;
  for (const frame of document.querySelectorAll("iframe.gradweave"))
    if (frame.contentWindow === source) frame.style.height = `${Math.ceil(height)}px`;
});
</script>"""
"""Gives each frame the height that its sandboxed page reports in a message."""

Drawable = Topology | Schedule | Solution | Placement | Machine


@dataclasses.dataclass(frozen=True, eq=False)
class Shown:
    """A page or a picture that a notebook displays as a cell's value."""

    document: str
    """The page as HTML, or the picture as SVG."""
    is_page: bool
    height: int | None = None
    """Height of the frame in pixels; without it, the frame is as tall as the page."""

    picture: str | None = dataclasses.field(default=None, repr=False)
    """SVG of a page's first schedule in its fullest round, for notebooks without scripts."""

    def _repr_svg_(self) -> str | None:
        return self.picture if self.is_page else self.document

    def _repr_html_(self) -> str:
        return framed(self.document, self.height) if self.is_page else self.document

    def save(self, path: str | Path) -> None:
        """Writes the page or the picture as shown.

        Raises:
            FileError: the file cannot be written.
        """
        atomic_write(path, self.document.encode("utf-8"))

    def __repr__(self) -> str:
        kind = "page" if self.is_page else "picture"
        return f"Shown({kind} of {len(self.document):,} characters; a notebook displays it)"


def show(
    shown: Drawable | str | os.PathLike[str],
    other: ScheduleLike | None = None,
    *,
    round: int | None = None,
    width: int | None = None,
    height: int | None = None,
    gradient_bytes: float | str | None = None,
) -> Shown:
    """Shows a schedule's page in a notebook, or a picture of a network or of one round.

    Args:
        shown: the object to show. A schedule, or a solution's, is played; a network is drawn;
            placements and machines have pages. A file or a specification stands for its content.
        other: a second schedule, played alongside the first.
        round: the only round of the schedule to draw, as a picture.
        width: width of a picture in pixels.
        height: height of a page's frame in pixels; the height of the page if not given.
        gradient_bytes: size of the whole gradient, for times; see `page`.

    Returns:
        An object that a notebook displays and `Shown.save` writes.

    Raises:
        OptionError: it cannot be drawn, or is too large.

    >>> import gradweave as gw
    >>> gw.show(gw.topology.ring(4))
    Shown(picture of ... characters; a notebook displays it)
    """
    first, second = _schedule_of(shown), None if other is None else as_schedule(other)
    if isinstance(first, Topology) or (isinstance(first, Schedule) and round is not None):
        if second is not None:
            raise OptionError("show: a picture shows one schedule; leave out the other")
        wide = width or _WIDTH
        svg = to_svg(first, round=round, width=wide, gradient_bytes=gradient_bytes)
        return Shown(svg, False)
    if isinstance(first, Schedule):
        document = page(first, second, gradient_bytes=gradient_bytes)
        return Shown(document, True, height, svg_in_notebook(first))
    if isinstance(first, Placement | Machine):
        return Shown(html_page(first), True, height)
    raise OptionError(
        "show: expected a topology, schedule, solution, placement or machine, got "
        f"{type(shown).__name__}"
    )


def framed(document: str, height: int | None = None) -> str:
    """A page in a sandboxed frame, isolated from the surrounding page."""
    kind = ' class="gradweave"' if height is None else ""
    frame = (
        f'<iframe{kind} srcdoc="{html.escape(document)}" sandbox="allow-scripts" '
        f'style="width:100%;height:{height or _HEIGHT}px;border:0"></iframe>'
    )
    return frame if height else f"{frame}\n{_FIT}"


def svg_in_notebook(shown: object) -> str | None:
    """The SVG shown for a cell's value, or None if it is not drawn."""
    shown = _schedule_of(shown)
    if isinstance(shown, Topology) and shown.num_nodes <= MOST_NODES:
        return to_svg(shown, width=_WIDTH)
    if isinstance(shown, Schedule) and _is_small(shown):
        return to_svg(shown, round=fullest_round(shown), width=_WIDTH)
    return None


def html_in_notebook(shown: object) -> str | None:
    """A description and the SVG; for a placement or a machine, its page."""
    if isinstance(shown, Placement | Machine):
        return framed(html_page(shown))
    svg = svg_in_notebook(shown)
    if svg is None:
        return None
    words = _in_words(shown)
    return f"<p>{html.escape(words)}</p>\n{svg}" if words else svg


def html_page(shown: Placement | Machine) -> str:
    """The page of a placement or a machine."""
    if isinstance(shown, Placement):
        return placement_page(shown)
    return machine_page([("machine", shown)], "Machine", "")


def fullest_round(schedule: Schedule) -> int | None:
    """The first round with the most transfers, or None if there are no rounds."""
    counts = np.diff(schedule.round_offsets)
    return int(counts.argmax()) if len(counts) else None


def _is_small(schedule: Schedule) -> bool:
    return schedule.topology.num_nodes <= MOST_NODES and schedule.num_transfers <= MOST_TRANSFERS


def _schedule_of(shown: object) -> object:
    """The schedule of a solution; what a file or a specification describes; others as they are."""
    if isinstance(shown, str | os.PathLike):
        return schedule_or_network(shown)
    found = getattr(shown, "schedule", None)
    return found if isinstance(found, Schedule) else shown


def _in_words(shown: object) -> str:
    if isinstance(shown, Solution):
        least, timed = shown.rounds_bound, ""
        if least is None:  # for jobs
            return _in_words(shown.schedule)
        if shown.timing is not None:
            timed = shown.timing.bound.holds_for
        classes = {"rounds": least.holds_for, "seconds": timed}
        proved = "".join(f"; proved least in {unit}{classes[unit]}" for unit in shown.optimal_in)
        rounds = f"{counted(least.rounds, 'round')} are needed{least.holds_for}"
        return f"{_in_words(shown.schedule)} At least {rounds}{proved}."
    if isinstance(shown, Schedule):
        return (
            f"{shown.name} on {shown.topology.name} by {shown.scheduler.name}: "
            f"{counted(shown.num_transfers, 'transfer')} of {counted(shown.pieces, 'piece')} in "
            f"{counted(shown.rounds, 'round')}."
        )
    return ""
