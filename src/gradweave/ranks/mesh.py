"""Parallel meshes: groups of ranks along each axis, with rings that share the network's links."""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import OptionError
from gradweave.ranks.pattern import Pattern, Phase, pattern_of, rings_phase

PIPELINE = "pp"
"""The axis along which neighbours exchange activations and their gradients, without a reduction."""
MAX_AXES = 6


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Ranks as a mesh, row by row: those along the last axis have consecutive ranks.

    This is the layout of ``jax.make_mesh`` and ``torch.distributed.init_device_mesh``. Along each
    axis every group runs a ring all-reduce, all groups at the same time; along `PIPELINE` each
    stage exchanges with the next.

    Raises:
        OptionError: for an axis without a name, a size below 1, or bytes for an unknown axis.
    """

    axes: Mapping[str, int]
    """Size of each axis, in the order of the mesh."""
    axis_bytes: Mapping[str, float]
    """Bytes per step along each axis: of each group's all-reduce, or of activations; 0 for axes
    that are not named. Several all-reduces in a step count as one with their total size."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", dict(self.axes))
        object.__setattr__(self, "axis_bytes", dict(self.axis_bytes))
        if not 1 <= len(self.axes) <= MAX_AXES:
            raise OptionError(f"mesh: expected 1 to {MAX_AXES} axes, got {len(self.axes)}")
        for axis, size in self.axes.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,30}", axis):
                raise OptionError(f"mesh: expected a name such as dp for an axis, got {axis!r:.40}")
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise OptionError(f"mesh: {axis}: expected a size of at least 1, got {size!r:.40}")
        for axis, size in self.axis_bytes.items():
            if axis not in self.axes:
                known = ", ".join(self.axes)
                raise OptionError(f"bytes: expected axes of the mesh, {known}, got {axis!r:.40}")
            if not 0 <= size < math.inf:
                raise OptionError(f"bytes: {axis}: expected a size of at least 0, got {size}")
        if not any(self.axis_bytes.get(axis, 0) and self.axes[axis] > 1 for axis in self.axes):
            raise OptionError(
                "bytes: expected what a step moves along at least one axis of more than one rank, "
                "such as tp=4GB,dp=500MB"
            )

    @property
    def size(self) -> int:
        """Number of ranks."""
        return math.prod(self.axes.values())

    @property
    def used(self) -> tuple[str, ...]:
        """The axes along which data moves."""
        return tuple(a for a, size in self.axes.items() if size > 1 and self.axis_bytes.get(a))

    def groups(self, axis: str) -> NDArray[np.int64]:
        """[G, n] ranks of each group along an axis.

        >>> Mesh({"dp": 2, "tp": 3}, {"tp": 1e6}).groups("tp").tolist()
        [[0, 1, 2], [3, 4, 5]]
        """
        table = np.arange(self.size).reshape(tuple(self.axes.values()))
        along = list(self.axes).index(axis)
        return np.moveaxis(table, along, -1).reshape(-1, self.axes[axis])

    def phase(self, axis: str) -> Phase:
        """The flows along an axis, for all groups at the same time."""
        groups, size = self.groups(axis), float(self.axis_bytes[axis])
        if axis != PIPELINE:
            return rings_phase(groups, size)
        early, late = groups[:, :-1].ravel(), groups[:, 1:].ravel()
        source, target = np.concatenate([early, late]), np.concatenate([late, early])
        return Phase(source, target, np.full(len(source), size), size, 1.0)

    def pattern(self, axis: str | None = None) -> Pattern:
        """The flows of a step, axis after axis; or those along one axis."""
        return pattern_of([self.phase(one) for one in ((axis,) if axis else self.used)])

    def layouts(self, near: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Assignments of servers to ranks, with each axis in turn along near servers.

        Args:
            near: [N] servers, with near servers adjacent.
        """
        names = list(self.axes)
        by_traffic = sorted(names, key=lambda axis: self.axis_bytes.get(axis, 0.0))
        for order in itertools.islice(_heaviest_last(by_traffic), 24):
            table = near.reshape([self.axes[axis] for axis in order])
            yield np.transpose(table, [order.index(axis) for axis in names]).ravel()


def _heaviest_last(names: list[str]) -> Iterator[tuple[str, ...]]:
    """Orders of axes; the first has the heaviest axis last, along the nearest servers."""
    for order in itertools.permutations(names[::-1]):
        yield order[::-1]
