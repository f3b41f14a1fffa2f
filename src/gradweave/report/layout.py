"""Positions of nodes: given ones, boxes, those of the family, or a stress layout.

networkx's Kamada–Kawai layout minimises the same stress but needs SciPy, which Gradweave does not
depend on; majorisation in NumPy gives the same drawing on every installation.
majorisation in NumPy gives the same drawing on every installation.

Source of the stress layout: Gansner, Koren and North, "Graph drawing by stress majorization", 2004.
"""

import dataclasses
import math
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import GradweaveError
from gradweave.report.boxes import Drawing, in_boxes, in_grid, in_racks
from gradweave.report.frames import frames_of
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave.topology.topology import Topology

STRESS_NODES = 1200
"""Larger networks are drawn on circles: stress needs memory for every pair of nodes."""

MAX_BARRED = 2000
"""Larger networks are drawn without bars."""

BEND_PAIRS = 20_000_000
"""Networks with more links × nodes are drawn with straight links."""

_FAMILY_SPEC = re.compile(r"[a-z][a-z0-9_]*(:[^\\\s\0]*)?$")
_BENDS = (0.0, 0.12, -0.12, 0.22, -0.22, 0.34, -0.34)


def draw(topology: Topology) -> Drawing:
    """Chooses positions for nodes and links, and which switches to draw as bars.

    In order of preference: the topology's positions, if given; racks or boxes with bars, if
    servers are on switches; the positions of the family that the topology's name specifies; a
    layout whose distances resemble those in the network. Positions that come from the family do
    not count as given. Groups of servers, such as racks, are outlined if their areas do not
    overlap. The result is deterministic.

    Args:
        topology: the network.

    Returns:
        The drawing in the unit square, with its proportions kept, y growing upwards.
    """
    positions = topology.positions
    if positions is not None and not np.isfinite(positions).all():
        positions = None
    if positions is None or _are_the_familys(topology, positions):
        barred = None
        if topology.num_nodes <= MAX_BARRED:
            barred = in_grid(topology) or in_racks(topology) or in_boxes(topology)
        if barred is not None:
            return _framed(topology, barred)
        positions = _family_positions(topology) if positions is None else positions
    if positions is None:
        positions = (
            _stress_layout(topology) if topology.num_nodes <= STRESS_NODES else _circles(topology)
        )
    return _framed(topology, Drawing.of_points(topology, positions))


def layout(topology: TopologyLike) -> NDArray[np.float64]:
    """Positions of the nodes in `draw`.

    Args:
        topology: the network.

    Returns:
        [V, 2] positions in the unit square, with proportions kept, y growing upwards; for a switch
        drawn as a bar, its centre.
    """
    topology = as_topology(topology)
    return draw(topology).positions


def node_radius(topology: Topology, drawing: Drawing) -> float:
    """Largest radius of a server's symbol at which no symbols touch.

    A switch's symbol is half as large; the distance of bars is kept elsewhere.
    """
    points = ~topology.is_server & ~np.asarray(drawing.reach.any(axis=1))
    servers, switches = drawing.positions[topology.is_server], drawing.positions[points]
    across = np.hypot(*(servers[:, None] - switches[None]).transpose(2, 0, 1)).min(initial=np.inf)
    return min(0.33 * _nearest(servers), 0.7 * _nearest(switches), 0.4 * float(across))


def _nearest(points: NDArray) -> float:
    """Distance between the two nearest points; infinite for fewer than two points."""
    ordered = points[np.argsort(points[:, 0], kind="stable")]
    nearest = np.inf
    for step in range(1, len(ordered)):
        gap = ordered[step:] - ordered[:-step]
        if gap[:, 0].min() > nearest:
            break
        nearest = min(nearest, float(np.hypot(gap[:, 0], gap[:, 1]).min()))
    return nearest


