"""SVG drawings of a placement: sites with stages and pipelines, and the timeline of a step."""

import html
import itertools
import math

import numpy as np
from numpy.typing import NDArray

from gradweave.placement.bound.duals import step_ns
from gradweave.placement.bound.levels import levels_of
from gradweave.placement.placement import Placement
from gradweave.placement.placing import problem_for
from gradweave.placement.timeline.step import StepTime

WIDTH = 1180
"""Width of a drawing in its units."""
APART = 1.5
"""Minimum ratio of two consecutive thresholds at which sites are separated."""
MAX_SITES = 64
MAX_PASSES = 20_000
"""Maximum number of passes in the drawing of a step; beyond, only the first pipelines are drawn."""
_CELL, _PAD = 22.0, 16.0
_PUSHES = 400


def stage_colour(stage: int, stages: int, pale: bool = False) -> str:
    """The colour of a stage."""
    hue = round(360 * stage / max(stages, 1) + 210) % 360
    return f"hsl({hue}, 62%, {74 if pale else 52}%)"


def sites_of(placement: Placement) -> NDArray[np.int64]:
    """[N] the site of each server, by rank: servers are grouped at a wide step in distances.

    Each server is a site of its own if there is no such step.
    """
    levels = levels_of(step_ns(problem_for(placement)))
    below, best, chosen = max(levels.least, 1), APART, np.arange(placement.topology.num_servers)
    for level in levels.levels:
        ratio = (below + level.width) / below
        if ratio > best and int(level.component.max()) < MAX_SITES:
            best, chosen = ratio, level.component
        below += level.width
    return chosen if best > APART else np.arange(len(chosen))


def map_of(placement: Placement) -> str:
    """An SVG element with the sites, their servers coloured by stage, and the pipelines."""
    site = sites_of(placement)
    spots, sizes = _inside(placement, site)
    centres = _apart(_centres(placement, site), sizes)
    low = (centres - sizes / 2).min(axis=0) - 8
    high = (centres + sizes / 2).max(axis=0) + 8
    wide, tall = (high - low).tolist()
    at = centres[site] + spots - low
    shapes = [*_sites(placement, site, centres - low, sizes), *_ways(placement, site, at)]
    shapes += _devices(placement, at)
    scale = min(1.0, WIDTH / wide)
    return (
        f'<svg viewBox="0 0 {wide:.0f} {tall:.0f}" width="{wide * scale:.0f}" role="img" '
        f'aria-label="The placement">{"".join(shapes)}</svg>'
    )


