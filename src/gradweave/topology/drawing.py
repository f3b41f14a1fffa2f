"""Positions of nodes in drawings, by family, so that the picture shows the structure."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MAX_DRAWN = 2000
"""Most nodes for which generators give positions; a drawing of more shows nothing."""


def circle(count: int, radius: float = 1.0, start: float = np.pi / 2) -> NDArray[np.float64]:
    """[count, 2] points evenly on a circle around the origin, counter-clockwise from the top."""
    angle = start + 2 * np.pi * np.arange(count) / max(count, 1)
    return radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def rotated(points: NDArray, angle: float) -> NDArray[np.float64]:
    """[…, 2] the points rotated counter-clockwise around the origin."""
    cos, sin = np.cos(angle), np.sin(angle)
    return np.asarray(points) @ np.array([[cos, sin], [-sin, cos]])


def evenly(count: int, width: float) -> NDArray[np.float64]:
    """[count] points spread evenly over a width, centred on zero."""
    return (np.arange(count) + 0.5) / count * width - width / 2


def oblique(coordinates: NDArray, sizes: Sequence[int], bow: float = 0.0) -> NDArray[np.float64]:
    """Projects a grid of any dimension onto the plane.

    The last two dimensions span a plane grid with x to the right and y downwards; the third from
    last recedes, up and to the right; earlier ones place copies side by side, alternately to the
    right and upwards.

    Args:
        coordinates: [V, D] each node's place in the grid.
        sizes: [D] extent of each dimension.
        bow: how far a plane grid's rows and columns bend, so that links between their ends do not
            cross the nodes in between.

    Returns:
        [V, 2] positions.
    """
    coordinates = np.asarray(coordinates, np.float64)[:, ::-1]
    sizes = list(sizes)[::-1]
    points = np.zeros((len(coordinates), 2))
    extent = np.zeros(2)
    for d, size in enumerate(sizes):
        if d == 0:
            step = np.array([1.0, 0.0])
        elif d == 1:
            step = np.array([0.0, -1.0])
        elif d == 2:
            step = np.array([0.43, 0.31])
        else:
            across = d % 2 == 1
            step = (extent + 0.9) * ([1.0, 0.09] if across else [0.13, 1.0])
        points += coordinates[:, d : d + 1] * step
        if bow and d < 2 and size > 2:
            middle = (size - 1) / 2
            bend = bow * (1 - ((coordinates[:, d] - middle) / middle) ** 2)
            points[:, 1 - d] += bend
        extent += (size - 1) * np.abs(step)
    return points
