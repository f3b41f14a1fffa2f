"""Drawings of networks with servers at switches: boxes or racks side by side, switches as bars.

A switch drawn as a bar gives every transfer through it a separate lane. Drawn as a point, it would
be a knot of lines.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from gradweave.report.frames import Frame
from gradweave.topology.groups import nested_groups
from gradweave.topology.topology import Topology

MAX_ROW = 44
"""Maximum number of servers and gaps for which boxes are drawn side by side with servers in a row,
or in two facing rows if switches join boxes; in larger drawings, each box is a column."""
MAX_BOX = 64
"""Servers of the largest box that is drawn as one."""
_BAR = 0.95
"""Distance of a bar from its row of servers, in units of the distance between servers."""
_LAYER = 1.2
_STACKED = 0.8
"""Distance between stacked bars of one layer."""
_UPLINK_SPAN = 0.7
"""Fraction of a bar over which its links to higher switches are spread."""
_COLUMNS, _DENSE_COLUMNS, _STAGGERED = 1.7, 1.3, 0.8
"""Distance between a rack's two columns of servers: with its leaf between them, for few or many
servers (`_FEW`); or between two leaves, with servers staggered by `_ROW` so that links pass between
those of the other column."""
_FEW = 64
_ROW = 0.55
_RISER = 0.65
"""Distance of a leaf from its column in racks with two leaves."""
_HEAD = 1.0
"""How far a rack's leaves extend above its first servers."""
_RACKS, _SWITCHES, _PODS = 1.4, 1.0, 1.1
"""Distance between the servers of neighbouring racks, or between their leaves if these are outside,
and the extra distance between pods."""

Box = tuple[NDArray[np.integer], list[int]]
"""The servers of a box, and the switches drawn with it: a rack may have two."""


