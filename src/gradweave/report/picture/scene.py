"""Scenes: a network, or a schedule at one moment, with a heading and a legend."""

import dataclasses

import numpy as np

from gradweave.common.wording import counted
from gradweave.errors import OptionError
from gradweave.printable import printable
from gradweave.report.picture import colours, network
from gradweave.report.picture.geometry import DENSE_RADIUS, Geometry
from gradweave.report.picture.holdings import asked, complete
from gradweave.report.picture.moments import Moment, Moving
from gradweave.report.picture.network import Rings
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
    centred,
)
from gradweave.schedules.schedule import COPY, Schedule
from gradweave.topology.topology import Topology
from gradweave.topology.units import format_bandwidth

MAX_NODES = 4_000
"""Nodes of the largest network that is drawn, as on the page."""
LEAST_WIDTH, MOST_WIDTH = 200, 8_000
"""Range of a picture's width in pixels."""
_DRAWN_WIDTHS = (540, 760, 1000)
"""Widths at which networks are laid out; a picture is one of them, scaled."""
_HEAD, _MARGIN, _FOOT = 68.0, 20.0, 44.0
"""Heights of the heading, of the space below the drawing, and of the legend."""
_LABELLED_RADIUS, _LABELLED_DOTS = 25.0, 200
"""Discs show their pieces' numbers if servers are at least this large and discs at most this many;
as on the page."""
_DENSE_DOTS = 300


@dataclasses.dataclass(frozen=True, eq=False)
class Stage:
    """A network laid out on a sheet, with its constant parts drawn once."""

    geometry: Geometry
    ground: tuple[Layer, ...]

    @staticmethod
    def of(topology: Topology, width: float) -> "Stage":
        """Lays out a network for a picture of some width in pixels.

        Raises:
            OptionError: it has too many nodes to be drawn, or the width is out of range.
        """
        if topology.num_nodes > MAX_NODES:
            raise OptionError(
                f"a picture takes at most {MAX_NODES:,} nodes, got {topology.num_nodes:,}; "
                "show a smaller network"
            )
        if not LEAST_WIDTH <= width <= MOST_WIDTH:
            raise OptionError(f"width: expected {LEAST_WIDTH} to {MOST_WIDTH}, got {width:g}")
        drawn = next((known for known in _DRAWN_WIDTHS if width <= known), _DRAWN_WIDTHS[-1])
        geometry = Geometry.of(topology, drawn).trimmed(_HEAD, _MARGIN)
        layers = (network.frames, network.bars, network.links, network.switches)
        ground = tuple(layer(geometry) for layer in layers)
        return Stage(geometry, ground)

    @property
    def size(self) -> Point:
        """Width and height of the sheet."""
        return self.geometry.width, _HEAD + self.geometry.height + _FOOT


def network_scene(topology: Topology, width: float) -> Scene:
    """A network without a schedule."""
    stage = Stage.of(topology, width)
    switches = topology.num_nodes - topology.num_servers
    bandwidths = np.unique(topology.bandwidth_bytes_per_s)
    ends = dict.fromkeys(format_bandwidth(float(bandwidths[end])) for end in (0, -1))
    facts = [
        counted(topology.num_servers, "server"),
        counted(switches, "switch", "switches") if switches else "",
        f"{counted(topology.num_links, 'link')} of {' to '.join(ends)}",
    ]
    caption = ", ".join(filter(None, facts))
    head = _heading(stage, topology.name, caption)
    servers = network.servers(stage.geometry, None, None)
    legend = Layer("legend", tuple(_legend(stage, _kinds(stage))))
    return Scene(*stage.size, printable(topology.name), (head, *stage.ground, servers, legend))


