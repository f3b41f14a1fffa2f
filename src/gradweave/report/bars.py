"""Maximum thickness of switches that are drawn as bars."""

import numpy as np
from numpy.typing import NDArray


def bar_room(
    positions: NDArray, reach: NDArray, radius: float, radii: NDArray
) -> NDArray[np.float64]:
    """Twice the distance to the nearest server, or that to the nearest parallel bar; 0 for points.

    Args:
        positions: [V, 2] position of each node.
        reach: [V, 2] half of a bar's extent; zeros for a point.
        radius: radius of a server.
        radii: [V] distance that links keep from each node's centre.
    """
    bars = np.asarray(reach.any(axis=1))
    room = np.zeros(len(positions))
    for bar in np.flatnonzero(bars):
        along, across = (0, 1) if reach[bar, 0] > 0 else (1, 0)
        apart = np.abs(positions[:, across] - positions[bar, across])
        near = np.abs(positions[:, along] - positions[bar, along]) <= (
            reach[bar, along] + reach[:, along]
        )
        near[bar] = False
        beside = near & bars & ((reach[:, 0] > 0) == (along == 0))
        others = near & ~bars
        free = min(
            radius * 2.2,
            0.4 * float(apart[beside].min(initial=np.inf)),
            float((apart - radii)[others].min(initial=np.inf)),
        )
        room[bar] = 1.7 * free
    return room