@dataclasses.dataclass(frozen=True, eq=False)
class Drawing:
    """Positions of nodes and link ends in one unit, y growing upwards."""

    positions: NDArray[np.float64]
    """[V, 2] position of each node; the centre of a bar."""
    reach: NDArray[np.float64]
    """[V, 2] half of a bar's extent along x and y; zeros for a point."""
    ends: NDArray[np.float64]
    """[L, 2] where each link direction leaves its source; for a point, its position."""
    frames: tuple[Frame, ...] = ()
    """Outlines of boxes, racks and pods."""

    @property
    def extent(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Minimum and maximum coordinates of bars, centres of points and outlines."""
        middles = [self.positions, *([[frame.x, frame.y]] for frame in self.frames)]
        halves = [self.reach, *([[frame.wide, frame.high]] for frame in self.frames)]
        at, half = np.concatenate(middles), np.concatenate(halves)
        return (at - half).min(axis=0), (at + half).max(axis=0)

    @staticmethod
    def of_points(topology: Topology, positions: NDArray) -> "Drawing":
        """A drawing without bars."""
        return Drawing(positions, np.zeros_like(positions), positions[topology.source])


def in_boxes(topology: Topology) -> Drawing | None:
    """Draws boxes of servers on switches, with higher switches in layers above them.

    Args:
        topology: the network; it qualifies if servers are linked only to switches and share them,
            and the shared switches are not linked to each other.

    Returns:
        The drawing, or None if the network does not have this shape.
    """
    home = _home_switches(topology)
    if home is None:
        return None
    homes = home[topology.servers]
    level = _levels(topology, homes)
    boxes: list[Box] = [
        (topology.servers[homes == one], [one]) for one in dict.fromkeys(homes.tolist())
    ]
    layers = _Boxes(topology, level, boxes)
    return None if layers.has_bars_that_are_linked() else layers.drawing()


def in_racks(topology: Topology) -> Drawing | None:
    """Draws racks side by side, servers next to their leaves, higher switches in layers above.

    A rack's servers form two columns with the leaf between them, or between their two leaves.
    Racks of a pod (`nested_groups`) are adjacent.

    Returns:
        The drawing, or None if servers are not in racks: each on one or two leaves that no server
        of another rack is on, and that are not linked to other racks' leaves.
    """
    racks = _racks(topology)
    if racks is None:
        return None
    level = _levels(topology, np.array([leaf for _, leaves in racks for leaf in leaves]))
    layers = _Boxes(topology, level, racks, racks=True)
    return None if layers.has_bars_that_are_linked() else layers.drawing()


def in_grid(topology: Topology) -> Drawing | None:
    """Draws servers in a grid with a bar for each row and each column: BCube with two levels.

    Returns:
        The drawing, or None unless each server has two switches, one of each kind.
    """
    servers = topology.servers
    degree = np.bincount(topology.source, minlength=topology.num_nodes)
    if topology.num_nodes == topology.num_servers or (degree[servers] != 2).any():
        return None
    pairs = topology.target[topology.is_server[topology.source]].reshape(-1, 2)
    if topology.is_server[pairs].any() or (degree[topology.switches] < 2).any():
        return None
    rows, row = np.unique(pairs[:, 0], return_inverse=True)
    columns, column = np.unique(pairs[:, 1], return_inverse=True)
    full = len(rows) * len(columns) == len(servers) and not np.isin(rows, columns).any()
    if (
        not full
        or len(np.unique(pairs, axis=0)) != len(servers)
        or min(len(rows), len(columns)) < 2
    ):
        return None
    positions = np.zeros((topology.num_nodes, 2))
    reach = np.zeros_like(positions)
    positions[servers] = np.stack([column, -row], axis=1)
    wide, high = len(columns) - 1, len(rows) - 1
    positions[rows] = np.stack([np.full(high + 1, wide / 2 + 0.2), -np.arange(high + 1) - 0.5], 1)
    positions[columns] = np.stack(
        [np.arange(wide + 1) + 0.5, np.full(wide + 1, -high / 2 - 0.2)], 1
    )
    reach[rows, 0], reach[columns, 1] = wide / 2 + 0.45, high / 2 + 0.45
    ends = positions[topology.source]
    for link in np.flatnonzero(~topology.is_server[topology.source]):
        along = 0 if reach[topology.source[link], 0] else 1
        ends[link, along] = positions[topology.target[link], along]
    return Drawing(positions, reach, ends)


def _home_switches(topology: Topology) -> NDArray[np.int64] | None:
    """[V] the switch of each server's box, −1 for switches, or None if there are no boxes.

    It is the fastest switch that the server shares with another; among equally fast switches, the
    switch with the fewest servers.
    """
    source, target = topology.source, topology.target
    between = topology.is_server[source] & topology.is_server[target]
    if between.any() or topology.num_nodes == topology.num_servers:
        return None
    shared = np.bincount(target[topology.is_server[source]], minlength=topology.num_nodes)
    links = np.flatnonzero(topology.is_server[source] & (shared[target] > 1))
    order = links[
        np.lexsort((target[links], shared[target[links]], -topology.bandwidth_bytes_per_s[links]))
    ]
    home = np.full(topology.num_nodes, -1)
    home[source[order[::-1]]] = target[order[::-1]]
    homes = home[topology.servers]
    sizes = np.bincount(homes[homes >= 0], minlength=1)
    if (homes < 0).any() or sizes.max() > MAX_BOX or sizes[np.unique(homes)].min() < 2:
        return None
    if np.isin(source, homes)[np.isin(target, homes)].any():
        return None
    return home


def _racks(topology: Topology) -> list[Box] | None:
    """Servers and leaves of each rack, ordered by pod; see `in_racks`."""
    levels = nested_groups(topology, equal=False)
    source, target = topology.source, topology.target
    down = topology.is_server[source]
    if not levels or topology.is_server[target[down]].any():
        return None
    group = levels[0].group
    leaves = np.unique(target[down])
    between = np.isin(source, leaves) & np.isin(target, leaves)
    apart = group[source] != group[target]
    if (apart & (down | between)).any():
        return None
    racks: list[Box] = []
    for one in range(levels[0].count):
        servers = topology.servers[group[topology.servers] == one]
        own = leaves[group[leaves] == one]
        links = int((down & (group[source] == one)).sum())
        if len(servers) > MAX_BOX or len(own) > 2 or links != len(servers) * len(own):
            return None
        racks.append((servers, own.tolist()))
    pod = _pods(topology)
    return sorted(racks, key=lambda rack: int(pod[rack[0][0]]))


def _pods(topology: Topology) -> NDArray[np.int64]:
    """[V] the pod of each node; all zero if there are no pods."""
    levels = nested_groups(topology, equal=False)
    return levels[1].group if len(levels) > 1 else np.zeros(topology.num_nodes, np.int64)


def _levels(topology: Topology, lowest: NDArray) -> NDArray[np.int64]:
    """[V] 0 for servers and the switches of their boxes, otherwise links to the nearest of them."""
    level = np.full(topology.num_nodes, -1)
    level[topology.is_server] = 0
    level[np.unique(lowest)] = 0
    step = 0
    while (level < 0).any():
        reached = topology.target[level[topology.source] == step]
        step += 1
        level[reached[level[reached] < 0]] = step
    return level


class _Boxes:
    """Places nodes layer by layer from the servers upwards."""

    def __init__(
        self, topology: Topology, level: NDArray, boxes: list[Box], racks: bool = False
    ) -> None:
        self.topology, self.level, self.boxes, self.racks = topology, level, boxes, racks
        self.tallest = max(len(servers) for servers, _ in boxes)
        above = level[topology.target] > level[topology.source]
        self.up = [topology.target[above & (topology.source == v)] for v in range(len(level))]
        self.down = [topology.source[above & (topology.target == v)] for v in range(len(level))]
        facing = len(boxes) > 1 and bool(level.any())
        half = -(-len(boxes) // 2) if facing else len(boxes)
        self.upright = racks or sum(len(servers) + 1 for servers, _ in boxes[:half]) > MAX_ROW
        """Whether boxes are drawn as columns, one or two for each, instead of as rows."""
        self.halves = [boxes[:half], boxes[half:]] if facing and not self.upright else [boxes]
        self.positions = np.zeros((topology.num_nodes, 2))
        self.reach = np.zeros_like(self.positions)

    def has_bars_that_are_linked(self) -> bool:
        """Whether two switches of the same higher level are linked and would both be bars."""
        bar = np.array([len(down) > 2 for down in self.down])
        source, target = self.topology.source, self.topology.target
        return bool((bar[source] & bar[target] & (self.level[source] == self.level[target])).any())

    def drawing(self) -> Drawing:
        """The drawing: each half from its servers upwards, then the switches between the halves."""
        half = self._half_of()
        top = foot = _HEAD - 0.2 if self.racks else 0.0
        for number, boxes in enumerate(self.halves):
            self._place_boxes(boxes)
            leaves = any(len(self.up[home]) for _, (home, *_) in boxes) and not self.upright
            top = max(top, self._place_layers(half == number, foot + leaves * (_BAR - 0.3)))
        if len(self.halves) > 1:
            end = self._place_layers(half == 2, top)
            # The upper half is flipped: its top lies one layer above the middle.
            turned = end + _LAYER + top - self.positions[:, 1]
            self.positions[:, 1] = np.where(half == 1, turned, self.positions[:, 1])
        return Drawing(self.positions, self.reach, self._ends())

    def _half_of(self) -> NDArray[np.int64]:
        """[V] the half of each node; 2 for switches that join both."""
        half_of = np.full(self.topology.num_nodes, -1)
        for number, boxes in enumerate(self.halves):
            for servers, switches in boxes:
                half_of[servers] = half_of[switches] = number
        for v in np.argsort(self.level, kind="stable").tolist():
            if half_of[v] < 0:
                below = np.unique(half_of[self.down[v]])
                half_of[v] = below[0] if len(below) == 1 else 2
        return half_of

    def _place_boxes(self, boxes: list[Box]) -> None:
        """Places boxes side by side."""
        if self.racks:
            return self._place_racks()
        beside = self.upright and any(len(self.up[v]) for box, _ in boxes for v in box.tolist())
        edge = 0.0
        for box, (switch,) in boxes:
            gap = 2.6 if beside else 1.15 if self.upright else 1.7
            edge = self._place_box(box, switch, edge) + gap

    def _place_racks(self) -> None:
        """Places racks side by side, with larger gaps between pods."""
        pod = _pods(self.topology)
        edge, before = 0.0, self.boxes[0]
        for rack in self.boxes:
            edge += _PODS * bool(pod[rack[0][0]] != pod[before[0][0]])
            edge = self._place_rack(*rack, edge) + (_RACKS if len(rack[1]) == 1 else _SWITCHES)
            before = rack

    def _place_rack(self, servers: NDArray, leaves: list[int], edge: float) -> float:
        """Places a rack from an edge; returns its other edge."""
        place = np.arange(len(servers))
        one = len(leaves) == 1
        columns = _COLUMNS if self.topology.num_servers <= _FEW else _DENSE_COLUMNS
        apart, low = (columns, place // 2) if one else (_STAGGERED, place * _ROW)
        first = edge if one else edge + _RISER
        self.positions[servers] = np.stack([first + place % 2 * apart, -low], axis=1)
        bottom = -float(low[-1]) - 0.4
        for number, leaf in enumerate(leaves):
            x = edge + apart / 2 if one else edge + number * (apart + 2 * _RISER)
            self.positions[leaf] = x, (_HEAD + bottom) / 2
            self.reach[leaf, 1] = (_HEAD - bottom) / 2
        return edge + apart + (0 if one else 2 * _RISER)

    def _place_layers(self, mine: NDArray[np.bool_], height: float) -> float:
        """Places the selected higher switches above a height; returns the new height."""
        for step in range(1, int(self.level.max()) + 1):
            layer = np.flatnonzero(mine & (self.level == step))
            if len(layer):
                height = self._place_layer(layer, height)
        return height

    def _place_box(self, box: NDArray, switch: int, edge: float) -> float:
        """Places a box from an edge; returns its other edge."""
        along, across = (1, 0) if self.upright else (0, 1)
        sign = -1.0 if self.upright else 1.0
        place = np.arange(len(box)) * sign
        self.positions[box, along] = place + (0.0 if self.upright else edge)
        self.positions[box, across] = edge if self.upright else 0.0
        middle = (len(box) - 1) / 2 * sign
        self.positions[switch, along] = middle + (0.0 if self.upright else edge)
        # If the switch has links upwards, it is on their side of the servers.
        outward = 1.0 if len(self.up[switch]) else -1.0
        gap = 0.55 if self.upright else _BAR
        self.positions[switch, across] = (edge if self.upright else 0.0) + outward * gap
        self.reach[switch, along] = (len(box) - 1) / 2 + 0.4
        if self.upright and len(self.up[switch]):
            self.positions[switch, 1] += 0.3
            self.reach[switch, 1] += 0.3
        return edge if self.upright else edge + len(box) - 1

    def _place_layer(self, layer: NDArray, height: float) -> float:
        """Places a layer of higher switches above a height; returns the new height."""
        points = [v for v in layer.tolist() if len(self.down[v]) < 3]
        bars = [v for v in layer.tolist() if len(self.down[v]) >= 3]
        owned = self.upright and points and all(self._beside_server(v) for v in points)
        if points and not owned:
            height += _LAYER + (0.4 if self.upright and not height else 0.0)
            x = np.array([self.positions[self.down[v], 0].mean() for v in points])
            order = np.argsort(x, kind="stable")
            for v, place in zip(np.array(points)[order], _apart(x[order], 0.8), strict=True):
                self.positions[v] = place, height
        return self._stack(bars, height + _LAYER) if bars else height

    def _stack(self, bars: list[int], height: float) -> float:
        """Places bars from a height upwards, stacked where they would overlap."""
        taken: list[float] = []
        for v in bars:
            low, high = self._span(self.down[v])
            slot = next((at for at, end in enumerate(taken) if end < low - 0.2), len(taken))
            taken[slot : slot + 1] = [high + 0.4]
            self.positions[v] = (low + high) / 2, height + slot * _STACKED
            self.reach[v, 0] = (high - low) / 2 + 0.4
        return height + (len(taken) - 1) * _STACKED

    def _beside_server(self, switch: int) -> bool:
        """Places a switch with a single server next to it, in a column; False for other switches.

        Lower switches are further out, so that their links upwards pass the others.
        """
        if len(self.down[switch]) != 1 or not self.topology.is_server[self.down[switch][0]]:
            return False
        x, y = self.positions[self.down[switch][0]]
        self.positions[switch] = x + 0.55 - y * 0.6 / max(1, self.tallest - 1), y
        return True

    def _span(self, nodes: NDArray) -> tuple[float, float]:
        low = self.positions[nodes, 0] - self.reach[nodes, 0]
        high = self.positions[nodes, 0] + self.reach[nodes, 0]
        return float(low.min()), float(high.max())

    def _ends(self) -> NDArray[np.float64]:
        """Where links leave bars: in line with their other end, spread if several go upwards."""
        source, target = self.topology.source, self.topology.target
        ends = self.positions[source]
        for link in range(len(source)):
            v, other = int(source[link]), int(target[link])
            if not self.reach[v].any():
                continue
            if self.level[other] == 0 and self.topology.is_server[other]:
                along = int(self.reach[v, 1] > 0)
                ends[link, along] = self.positions[other, along]
            elif self.level[other] > self.level[v]:
                ends[link] = self._uplink_end(v, other)
            else:
                ends[link, 0] = (
                    self._uplink_end(other, v)[0]
                    if self.reach[other].any()
                    else (self.positions[other, 0])
                )
        return ends

    def _uplink_end(self, v: int, other: int) -> NDArray[np.float64]:
        """Where a bar's link to a higher switch leaves it: at the top if the bar is upright."""
        ways = self.up[v].tolist()
        share = (ways.index(other) + 0.5) / len(ways) * 2 - 1
        if self.reach[v, 1]:
            return self.positions[v] + [0.4 * share, self.reach[v, 1]]
        return self.positions[v] + [_UPLINK_SPAN * share * self.reach[v, 0], 0.0]


def _apart(x: NDArray, gap: float) -> NDArray[np.float64]:
    """Moves sorted coordinates at least a gap apart, keeping their mean."""
    moved = np.maximum.accumulate(x - gap * np.arange(len(x))) + gap * np.arange(len(x))
    return moved - (moved.mean() - x.mean())