def bends(topology: Topology, drawing: Drawing) -> NDArray[np.float64]:
    """How far each link direction bows to its right, so that no link runs through a third node.

    Args:
        topology: the network.
        drawing: its drawing; links of bars stay straight.

    Returns:
        [L] height of the bow as a fraction of the link's length, with opposite signs in opposite
        directions.
    """
    result = np.zeros(len(topology.source))
    if topology.num_links * topology.num_nodes > BEND_PAIRS:
        return result
    radius = node_radius(topology, drawing)
    bar = np.asarray(drawing.reach.any(axis=1))
    straight = bar[topology.source] | bar[topology.target]
    positions = np.where(bar[:, None], 1e9, drawing.positions)
    for link in np.flatnonzero((topology.source < topology.target) & ~straight):
        ends = (int(topology.source[link]), int(topology.target[link]))
        if _nodes_on_bow(positions, ends, 0.0, radius):
            bend = min(_BENDS, key=lambda bend: _nodes_on_bow(positions, ends, bend, radius))
            result[link], result[topology.opposite[link]] = bend, -bend
    return result


def _nodes_on_bow(positions: NDArray, ends: tuple[int, int], bend: float, radius: float) -> int:
    """Number of other nodes within a radius of a bowed link."""
    start, span = positions[ends[0]], positions[ends[1]] - positions[ends[0]]
    share = np.linspace(0.0, 1.0, 9 if bend else 2)[:, None]
    right = np.array([span[1], -span[0]])
    curve = start + span * share + right * (bend * 4 * share * (1 - share) / 2)
    distance = np.full(len(positions), np.inf)
    for a, b in pairwise(curve):
        along = b - a
        length = max(float(along @ along), 1e-18)
        place = np.clip(((positions - a) @ along) / length, 0.0, 1.0)[:, None]
        distance = np.minimum(distance, np.linalg.norm(positions - a - place * along, axis=1))
    distance[list(ends)] = np.inf
    return int((distance < radius).sum())


def _are_the_familys(topology: Topology, positions: NDArray) -> bool:
    """Whether positions are those of the family in the network's name, whole or after faults."""
    family = _family(topology.name.partition(" without ")[0], 2 * topology.num_nodes)
    if family is None or family.positions is None:
        return False
    known = set(map(tuple, family.positions.tolist()))
    return known.issuperset(map(tuple, positions.tolist()))


def _family_positions(topology: Topology) -> NDArray | None:
    """Positions from the generator in the network's name, if it makes this exact network."""
    family = _family(topology.name, topology.num_nodes)
    if family is None or family.num_nodes != topology.num_nodes:
        return None
    return family.positions if family.same_network(topology) else None


def _family(name: str, most_nodes: int) -> Topology | None:
    """The network of a family that a name specifies, unless it has too many nodes."""
    if len(name) > 200 or not _FAMILY_SPEC.match(name) or _specified_nodes(name) > most_nodes:
        return None
    from gradweave.topology.formats.readers import SUFFIXES
    from gradweave.topology.spec import from_spec

    if "+" in name or Path(name).suffix.lower() in SUFFIXES or Path(name).is_file():
        return None  # the name of a file: it may come from a stranger's file, so nothing is read
    try:
        return from_spec(name, installed=False)  # a name in a file must not run plugins' code
    except GradweaveError:
        return None


def _specified_nodes(name: str) -> int:
    """Minimum number of nodes of a specification's network, to avoid building a huge one."""
    plain = re.sub(r",(seed|bandwidth|latency|capacity|overhead)=[^,]*", "", name)
    family, _, values = plain.partition(":")
    numbers = [min(int(text[:9]), 1 << 20) for text in re.findall(r"\d+", values)] or [0]
    if family in ("bcube", "dcell") and len(numbers) == 2:
        return (
            max(2, numbers[0]) ** (min(numbers[1], 40) + 1)
            if "n=" in values.partition(",")[0]
            else numbers[0]
        )
    if family == "hypercube":
        return 1 << min(numbers[0], 40)
    if family in ("fat_tree", "fattree"):
        return numbers[0] ** 3 // 4
    return math.prod(numbers) if family in ("torus", "mesh") else max(numbers)


