"""Pictures and films by the suffix of a file name, and pictures as SVG in memory."""

from collections.abc import Callable
from pathlib import Path

from gradweave.common.atomic import atomic_write
from gradweave.errors import OptionError
from gradweave.report.page import shown_bytes
from gradweave.report.picture import film, sheet
from gradweave.report.picture.moments import CLOCKS, ByRounds, Clock, clock_of
from gradweave.report.picture.scene import Scenes, Stage, network_scene
from gradweave.report.picture.shapes import Scene
from gradweave.report.picture.svg import svg
from gradweave.schedules.given import ScheduleLike, schedule_or_network
from gradweave.schedules.schedule import Schedule
from gradweave.topology.spec import TopologyLike
from gradweave.topology.topology import Topology

STILLS, FILMS = (".svg", ".png", ".pdf"), (".gif", ".mp4")
"""Suffixes of pictures and of films."""
STILL_WIDTH, FILM_WIDTH = 1000, 640
"""Default width in pixels of pictures and of films."""


def scene_of(
    shown: Topology | Schedule,
    *,
    round: int | None = None,
    width: float = STILL_WIDTH,
    gradient_bytes: float | str | None = None,
) -> Scene:
    """The scene of a network, or of one round of a schedule.

    Args:
        shown: what to draw.
        round: the round whose transfers are drawn, with the contributions held after it; if not
            given, the network is drawn.
        width: width of the picture in pixels.
        gradient_bytes: size of the whole gradient, for the round's time; see `page`.

    Raises:
        OptionError: the round does not exist, or the network is too large.
    """
    if round is None:
        return network_scene(shown.topology if isinstance(shown, Schedule) else shown, width)
    if not isinstance(shown, Schedule):
        raise OptionError("round: expected a schedule, got a network; it has no rounds")
    stage = Stage.of(shown.topology, width)
    size = shown_bytes(gradient_bytes, shown)
    moment = ByRounds(stage.geometry, shown, size).still(round)
    return Scenes.of(stage, shown).at(moment)


def to_svg(
    shown: TopologyLike | ScheduleLike,
    *,
    round: int | None = None,
    width: float = STILL_WIDTH,
    gradient_bytes: float | str | None = None,
) -> str:
    """A network, or one round of a schedule, as SVG; see `scene_of`.

    >>> import gradweave as gw
    >>> gw.report.to_svg(gw.topology.ring(4)).startswith("<svg")
    True
    """
    shown = schedule_or_network(shown)
    return svg(scene_of(shown, round=round, width=width, gradient_bytes=gradient_bytes), width)


def write_picture(
    shown: TopologyLike | ScheduleLike,
    path: str | Path,
    *,
    round: int | None = None,
    width: int | None = None,
    clock: Clock | None = None,
    gradient_bytes: float | str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Writes a picture or a film, completely or not at all; the suffix determines its kind.

    Args:
        shown: what to draw. Films (``.gif``, ``.mp4``) need a schedule; pictures (``.svg``,
            ``.png``, ``.pdf``) show only the network if `round` is not given.
        path: where to write.
        round: the only round to show.
        width: in pixels; `STILL_WIDTH` or `FILM_WIDTH` if not given.
        clock: the clock of a film; `clock_of` if not given.
        gradient_bytes: size of the whole gradient, for times; see `page`.
        progress: called with the step under way.

    Raises:
        OptionError: an unknown suffix or clock, a missing round, or a network that is too large.
        MissingExtraError: a package for this kind of file is not installed.
        FileError: the file cannot be written.
    """
    shown, kind = schedule_or_network(shown), Path(path).suffix.lower()
    if clock is not None and clock not in CLOCKS:
        raise OptionError(f"clock: expected {' or '.join(CLOCKS)}, got {clock!r}")
    if kind in FILMS:
        data = _film(shown, kind, round, width, clock, gradient_bytes, progress)
    elif kind in STILLS:
        wide = width or STILL_WIDTH
        scene = scene_of(shown, round=round, width=wide, gradient_bytes=gradient_bytes)
        data = _still(scene, kind, wide)
    else:
        raise OptionError(f"{path}: expected a name ending in {', '.join((*STILLS, *FILMS))}")
    atomic_write(path, data)


def _film(
    shown: Topology | Schedule,
    kind: str,
    round: int | None,
    width: int | None,
    clock: Clock | None,
    gradient_bytes: float | str | None,
    progress: Callable[[str], None],
) -> bytes:
    if not isinstance(shown, Schedule):
        raise OptionError(f"a film ({kind}) takes a schedule, got a network; nothing moves in it")
    if not shown.num_transfers:
        raise OptionError(f"a film ({kind}) takes a schedule with transfers, got one without")
    size = shown_bytes(gradient_bytes, shown)
    options = film.FilmOptions(clock or clock_of(shown), width or FILM_WIDTH, size, round)
    return (film.gif if kind == ".gif" else film.mp4)(shown, options, progress)


def _still(scene: Scene, kind: str, width: int) -> bytes:
    if kind == ".svg":
        return svg(scene, width).encode("utf-8")
    return (sheet.png if kind == ".png" else sheet.pdf)(scene, width)
