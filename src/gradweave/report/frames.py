"""Outlines of boxes, racks and pods in a drawing, with their names."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from gradweave.report.bars import bar_room
from gradweave.topology.groups import Groups, nested_groups
from gradweave.topology.topology import Topology

_LARGER = {"box": "rack", "rack": "pod", "pod": "site"}
"""Name of a group of such groups."""
_PAD, _AROUND = 0.15, 0.25
"""Clearance of an outline from nodes, and from the outlines inside it, in units of the distance
between servers."""
_STRIP, _WIDEST = 0.5, 32.0
"""Height of a name's line, in the same unit; scaled up in drawings wider than `_WIDEST`, so that
names stay legible."""


@dataclasses.dataclass(frozen=True)
class Frame:
    """A named rectangle, in one unit, y growing upwards."""

    x: float
    """Coordinates of its centre."""
    y: float
    wide: float
    """Half of its width."""
    high: float
    """Half of its height, including the line for the name."""
    strip: float
    """Height of that line."""
    below: bool
    """Whether the name's line is at the bottom instead of the top."""
    label: str
    short: str
    """A shorter label for narrow frames."""
    level: int
    """0 for the smallest groups."""

    def scaled(self, place: Callable[[NDArray], NDArray], scale: float) -> "Frame":
        """The frame in a drawing that is moved and scaled.

        Args:
            place: maps old points to new points.
            scale: factor for lengths.
        """
        x, y = place(np.array([self.x, self.y])).tolist()
        return dataclasses.replace(
            self,
            x=x,
            y=y,
            wide=self.wide * scale,
            high=self.high * scale,
            strip=self.strip * scale,
        )


_LARGEST, _LEAST_FULL = 15.0, 9.0
"""Largest size of names in pixels, and the size below which shorter names are used; as in the
page."""
_LETTER = 0.58
"""Approximate width of a letter relative to its height."""


def named(frames: Sequence[Frame]) -> list[tuple[str, float]]:
    """The text of each frame and its size in pixels, the same within a level."""
    written: dict[int, tuple[bool, float]] = {}
    for level in {frame.level for frame in frames}:
        mine = [frame for frame in frames if frame.level == level]
        full, short = (
            min(_size(frame, text) for frame, text in zip(mine, texts, strict=True))
            for texts in ([frame.label for frame in mine], [frame.short for frame in mine])
        )
        written[level] = (full < _LEAST_FULL, short if full < _LEAST_FULL else full)
    return [
        (frame.short if written[frame.level][0] else frame.label, written[frame.level][1])
        for frame in frames
    ]


def _size(frame: Frame, text: str) -> float:
    return min(_LARGEST, 0.72 * frame.strip, 1.84 * frame.wide / (_LETTER * max(1, len(text))))


def frames_of(
    topology: Topology, positions: NDArray, reach: NDArray, radius: float, unit: float
) -> tuple[Frame, ...]:
    """Outlines of the groups in a network whose areas do not overlap in a drawing.

    Args:
        topology: the network; its groups are those of `nested_groups`.
        positions: [V, 2] position of each node.
        reach: [V, 2] half of a bar's extent; zeros for a point.
        radius: radius of a server.
        unit: distance between the two nearest servers.

    Returns:
        The outlines, larger groups first. A level of groups is left out, with all above it, if an
        outline would contain another group's nodes, or overlap another outline.
    """
    nested = nested_groups(topology, equal=False)
    if not nested:
        return ()
    strip = max(_STRIP * unit, float(np.ptp(positions[:, 0])) / _WIDEST)
    half = _half_sizes(topology, positions, reach, radius)
    kind, levels, inside = "", list[tuple[Frame, ...]](), None
    for groups in nested:
        kind = _LARGER.get(kind, "group") if kind else _kind(topology, groups)
        leaves = _leaves(topology, groups) if inside is None else np.zeros(0, np.int64)
        extent = _extents(groups, leaves, positions, half + _PAD * unit)
        if inside is not None:
            _widen(extent, groups.group[inside[0]], inside[1], _AROUND * unit)
        below = _names_below(groups, positions, extent)
        extent[below, 0, 1] -= strip
        extent[~below, 1, 1] += strip
        if not _lie_apart(groups, extent, positions, half):
            break
        names = _names(topology, groups, leaves, kind)
        levels.append(
            tuple(
                _frame(*one, strip, len(levels)) for one in zip(extent, below, names, strict=True)
            )
        )
        inside = _first_members(groups), extent
    return tuple(frame for level in reversed(levels) for frame in level)