def _stress_layout(topology: Topology) -> NDArray[np.float64]:
    """The drawing with the lowest stress from a few fixed starts, its long side horizontal."""
    distance = _distances(topology)
    count = topology.num_nodes
    weight = 1.0 / np.maximum(distance, 1.0) ** 2
    np.fill_diagonal(weight, 0.0)
    laplacian = np.diag(weight.sum(axis=1)) - weight
    inverse = np.linalg.inv(laplacian[1:, 1:])
    generator = np.random.default_rng(0)
    angle = 2 * np.pi * np.arange(count) / count
    starts = [
        _classical_scaling(distance),
        np.column_stack([np.cos(angle), np.sin(angle)]) * distance.max() / 2,
    ]
    starts += [
        generator.normal(size=(count, 2)) * distance.max() / 2
        for _ in range(6 if count <= 150 else 0)
    ]
    drawings: list[tuple[float, NDArray[np.float64]]] = []
    for start in starts:
        positions, stress = start + generator.normal(scale=1e-3, size=start.shape), np.inf
        for _ in range(300 if count <= 300 else 60):
            positions, stress = _majorise(positions, distance, weight, inverse)
        drawings.append((stress, positions))
    return _lay_flat(min(drawings, key=lambda drawing: round(drawing[0], 6))[1])


def _majorise(
    positions: NDArray, distance: NDArray, weight: NDArray, inverse: NDArray
) -> tuple[NDArray[np.float64], float]:
    """One majorisation step, and the stress before it."""
    gap = np.linalg.norm(positions[:, None] - positions[None], axis=2)
    stress = float((weight * (gap - distance) ** 2).sum() / 2)
    ratio = weight * distance / np.maximum(gap, 1e-9)
    pull = ratio.sum(axis=1)[:, None] * positions - ratio @ positions
    moved = np.zeros_like(positions)
    moved[1:] = inverse @ pull[1:]
    return moved, stress


def _distances(topology: Topology) -> NDArray[np.float64]:
    """[V, V] number of links between each two nodes."""
    count = topology.num_nodes
    adjacent = np.zeros((count, count), np.float32)
    adjacent[topology.source, topology.target] = 1.0
    distance = np.full((count, count), np.inf)
    frontier = np.eye(count, dtype=bool)
    step = 0
    while frontier.any():
        distance[frontier] = step
        step += 1
        frontier = ((frontier.astype(np.float32) @ adjacent) > 0) & np.isinf(distance)
    return distance


def _classical_scaling(distance: NDArray) -> NDArray[np.float64]:
    """The plane that preserves distances best."""
    centred = distance**2 - (distance**2).mean(axis=0)
    centred -= centred.mean(axis=1, keepdims=True)
    values, vectors = np.linalg.eigh(-centred / 2)
    plane = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0.0))
    return (
        plane[:, ::-1] * np.where(plane[np.abs(plane).argmax(axis=0), [0, 1]] < 0, -1.0, 1.0)[::-1]
    )


def _lay_flat(positions: NDArray) -> NDArray[np.float64]:
    """Rotates a drawing so that its longest extent lies along x."""
    centred = positions - positions.mean(axis=0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    return centred @ vectors[:, ::-1]


def _circles(topology: Topology) -> NDArray[np.float64]:
    """Servers on a circle in order of id, switches inside, each turned towards its neighbours."""
    angle = 2 * np.pi * topology.rank / topology.num_servers
    circle = np.column_stack([np.sin(angle), np.cos(angle)])
    positions = circle * topology.is_server[:, None]
    pull = np.zeros_like(positions)
    np.add.at(pull, topology.source, positions[topology.target])
    inner = np.arctan2(pull[:, 1], pull[:, 0]) + 1e-3 * np.arange(topology.num_nodes)
    switches = topology.switches
    positions[switches] = 0.6 * np.column_stack([np.cos(inner), np.sin(inner)])[switches]
    return positions


def _framed(topology: Topology, drawing: Drawing) -> Drawing:
    """A drawing with group outlines, centred in the unit square with its proportions kept."""
    frames = ()
    if topology.num_nodes <= MAX_BARRED:
        radius = node_radius(topology, drawing)
        unit = _nearest(drawing.positions[topology.is_server])
        frames = frames_of(topology, drawing.positions, drawing.reach, radius, unit)
    low, high = dataclasses.replace(drawing, frames=frames).extent
    extent = float((high - low).max()) or 1.0
    middle = (low + high) / 2

    def place(points: NDArray) -> NDArray:
        return 0.5 + (points - middle) / extent

    scaled = tuple(frame.scaled(place, 1 / extent) for frame in frames)
    return Drawing(*(place(drawing.positions), drawing.reach / extent, place(drawing.ends)), scaled)