def _inside(
    placement: Placement, site: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[N, 2] position of each server from the centre of its site; [sites, 2] the sites' sizes.

    A site's columns are the stages in it, its rows the pipelines in it.
    """
    count = len(site)
    stage, pipeline = np.full(count, -1), np.full(count, -1)
    ranks = placement.topology.rank[placement.servers]
    for (s, p), rank in np.ndenumerate(ranks):
        stage[rank], pipeline[rank] = s, p
    spots, sizes = np.zeros((count, 2)), np.zeros((int(site.max()) + 1, 2))
    for one in range(len(sizes)):
        members = np.flatnonzero(site == one)
        columns, column = np.unique(stage[members], return_inverse=True)
        rows, row = np.unique(pipeline[members], return_inverse=True)
        idle = np.cumsum(stage[members] < 0) - 1  # idle servers in a separate row
        column = np.where(stage[members] < 0, idle, column)
        extent = np.array([max(len(columns), int(column.max()) + 1), len(rows)])
        place = np.stack([column, row], axis=1) - (extent - 1) / 2
        spots[members] = _CELL * place + np.array([0.0, 7.0])
        label = 7.2 * len(_site_name(placement, members))
        sizes[one] = np.maximum(_CELL * extent, [label, 0]) + 2 * _PAD + np.array([0.0, 8.0])
    return spots, sizes


def _centres(placement: Placement, site: NDArray[np.int64]) -> NDArray[np.float64]:
    """[sites, 2] positions from the network's, or by classical scaling of distances."""
    count = int(site.max()) + 1
    topology = placement.topology
    if topology.positions is not None:
        own = topology.positions[topology.servers]
        means = np.array([own[site == one].mean(axis=0) for one in range(count)])
        return _fitted(means * np.array([1.0, -1.0]), count)
    distance = np.sqrt(step_ns(problem_for(placement)).astype(np.float64))
    first = np.array([np.flatnonzero(site == one)[0] for one in range(count)])
    squared = distance[np.ix_(first, first)] ** 2
    centring = np.eye(count) - 1 / count
    values, vectors = np.linalg.eigh(-0.5 * centring @ squared @ centring)
    chosen = np.argsort(-values)[:2]
    placed = vectors[:, chosen] * np.sqrt(np.maximum(values[chosen], 0.0))
    return _fitted(np.pad(placed, ((0, 0), (0, 2 - placed.shape[1]))), count)


def _fitted(points: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Points scaled to the drawing's width; placed on a circle if they coincide."""
    extent = float(np.ptp(points, axis=0).max(initial=0.0))
    if extent <= 0:
        angle = np.arange(count) * 2 * math.pi / count
        points, extent = np.stack([np.cos(angle), np.sin(angle)], axis=1), 2.0
    return (points - points.mean(axis=0)) * (0.7 * WIDTH / extent)


def _apart(centres: NDArray[np.float64], sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """The centres, moved until sites no longer overlap noticeably."""
    centres = centres.copy()
    for _ in range(_PUSHES):
        moved = False
        for one in range(len(centres)):
            for other in range(one):
                gap = centres[one] - centres[other]
                room = (sizes[one] + sizes[other]) / 2 + 14
                over = room - np.abs(gap)
                if (over > 0.5).all():
                    axis = int(np.argmin(over))
                    way = 1.0 if gap[axis] > 0 or (gap[axis] == 0 and one % 2) else -1.0
                    centres[one, axis] += way * over[axis] / 2
                    centres[other, axis] -= way * over[axis] / 2
                    moved = True
        if not moved:
            break
    return centres


def _site_name(placement: Placement, members: NDArray[np.int64]) -> str:
    """The common part of the labels of a site's servers, or the number of servers."""
    topology = placement.topology
    labels = [topology.label(int(node)) for node in topology.servers[members]]
    words = {label.rsplit(" ", 1)[0] if len(members) > 1 else label for label in labels}
    if len(words) == 1 and (name := words.pop()):
        return name
    node = int(topology.servers[members[0]])
    return topology.node_name(node) if len(members) == 1 else f"{len(members)} servers"


def _sites(
    placement: Placement,
    site: NDArray[np.int64],
    centres: NDArray[np.float64],
    sizes: NDArray[np.float64],
) -> list[str]:
    shapes = []
    for one, ((x, y), (wide, high)) in enumerate(zip(centres, sizes, strict=True)):
        name = html.escape(_site_name(placement, np.flatnonzero(site == one)))
        shapes.append(
            f'<rect class="site" x="{x - wide / 2:.1f}" y="{y - high / 2:.1f}" width="{wide:.1f}" '
            f'height="{high:.1f}" rx="10"/><text x="{x - wide / 2 + 9:.1f}" '
            f'y="{y - high / 2 + 14:.1f}">{name}</text>'
        )
    return shapes


def _ways(placement: Placement, site: NDArray[np.int64], at: NDArray[np.float64]) -> list[str]:
    """The pipelines, a line for each message."""
    ranks, shapes = placement.topology.rank[placement.pipelines], []
    for number, row in enumerate(ranks.tolist()):
        for one, other in itertools.pairwise(row):
            (x, y), (u, v) = at[one], at[other]
            far = bool(site[one] != site[other])
            bend = 0.08 * ((number % 5) - 2) if far else 0.0
            mid = ((x + u) / 2 - bend * (v - y), (y + v) / 2 + bend * (u - x))
            shapes.append(
                f'<path class="way{" far" * far}" d="M{x:.1f} {y:.1f}Q{mid[0]:.1f} {mid[1]:.1f} '
                f'{u:.1f} {v:.1f}"/>'
            )
    return shapes


def _devices(placement: Placement, at: NDArray[np.float64]) -> list[str]:
    topology, (stages, _) = placement.topology, placement.servers.shape
    shapes = []
    for (stage, pipeline), node in np.ndenumerate(placement.servers):
        x, y = at[topology.rank[node]]
        name = html.escape(topology.id_name(int(node)))
        shapes.append(
            f'<circle class="device" cx="{x:.1f}" cy="{y:.1f}" r="8" '
            f'fill="{stage_colour(stage, stages)}"><title>server {name}: stage {stage}, pipeline '
            f"{pipeline}</title></circle>"
        )
    for node in placement.idle.tolist():
        x, y = at[topology.rank[node]]
        shapes.append(f'<circle class="idle" cx="{x:.1f}" cy="{y:.1f}" r="7"/>')
    return shapes


def timeline_of(step: StepTime) -> str:
    """An SVG element with a step's passes, a row for each device."""
    stages, data = step.busy_s.shape
    per_pipeline = max(1, len(step.stage) // data)
    shown = min(data, max(1, MAX_PASSES // per_pipeline))
    row_high = max(4.0, min(16.0, 640 / (stages * shown)))
    left, top = 92.0, 22.0
    across = (WIDTH - left - 12) / max(step.seconds, 1e-300)
    tall = top + shown * (stages * row_high + 8) + 6
    shapes = _axis(step.seconds, left, across, top, tall)
    for pipeline in range(shown):
        y = top + pipeline * (stages * row_high + 8)
        shapes.append(f'<text x="4" y="{y + 11:.1f}">pipeline {pipeline}</text>')
        for stage in range(stages):
            begin = float(step.end_s[(step.stage == stage) & (step.pipeline == pipeline)].max())
            end = float(step.reduced_s[stage])
            shapes.append(
                f'<rect class="average" x="{left + begin * across:.2f}" '
                f'y="{y + stage * row_high:.1f}" width="{max(0.0, end - begin) * across:.2f}" '
                f'height="{row_high - 1:.1f}"/>'
            )
    for one in np.flatnonzero(step.pipeline < shown).tolist():
        stage = int(step.stage[one])
        y = top + step.pipeline[one] * (stages * row_high + 8) + stage * row_high
        colour = stage_colour(stage, stages, pale=not step.backward[one])
        wide = max(0.4, float(step.end_s[one] - step.start_s[one]) * across - 0.3)
        shapes.append(
            f'<rect x="{left + step.start_s[one] * across:.2f}" y="{y:.1f}" width="{wide:.2f}" '
            f'height="{row_high - 1:.1f}" fill="{colour}"/>'
        )
    if shown < data:
        shapes.append(f'<text x="{left}" y="{tall + 10:.0f}">and {data - shown} more</text>')
        tall += 16
    return (
        f'<svg viewBox="0 0 {WIDTH} {tall:.0f}" role="img" aria-label="A step in time">'
        f"{''.join(shapes)}</svg>"
    )


def _axis(seconds: float, left: float, across: float, top: float, tall: float) -> list[str]:
    """Ticks at round seconds."""
    raw = max(seconds, 1e-12) / 8
    unit = 10.0 ** math.floor(math.log10(raw))
    tick = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
    shapes = []
    for number in range(math.floor(seconds / tick + 1e-9) + 1):
        x = left + number * tick * across
        shapes.append(
            f'<path class="axis" d="M{x:.1f} {top - 6}V{tall:.0f}"/>'
            f'<text class="faint" x="{x + 2:.1f}" y="{top - 9}">{number * tick:.4g} s</text>'
        )
    return shapes
