"""Pictures and films of ``gradweave show``: their options, and drawings on a terminal."""

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from gradweave.cli.combinations import excludes
from gradweave.cli.console import standard_output
from gradweave.cli.options import grouped, option, writable
from gradweave.common.wording import counted
from gradweave.errors import OptionError
from gradweave.printable import printable
from gradweave.report.picture.moments import CLOCKS, ByRounds, Clock
from gradweave.report.picture.picture import FILM_WIDTH, FILMS, STILL_WIDTH, STILLS, write_picture
from gradweave.report.picture.scene import LEAST_WIDTH, MOST_WIDTH, Scenes, Stage, network_scene
from gradweave.report.picture.shapes import Label, Scene
from gradweave.report.picture.terminal import characters
from gradweave.schedules.schedule import OPS, Schedule
from gradweave.topology.topology import Topology

PAGES = (".html", ".htm")
"""How the names of pages end."""
MOST_COLUMNS = 120
"""Characters of the widest drawing; wider ones are higher than a screen."""
_LAID_OUT = 1000.0
_MOST_LINES = 24
"""Transfers that are listed below a drawing."""


picture_options = grouped(
    option(
        "--round number",
        "Draw only this round, as a picture or a film.  [default: a picture shows only the "
        "network]",
        click.IntRange(0),
        metavar="N",
    ),
    option(
        "--width",
        f"Width of the picture.  [default: {STILL_WIDTH}; for a film {FILM_WIDTH}]",
        click.IntRange(LEAST_WIDTH, MOST_WIDTH),
        metavar="PIXELS",
    ),
    option(
        "--by clock",
        "Clock of a film.  [default: seconds if rounds do not determine the time]",
        click.Choice(CLOCKS),
    ),
    option("--print printed", "Draw it on the terminal.", bool),
    excludes("--print", "--json"),
    excludes("--by seconds", "--round"),
)
"""The options of pictures and films; see `PictureOptions`."""


@dataclasses.dataclass(frozen=True)
class PictureOptions:
    """The requested picture or film, if any."""

    output: Path | None
    number: int | None
    """Number of the round."""
    width: int | None
    clock: Clock | None
    printed: bool

    @property
    def any(self) -> bool:
        """Whether a picture or a film is, and not a page."""
        return self.printed or self._suffix in (*STILLS, *FILMS)

    @property
    def network_alone(self) -> bool:
        """Whether the picture needs no schedule."""
        return self.any and self.number is None and self._suffix not in FILMS

    def check(self, what: Sequence[str], title: str | None) -> None:
        """Refuses options that exclude each other, and files that cannot be written.

        Raises:
            OptionError: naming the option.
            FileError: the output's name ends in something else, or it cannot be written.
        """
        writable(self.output, *PAGES, *STILLS, *FILMS)
        if self.any and len(what) > 1:
            raise OptionError(f"a picture shows one schedule, got {len(what)}; a page shows two")
        if self.any and title is not None:
            raise OptionError("--title is for a page; leave it out")
        if self.clock is not None and self._suffix not in FILMS:
            raise OptionError("--by is for a film: --output FILE.gif or FILE.mp4")
        for name, value in (("--round", self.number), ("--width", self.width)):
            if value is not None and not self.any:
                raise OptionError(f"{name} is for a picture or a film: --output FILE.svg")

    def write(
        self, shown: Topology | Schedule, gradient_bytes: float, progress: Callable[[str], None]
    ) -> None:
        """Writes the file of --output."""
        if self.output is not None:
            write_picture(
                *(shown, self.output),
                round=self.number,
                width=self.width,
                clock=self.clock,
                gradient_bytes=gradient_bytes,
                progress=progress,
            )

    def draw(self, shown: Topology | Schedule, gradient_bytes: float) -> None:
        """Draws on the terminal if --print is given."""
        if self.printed:
            print_scene(shown, self.number, gradient_bytes)

    @property
    def _suffix(self) -> str:
        return "" if self.output is None else self.output.suffix.lower()


def print_scene(shown: Topology | Schedule, number: int | None, gradient_bytes: float) -> None:
    """Writes a network, or a round of a schedule, to standard output; in colours on a terminal."""
    from rich.console import Console
    from rich.text import Text

    scene, lines = _scene_of(shown, number, gradient_bytes)
    columns = min(MOST_COLUMNS, shutil.get_terminal_size((100, 24)).columns)
    console = Console(markup=False, emoji=False, highlight=False, width=max(columns, 40))
    heads = [shape.text for shape in scene.layers[0].shapes if isinstance(shape, Label)]
    with standard_output():
        for head in heads:
            console.print(printable(head), soft_wrap=True)
        for row in characters(scene, columns):
            text = Text()
            for cell in row:
                text.append(cell.text, cell.colour)
            text.rstrip()
            console.print(text, soft_wrap=True)
        for line in lines:
            console.print(printable(line), soft_wrap=True)


def _scene_of(
    shown: Topology | Schedule, number: int | None, gradient_bytes: float
) -> tuple[Scene, list[str]]:
    if number is None or not isinstance(shown, Schedule):
        topology = shown.topology if isinstance(shown, Schedule) else shown
        return network_scene(topology, _LAID_OUT), []
    stage = Stage.of(shown.topology, _LAID_OUT)
    moment = ByRounds(stage.geometry, shown, gradient_bytes).still(number)
    return Scenes.of(stage, shown).at(moment), _transfers(shown, number)


def _transfers(schedule: Schedule, number: int) -> list[str]:
    """The first transfers of a round, one a line."""
    first, end = schedule.round_offsets[number : number + 2].tolist()
    name = schedule.topology.node_name
    lines = [
        f"{OPS[int(schedule.op[t])]:6}  piece {int(schedule.piece[t]):<4} "
        + " → ".join(map(name, schedule.route(t)))
        for t in range(first, min(end, first + _MOST_LINES))
    ]
    left = end - first - len(lines)
    return lines + [f"and {counted(left, 'transfer')} more"] * (left > 0)
