"""The certificate by duals: each group pays its devices' duals towards the pipelines' time."""

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
"""Nanoseconds per second. Times are rounded down to nanoseconds; all other arithmetic is exact."""
MAX_COMPOSITIONS = 20_000
"""Maximum number of compositions of a group over the given classes of devices."""
MAX_DUAL_NS = 10**14
"""Largest dual that is accepted from a file, about a day: sums of duals stay within 64 bits."""


@dataclasses.dataclass(frozen=True)
class Window:
    """Duals that hold for a range of DataP."""

    since_ns: int
    """Start of the range of DataP; it ends where the next window starts."""
    duals_ns: tuple[int, ...]
    """[Q] the dual of a device of each class."""


@dataclasses.dataclass(frozen=True, eq=False)
class GroupDuals:
    """Classes of devices, and duals per class and range of DataP. Any duals prove a lower bound.

    A group's **composition** is the number of its devices in each class. Fix a threshold θ, and
    join devices whose links take at most θ into components. If the boundary between two consecutive
    groups takes at most θ, both have equally many devices in each component. A **run** is a maximal
    sequence of groups with no boundary above θ, so all its groups agree in these numbers. It uses
    up the devices of its components, so it has at most `cap` groups, and each of its groups counts
    as at least 1/cap of a run. The number of boundaries above θ is the number of runs minus one,
    and the time of the pipelines is the sum of these numbers over the thresholds.

    A group's composition also bounds its DataP. So if DataP is less than t, only compositions with
    a DataP below t occur, and each costs at least the sum of its devices' duals and a constant.
    All S groups together cost at least the sum of all devices' duals plus S times the constant.
    """

    classes: NDArray[np.int64]
    """[N] class of each device."""
    windows: tuple[Window, ...]
    """In ascending order, from 0 on."""

    def __str__(self) -> str:
        count = int(self.classes.max()) + 1
        return f"duals of {count} classes of devices for {len(self.windows)} lengths of DataP"

    def nanoseconds(self, problem: "Problem") -> int:
        """The bound that the duals prove, recounted from nothing else."""
        return min(self.windows_ns(problem))

    def windows_ns(self, problem: "Problem") -> list[int]:
        """[W] the bound of each window for placements whose DataP is in it."""
        columns = Columns(problem, self.classes)
        ends = [window.since_ns for window in self.windows[1:]] + [None]
        return [
            window.since_ns + columns.least(np.array(window.duals_ns), end)
            for window, end in zip(self.windows, ends, strict=True)
        ]

    def as_object(self) -> dict[str, Any]:
        """The certificate as stored in a placement's file, in whole nanoseconds."""
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
        """Validates duals from an untrusted file, so that `nanoseconds` can count them.

        Args:
            problem: the problem that they are for.
            classes: [N] class of each device, from 0 on.
            since_ns: [W] starts of the windows: ascending, from 0 on.
            duals_ns: [W, Q] duals of each window.

        Raises:
            InvalidCertificateError: they do not fit the problem or each other.
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
    """[N] device classes from an untrusted file, after validation.

    Raises:
        InvalidCertificateError: they do not fit the problem, or there are too many.
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
    """Every composition of a group: its minimum DataP, and its part of the pipelines' time."""

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
        """Number of compositions whose DataP is less than `end_ns`; these come first."""
        if end_ns is None:
            return len(self.data_ns)
        return int(np.searchsorted(self.data_ns, end_ns))

    def least(self, duals: NDArray[np.int64], end_ns: int | None) -> int:
        """Minimum nanoseconds of the pipelines if DataP is less than `end_ns`."""
        count = self.within(end_ns)
        if self.spare:
            duals = np.minimum(duals, 0)  # a device may stay idle and pays nothing then
        if not count:
            return 1 << 62
        each = int((self.cost_ns[:count] - self.taken[:count] @ duals).min())
        return max(0, self.constant + int(duals @ self.sizes) + self.groups * each)


def step_ns(problem: "Problem") -> NDArray[np.int64]:
    """[N, N] nanoseconds of the cheapest boundary between two devices."""
    moved = float(problem.activation_bytes.min(initial=np.inf)) if problem.stages > 1 else 0.0
    return _floor(problem, moved)


def exchange_ns(problem: "Problem", part_bytes: float | None = None) -> NDArray[np.int64]:
    """[N, N] nanoseconds to exchange a part, or the smallest part, between two devices."""
    least = float(problem.part_bytes.min())
    return _floor(problem, least if part_bytes is None else part_bytes)


def _floor(problem: "Problem", moved: float) -> NDArray[np.int64]:
    pairs = problem.pairs
    seconds = pairs.there_and_back_s + moved * pairs.there_and_back_s_per_byte
    # A float may be slightly above the exact sum.
    return np.floor(np.minimum(seconds * NS * (1 - 1e-12), 1e15)).astype(np.int64)


def data_ns(
    exchange: NDArray[np.int64], classes: NDArray[np.int64], taken: NDArray[np.int64]
) -> NDArray[np.int64]:
    """[C] minimum DataP: some device of each class has its cheapest partners of each class."""
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
    """[devices, …] for each class, the total cost of the 0, 1, 2, … cheapest partners in it."""
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
    """[C] maximum length of a run for each composition: the largest r such that r groups fit.

    Each component must have r times the devices that a group takes from classes inside it. If a
    class spans several components, each group takes at most size // r devices from each of these,
    since the groups of a run take equally many.
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