def _frame(extent: NDArray, below: bool, names: tuple[str, str], strip: float, level: int) -> Frame:
    (x, y), (wide, high) = extent.mean(axis=0).tolist(), (np.ptp(extent, axis=0) / 2).tolist()
    return Frame(x, y, wide, high, strip, bool(below), *names, level)


def _half_sizes(
    topology: Topology, positions: NDArray, reach: NDArray, radius: float
) -> NDArray[np.float64]:
    """[V, 2] half of each symbol's width and height."""
    radii = np.where(topology.is_server, radius, 0.62 * radius)
    bar = np.asarray(reach.any(axis=1))
    thick = bar_room(positions, reach, radius, np.where(bar, 0.0, radii)) / 2
    return np.where(bar[:, None], np.maximum(reach, thick[:, None]), radii[:, None])


def _kind(topology: Topology, groups: Groups) -> str:
    """Kind of the smallest groups: boxes if some inner node alone joins servers, else racks."""
    source, target = topology.source, topology.target
    inside = (groups.group[source] == groups.group[target]) & (groups.group[source] >= 0)
    down = topology.is_server[target]
    if (inside & down & topology.is_server[source]).any():
        return "box"
    links = np.bincount(source, minlength=topology.num_nodes)
    joined = np.bincount(source[inside & down], minlength=topology.num_nodes)
    all_inside = np.bincount(source[inside], minlength=topology.num_nodes) == links
    return "box" if (all_inside & (joined > 1) & ~topology.is_server).any() else "rack"


def _leaves(topology: Topology, groups: Groups) -> NDArray[np.int64]:
    """Switches in groups that link several of the group's nodes to nodes outside."""
    source, group = topology.source, groups.group
    inside = group[source] == group[topology.target]
    within = np.bincount(source[inside], minlength=topology.num_nodes)
    beyond = np.bincount(source[~inside], minlength=topology.num_nodes)
    return np.flatnonzero(~topology.is_server & (group >= 0) & (within > 1) & (beyond > 0))


def _extents(
    groups: Groups, leaves: NDArray, positions: NDArray, half: NDArray
) -> NDArray[np.float64]:
    """[G, 2, 2] extreme coordinates of each group's nodes; leaves count only along x."""
    extent = np.tile([[np.inf] * 2, [-np.inf] * 2], (groups.count, 1, 1))
    members = np.flatnonzero(groups.group >= 0)
    for axis, mine in enumerate((members, np.setdiff1d(members, leaves))):
        group, at = groups.group[mine], positions[mine, axis]
        np.minimum.at(extent[:, 0, axis], group, at - half[mine, axis])
        np.maximum.at(extent[:, 1, axis], group, at + half[mine, axis])
    return extent


def _widen(extent: NDArray, outer: NDArray, inner: NDArray, pad: float) -> None:
    """Extends outer extents to contain inner ones, given the outer group of each inner group."""
    np.minimum.at(extent[:, 0], outer, inner[:, 0] - pad)
    np.maximum.at(extent[:, 1], outer, inner[:, 1] + pad)


def _first_members(groups: Groups) -> NDArray[np.int64]:
    """[G] one node of each group."""
    return np.unique(groups.group[groups.group >= 0], return_index=True)[1]


def _names_below(groups: Groups, positions: NDArray, extent: NDArray) -> NDArray[np.bool_]:
    """[G] whether names go at the bottom: on the side away from switches between the groups."""
    between = positions[groups.group < 0, 1]
    if not len(between):
        return np.ones(groups.count, np.bool_)
    return extent[:, :, 1].mean(axis=1) <= between.mean()


def _lie_apart(groups: Groups, extent: NDArray, positions: NDArray, half: NDArray) -> bool:
    """Whether no outline overlaps another, or a node outside its group."""
    low, high = extent[:, 0], extent[:, 1]
    meets = ((low[:, None] < high[None]) & (low[None] < high[:, None])).all(axis=2)
    if meets.sum() > groups.count:
        return False
    holds = (
        (low[:, None] < (positions + half)[None]) & ((positions - half)[None] < high[:, None])
    ).all(axis=2)
    return not (holds & (groups.group[None] != np.arange(groups.count)[:, None])).any()


def _names(topology: Topology, groups: Groups, leaves: NDArray, kind: str) -> list[tuple[str, str]]:
    """The label and a shorter label of each group; a rack with one named leaf takes its name."""
    names = [(f"{kind} {number}", str(number)) for number in range(groups.count)]
    own = groups.group[leaves].tolist()
    for leaf, number in zip(leaves.tolist(), own, strict=True):
        label = topology.label(leaf)
        if label and not label.isdigit() and own.count(number) == 1:
            names[number] = topology.id_name(leaf), str(number)
    return names