@dataclasses.dataclass(frozen=True, eq=False)
class Scenes:
    """The scenes of a schedule."""

    stage: Stage
    schedule: Schedule
    rings: Rings

    @staticmethod
    def of(stage: Stage, schedule: Schedule) -> "Scenes":
        """Scenes of a schedule on its network."""
        colour = colours.piece_colours(schedule.pieces)
        rings = Rings(schedule.share, colour, complete(schedule), asked(schedule))
        return Scenes(stage, schedule, rings)

    def at(self, moment: Moment, *, bar: bool = False) -> Scene:
        """The scene of a moment.

        Args:
            moment: the moment to draw.
            bar: whether to draw a progress bar.
        """
        name = printable(self.schedule.topology.name)
        foot = _legend(self.stage, ["reduce", "copy", *_kinds(self.stage)])
        layers = (
            _heading(self.stage, moment.heading, f"{name} · {moment.caption}"),
            *self.stage.ground,
            self._tracks(moment),
            network.servers(self.stage.geometry, self.rings, moment.held),
            Layer("legend", tuple(foot)),
            self._dots(moment),
            *((_progress(self.stage, moment.done),) if bar else ()),
        )
        return Scene(*self.stage.size, f"{name}: {moment.heading}", layers)

    def _tracks(self, moment: Moment) -> Layer:
        """Lines with arrowheads, grouped by piece and operation."""
        groups: dict[tuple[int, int], list[Moving]] = {}
        for one in moment.moving:
            key = (int(self.schedule.piece[one.transfer]), int(self.schedule.op[one.transfer]))
            groups.setdefault(key, []).append(one)
        wide = moment.stroke
        shapes: list[Shape] = []
        for (piece, op), members in groups.items():
            stroke = self.rings.colours[piece]
            dashes = (wide * 2.2, wide * 1.9) if op == COPY else None
            lines = tuple(one.way.points for one in members)
            shapes.append(Line(lines, stroke, wide, dashes))
            shapes += [Polygon(one.way.head(wide * 2.8 + 1), stroke) for one in members]
        return Layer("transfers", tuple(shapes))

    def _dots(self, moment: Moment) -> Layer:
        """The moving pieces: a disc for a reduce, an open square for a copy."""
        radius = self.stage.geometry.radius
        many = len(moment.moving)
        dense = radius < DENSE_RADIUS or many > _DENSE_DOTS
        labelled = radius >= _LABELLED_RADIUS and many <= _LABELLED_DOTS
        thin = moment.stroke < self.stage.geometry.stroke * 0.6
        size = max(1.4, radius * 0.22) if dense else max(2.4, radius * (0.2 if thin else 0.29))
        shapes: list[Shape] = []
        for one in moment.moving:
            shapes += self._dot(one, size, labelled)
        return Layer("pieces", tuple(shapes))

    def _dot(self, one: Moving, size: float, labelled: bool) -> list[Shape]:
        x, y = one.way.at(one.share)
        piece = int(self.schedule.piece[one.transfer])
        paint, ink = self.rings.colours[piece], colours.ON_COLOUR
        if self.schedule.op[one.transfer] == COPY:
            ink, rim = colours.INK, max(1.2, size * 0.24)
            dot = Box(x, y, size * 1.76, size * 1.76, size * 0.3, colours.PAPER, paint, rim)
        else:
            dot = Disc(x, y, size, paint, colours.PAPER, min(1.5, size * 0.2))
        return [dot, centred(x, y, str(piece), size * 1.15, ink)] if labelled else [dot]


def _heading(stage: Stage, heading: str, caption: str) -> Layer:
    width = stage.geometry.width
    lines = ((heading, 19.0, 27.0, colours.INK, True), (caption, 13.0, 48.0, colours.MUTED, False))
    return Layer(
        "heading",
        tuple(
            Label(20, y, _shortened(text, (width - 40) / (0.56 * size)), size, ink, "start", bold)
            for text, size, y, ink, bold in lines
        ),
    )


def _shortened(text: str, most: float) -> str:
    text = printable(text)
    return text if len(text) <= most else f"{text[: int(most) - 1]}…"


def _kinds(stage: Stage) -> list[str]:
    """The kinds of switches that are drawn."""
    points = ~stage.geometry.topology.is_server & ~stage.geometry.bar
    return ["switch"] * bool(points.any()) + ["switch, a lane for each transfer"] * bool(
        stage.geometry.bar.any()
    )


def _legend(stage: Stage, kinds: list[str]) -> list[Shape]:
    """Symbols with their names, below the drawing."""
    y = _HEAD + stage.geometry.height + 18
    x = 20.0
    shapes: list[Shape] = []
    for kind in kinds:
        symbol, wide = _symbol(kind, x, y)
        shapes += symbol
        shapes.append(Label(x + wide + 7, y + 4.3, kind, 12, colours.MUTED, "start"))
        x += wide + 7 + 6.2 * len(kind) + 22
    return shapes


def _symbol(kind: str, x: float, y: float) -> tuple[list[Shape], float]:
    if kind in ("reduce", "copy"):
        copy = kind == "copy"
        track = Line((((x, y), (x + 36, y)),), colours.ACCENT, 2.4, (5, 4) if copy else None)
        middle = x + 18
        dot = (
            Box(middle, y, 10, 10, 2, colours.PAPER, colours.ACCENT, 2)
            if copy
            else Disc(middle, y, 5.5, colours.ACCENT, colours.PAPER, 1.5)
        )
        return [track, dot], 36
    if kind == "switch":
        return [Box(x + 6, y, 8, 8, 1.2, colours.SWITCH, turned=True)], 12
    return [Box(x + 15, y, 30, 8, 3, colours.BAR, colours.BAR_RIM, 1)], 30


def _progress(stage: Stage, done: float) -> Layer:
    """A progress bar along the bottom."""
    width, height = stage.size
    whole, y = width - 40, height - 8
    over = 20 + whole * min(1.0, max(done, 1e-4))
    return Layer(
        "progress",
        (
            Line((((20, y), (20 + whole, y)),), colours.RULE, 4),
            Line((((20, y), (over, y)),), colours.ACCENT, 4),
        ),
    )
