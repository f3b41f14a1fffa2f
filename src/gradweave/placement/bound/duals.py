"""The certificate: duals of devices, by which every group pays its part of the pipelines' time."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import InvalidCertificateError
from gradweave.placement.bound.levels import compositions, count_compositions, levels_of

if TYPE_CHECKING:
    from gradweave.placement.problem import Problem

NS = 1e9
"""Nanoseconds in a second: times are rounded down to them, and all else is exact."""
MAX_COMPOSITIONS = 20_000
"""Of a group, over the classes that are told apart."""
MAX_DUAL_NS = 10**14
"""Greatest dual that is read, a day or so: sums of them stay within 64 bits."""


@dataclasses.dataclass(frozen=True)
class Window:
    """Duals that hold where DataP is so long."""

    since_ns: int
    """DataP from which on; until the next window's."""
    duals_ns: tuple[int, ...]
    """[Q] what a device of each class adds."""


@dataclasses.dataclass(frozen=True, eq=False)
class GroupDuals:
    """Classes of devices, and the dual of each for every length of DataP. Any prove a bound.

    A group's **composition** is how many devices of each class it has. Take a threshold θ and the
    components of devices that reach each other by steps of at most θ. A boundary of less than θ
    joins groups with as many devices in each component, so that groups in a row without a longer
    boundary, a **run**, are alike in that; a run is as long as its groups find enough devices, at
    most `cap` of them, and a group of that composition pays 1/cap of a run. There is one longer
    boundary less than there are runs; the time of pipelines is the sum over thresholds of how many
    boundaries are longer.

    A group's composition bounds its DataP, too. So where DataP is less than t, only compositions
    within t are used, and each pays at least the duals of its devices and a constant: together, all
    devices' duals and S times the constant.
    """

    classes: NDArray[np.int64]
    """[N] class of each device."""
    windows: tuple[Window, ...]
    """Ascending, from 0 on."""

    def __str__(self) -> str:
        count = int(self.classes.max()) + 1
        return f"duals of {count} classes of devices for {len(self.windows)} lengths of DataP"

    def nanoseconds(self, problem: "Problem") -> int:
        """What they prove, computed from nothing else."""
        return min(self.windows_ns(problem))

    def windows_ns(self, problem: "Problem") -> list[int]:
        """[W] what those of each window prove of placements whose DataP is in it."""
        columns = Columns(problem, self.classes)
        ends = [window.since_ns for window in self.windows[1:]] + [None]
        return [
            window.since_ns + columns.least(np.array(window.duals_ns), end)
            for window, end in zip(self.windows, ends, strict=True)
        ]

    def as_object(self) -> dict[str, Any]:
        """As a placement's file has them: whole nanoseconds."""
        return {
            "classes": self.classes.tolist(),
            "since_ns": [window.since_ns for window in self.windows],
            "duals_ns": [list(window.duals_ns) for window in self.windows],
        }

    @classmethod
    def from_object(
        cls,
        problem: "Problem",
        classes: Sequence[int],
        since_ns: Sequence[int],
        duals_ns: Sequence[Sequence[int]],
    ) -> "GroupDuals":
        """Duals that were read, not trusted, for a problem: such as `nanoseconds` can count.

        Args:
            problem: that they are of.
            classes: [N] class of each device, from 0 on.
            since_ns: [W] where windows begin: ascending, from 0 on.
            duals_ns: of W windows, each Q of them.

        Raises:
            InvalidCertificateError: they do not fit the problem, or each other.
        """
        checked = classes_read(problem, classes)
        count = int(checked.max()) + 1
        starts = list(since_ns)
        if starts[:1] != [0] or starts != sorted(set(starts)) or starts[-1] > MAX_DUAL_NS:
            raise InvalidCertificateError(
                "certificate: since_ns: expected whole nanoseconds, ascending from 0"
            )
        fits = len(duals_ns) == len(starts) and all(len(row) == count for row in duals_ns)
        if not fits or any(abs(one) > MAX_DUAL_NS for row in duals_ns for one in row):
            raise InvalidCertificateError(
                f"certificate: duals_ns: expected {count} whole nanoseconds for each of "
                f"{len(starts)} windows, at most {MAX_DUAL_NS:,} either way"
            )
        windows = zip(starts, map(tuple, duals_ns), strict=True)
        return cls(checked, tuple(Window(*window) for window in windows))


def classes_read(problem: "Problem", classes: Sequence[int]) -> NDArray[np.int64]:
    """[N] classes of devices that were read, not trusted.

    Raises:
        InvalidCertificateError: they do not fit the problem, or are too many.
    """
    count = max(classes, default=-1) + 1
    if len(classes) != problem.devices or set(classes) != set(range(count)):
        raise InvalidCertificateError(
            f"certificate: classes: expected one of 0, 1, 2, … for each of {problem.devices} "
            "devices, none left out"
        )
    found = np.array(classes, np.int64)
    if count_compositions(np.bincount(found), problem.data) > MAX_COMPOSITIONS:
        raise InvalidCertificateError(
            f"certificate: classes: {count} give groups of {problem.data} more than "
            f"{MAX_COMPOSITIONS:,} compositions"
        )
    return found


