"""Pictures and pages in notebooks."""

import dataclasses
import html
from pathlib import Path

import numpy as np

from gradweave.atomic import atomic_write
from gradweave.automata.machine import Machine
from gradweave.errors import OptionError
from gradweave.placement.placement import Placement
from gradweave.report.machine_page import machine_page
from gradweave.report.page import page
from gradweave.report.picture.picture import to_svg
from gradweave.report.placement import placement_page
from gradweave.schedule.schedule import Schedule
from gradweave.schedulers.solve.solution import Solution
from gradweave.topology.topology import Topology
from gradweave.wording import counted

MOST_NODES = 200
MOST_TRANSFERS = 50_000
"""Of what is drawn without being asked, wherever it is a cell's value: a second's work
at most, where nodes have no places and find them by their distances."""
_WIDTH = 720
"""Pixels of such a picture: that of the text in a notebook."""
_HEIGHT = 760
"""Pixels of a page within a notebook, which scrolls."""

Drawable = Topology | Schedule | Solution | Placement | Machine


@dataclasses.dataclass(frozen=True, eq=False)
class Shown:
    """A page or a picture, which a notebook displays where it is a cell's value."""

    document: str
    """The page as HTML, or the picture as SVG."""
    height: int | None
    """Pixels of the page's frame; None for a picture."""

    def _repr_html_(self) -> str:
        return self.document if self.height is None else framed(self.document, self.height)

    def save(self, path: str | Path) -> None:
        """Writes the page or the picture as it is shown.

        Raises:
            FileError: the file cannot be written.
        """
        atomic_write(path, self.document.encode("utf-8"))

    def __repr__(self) -> str:
        kind = "page" if self.height else "picture"
        return f"Shown({kind} of {len(self.document):,} characters; a notebook displays it)"


def show(
    shown: Drawable,
    other: Schedule | Solution | None = None,
    *,
    round: int | None = None,
    width: int | None = None,
    height: int = _HEIGHT,
    gradient_bytes: float | None = None,
) -> Shown:
    """Shows a schedule's page in a notebook, or the picture of a network or of one round.

    Args:
        shown: what to show. A schedule, or a solution's, is played; a network is drawn; placements
            and machines have pages of their own.
        other: a second schedule, played beside the first.
        round: the only round of the schedule to draw, as a picture.
        width: of a picture in pixels.
        height: of a page's frame in pixels.
        gradient_bytes: size of the whole gradient, for times; see `page`.

    Returns:
        What a notebook displays, and `Shown.save` writes.

    Raises:
        OptionError: it cannot be drawn, or is too large for it.

    >>> import gradweave as gw
    >>> gw.show(gw.topology.ring(4))
    Shown(picture of ... characters; a notebook displays it)
    """
    first, second = _schedule_of(shown), None if other is None else _schedule_of(other)
    if isinstance(first, Topology) or (isinstance(first, Schedule) and round is not None):
        if second is not None:
            raise OptionError("show: a picture shows one schedule; leave out the other")
        wide = width or _WIDTH
        svg = to_svg(first, round=round, width=wide, gradient_bytes=gradient_bytes)
        return Shown(svg, None)
    if isinstance(first, Schedule):
        beside = second if isinstance(second, Schedule) else None
        return Shown(page(first, beside, gradient_bytes=gradient_bytes), height)
    if isinstance(first, Placement | Machine):
        return Shown(html_page(first), height)
    raise OptionError(
        "show: expected a topology, schedule, solution, placement or machine, got "
        f"{type(shown).__name__}"
    )


def framed(document: str, height: int) -> str:
    """A page within another, from which it can reach nothing."""
    return (
        f'<iframe srcdoc="{html.escape(document)}" sandbox="allow-scripts" '
        f'style="width:100%;height:{height}px;border:0"></iframe>'
    )


def svg_in_notebook(shown: object) -> str | None:
    """What is drawn where it is a cell's value; None where that is nothing."""
    shown = _schedule_of(shown)
    if isinstance(shown, Topology) and shown.num_nodes <= MOST_NODES:
        return to_svg(shown, width=_WIDTH)
    if isinstance(shown, Schedule) and _is_small(shown):
        return to_svg(shown, round=fullest_round(shown), width=_WIDTH)
    return None


def html_in_notebook(shown: object) -> str | None:
    """The same below what it is in words; of a placement or a machine its page."""
    if isinstance(shown, Placement | Machine):
        return framed(html_page(shown), _HEIGHT)
    svg = svg_in_notebook(shown)
    if svg is None:
        return None
    words = _in_words(shown)
    return f"<p>{html.escape(words)}</p>\n{svg}" if words else svg


def html_page(shown: Placement | Machine) -> str:
    """The page of what has no schedule."""
    if isinstance(shown, Placement):
        return placement_page(shown)
    return machine_page([("machine", shown)], "Machine", "")


def fullest_round(schedule: Schedule) -> int | None:
    """The first of the rounds with the most transfers; None where there is none."""
    counts = np.diff(schedule.round_offsets)
    return int(counts.argmax()) if len(counts) else None


def _is_small(schedule: Schedule) -> bool:
    return schedule.topology.num_nodes <= MOST_NODES and schedule.num_transfers <= MOST_TRANSFERS


def _schedule_of(shown: object) -> object:
    return shown.schedule if isinstance(shown, Solution) else shown


def _in_words(shown: object) -> str:
    if isinstance(shown, Solution):
        proved = f"; proved least in {' and '.join(shown.optimal_in)}" if shown.optimal_in else ""
        return (
            f"{_in_words(shown.schedule)} At least {counted(shown.bound.rounds, 'round')} are "
            f"needed{proved}."
        )
    if isinstance(shown, Schedule):
        return (
            f"{shown.name} on {shown.topology.name} by {shown.scheduler.name}: "
            f"{counted(shown.num_transfers, 'transfer')} of {counted(shown.pieces, 'piece')} in "
            f"{counted(shown.rounds, 'round')}."
        )
    return ""