class Columns:
    """Every composition of a group: the least of its DataP, and its part of the pipelines' time."""

    def __init__(self, problem: "Problem", classes: NDArray[np.int64]) -> None:
        self.classes, self.groups, self.spare = classes, problem.stages, problem.spare
        self.sizes = np.bincount(classes).astype(np.int64)
        self.taken = compositions(self.sizes, problem.data)
        steps = step_ns(problem)
        self.levels = levels = levels_of(steps)
        self.caps = np.ones((len(levels.levels), len(self.taken)), np.int64)
        self.data_ns = data_ns(exchange_ns(problem), classes, self.taken)
        self.cost_ns, self.constant = np.zeros(len(self.taken), np.int64), 0
        if problem.stages > 1:
            self.constant = levels.least * (problem.stages - 1)
            for place, level in enumerate(levels.levels):
                self.caps[place] = _cap(level.component, classes, self.taken, problem.stages)
            widths = np.array([level.width for level in levels.levels], np.int64)
            self.cost_ns = (widths[:, None] // self.caps).sum(axis=0)
            self.constant -= sum(level.width for level in levels.levels)
        order = np.argsort(self.data_ns, kind="stable")
        for name in ("taken", "data_ns", "cost_ns"):
            setattr(self, name, getattr(self, name)[order])
        self.caps = self.caps[:, order]

    def within(self, end_ns: int | None) -> int:
        """How many compositions have DataP of less than `end_ns`; they stand in front."""
        if end_ns is None:
            return len(self.data_ns)
        return int(np.searchsorted(self.data_ns, end_ns))

    def least(self, duals: NDArray[np.int64], end_ns: int | None) -> int:
        """Nanoseconds that the pipelines take at least where DataP is less than `end_ns`."""
        count = self.within(end_ns)
        if self.spare:
            duals = np.minimum(duals, 0)  # a device may stay idle and pay nothing
        if not count:
            return 1 << 62
        each = int((self.cost_ns[:count] - self.taken[:count] @ duals).min())
        return max(0, self.constant + int(duals @ self.sizes) + self.groups * each)


def step_ns(problem: "Problem") -> NDArray[np.int64]:
    """[N, N] nanoseconds of the cheapest boundary between two devices."""
    moved = float(problem.activation_bytes.min(initial=np.inf)) if problem.stages > 1 else 0.0
    return _floor(problem, moved)


def exchange_ns(problem: "Problem", part_bytes: float | None = None) -> NDArray[np.int64]:
    """[N, N] nanoseconds of the exchange of a part, or the smallest part, between two devices."""
    least = float(problem.part_bytes.min())
    return _floor(problem, least if part_bytes is None else part_bytes)


def _floor(problem: "Problem", moved: float) -> NDArray[np.int64]:
    pairs = problem.pairs
    seconds = pairs.there_and_back_s + moved * pairs.there_and_back_s_per_byte
    # A float may be a little above the sum that it stands for.
    return np.floor(np.minimum(seconds * NS * (1 - 1e-12), 1e15)).astype(np.int64)


def data_ns(
    exchange: NDArray[np.int64], classes: NDArray[np.int64], taken: NDArray[np.int64]
) -> NDArray[np.int64]:
    """[C] the least DataP: some device of each class has its cheapest partners of each class."""
    longest = np.zeros(len(taken), np.int64)
    members = [np.flatnonzero(classes == one) for one in range(taken.shape[1])]
    for own, devices in enumerate(members):
        least = np.full(len(taken), np.iinfo(np.int64).max)
        for device in np.unique(_sums(exchange, devices, members, own), axis=0):
            total = np.zeros(len(taken), np.int64)
            start = 0
            for other, partners in enumerate(members):
                count = np.maximum(taken[:, other] - (other == own), 0)
                total += device[start + count]
                start += len(partners) + 1
            least = np.minimum(least, total)
        longest = np.maximum(longest, np.where(taken[:, own] > 0, least, 0))
    return longest


def _sums(
    exchange: NDArray[np.int64], devices: NDArray[np.int64], members: list[NDArray], own: int
) -> NDArray[np.int64]:
    """[devices, …] for each class, the sums of the 0, 1, 2, … cheapest partners in it."""
    parts = []
    for other, partners in enumerate(members):
        costs = exchange[np.ix_(devices, partners)].copy()
        if other == own:
            costs[np.arange(len(devices)), np.arange(len(devices))] = np.int64(1) << 50  # itself
        costs = np.sort(costs, axis=1)
        parts.append(np.column_stack([np.zeros(len(devices), np.int64), np.cumsum(costs, axis=1)]))
    return np.column_stack(parts)


def class_steps(steps: NDArray[np.int64], classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """[Q, Q] the shortest step between two devices of two classes."""
    other = steps.copy()
    np.fill_diagonal(other, 1 << 50)
    count = int(classes.max()) + 1
    least = np.full((count, count), 1 << 50)
    np.minimum.at(least, (classes[:, None], classes[None, :]), other)
    return least


def _cap(
    component: NDArray[np.int64], classes: NDArray[np.int64], taken: NDArray[np.int64], stages: int
) -> NDArray[np.int64]:
    """[C] groups that a run has at most: r such that each component has r times what one takes.

    Of classes within a component, all together; of a class over several, what r groups in a row
    could take of each of them.
    """
    sizes = np.bincount(component)
    parts = [np.unique(component[classes == one]) for one in range(taken.shape[1])]
    within = np.zeros((len(sizes), taken.shape[1]), np.int64)
    for one, own in enumerate(parts):
        if len(own) == 1:
            within[own[0], one] = 1
    used = taken @ within.T
    cap = np.zeros(len(taken), np.int64)
    for run in range(1, stages + 1):
        enough = (used * run <= sizes).all(axis=1)
        for one, own in enumerate(parts):
            if len(own) > 1:
                enough &= taken[:, one] <= (sizes[own] // run).sum()
        cap += enough
    return np.maximum(cap, 1)
