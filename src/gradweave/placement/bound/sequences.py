"""Exhaustive search of sequences of groups, and the certificate that none costs less."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.stop import UNLIMITED, Stop
from gradweave.errors import InvalidCertificateError
from gradweave.placement.bound.duals import (
    MAX_COMPOSITIONS,
    MAX_DUAL_NS,
    Columns,
    class_steps,
    classes_read,
    data_ns,
    exchange_ns,
    step_ns,
)
from gradweave.placement.bound.levels import MAX_LEVELS, Levels, count_compositions

if TYPE_CHECKING:
    from gradweave.placement.problem import Problem

MAX_LOOKED = 500_000_000
"""Prefixes of sequences that are explored, which takes about half a minute."""
MAX_PAIRS = 10_000_000
"""Pairs of compositions whose boundaries are computed: half a gigabyte and about ten seconds."""
KNOWN = 1 << 21
"""Prefixes that are remembered: 50 MB."""
MAX_TABLE = 20_000_000
"""Compositions times classes times thresholds: tables of this many numbers take 160 MB."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sequences:
    """A proof by exhaustive search that no sequence of groups costs less than a goal.

    A group's composition, the number of its devices in each class, bounds its DataP in each stage.
    A boundary costs at least the bottleneck matching of its two compositions. A placement is a
    sequence of groups that together take no more of each class than it has. Its cost is the longest
    DataP of the groups plus all boundaries. For the pruning rules see
    `gradweave.placement.bound.sequences_kernel.least_sequence`.
    """

    classes: NDArray[np.int64]
    """[N] class of each device."""
    goal_ns: int
    """Nanoseconds; no sequence costs less."""

    def __str__(self) -> str:
        count = int(self.classes.max()) + 1
        return f"exhaustive search of sequences of groups, by {count} classes of devices"

    def nanoseconds(self, problem: "Problem") -> int:
        """The proved bound: `goal_ns`, or less if some sequence costs less.

        Raises:
            InvalidCertificateError: there are too many sequences to search.
        """
        found = SequenceSearch(problem, self.classes).least(self.goal_ns, MAX_LOOKED)
        if found is None:
            raise InvalidCertificateError(
                f"certificate: there are more than {MAX_LOOKED:,} beginnings of sequences below "
                f"{self.goal_ns} ns to look at, or {MAX_PAIRS:,} pairs of groups"
            )
        return found.ns

    def as_object(self) -> dict[str, Any]:
        """The certificate as stored in a placement's file, in whole nanoseconds."""
        return {"classes": self.classes.tolist(), "goal_ns": self.goal_ns}

    @classmethod
    def from_object(cls, problem: "Problem", classes: Sequence[int], goal_ns: int) -> "Sequences":
        """Validates a certificate from an untrusted file, so that `nanoseconds` can search it.

        Args:
            problem: the problem that it is for.
            classes: [N] class of each device, from 0 on.
            goal_ns: see the field.

        Raises:
            InvalidCertificateError: it does not fit the problem.
        """
        if not 0 <= goal_ns <= MAX_DUAL_NS:
            raise InvalidCertificateError(
                f"certificate: goal_ns: expected whole nanoseconds up to {MAX_DUAL_NS:,}"
            )
        found = classes_read(problem, classes)
        if not countable(problem, found):
            raise InvalidCertificateError(
                "certificate: classes: expected fewer, of which groups have fewer compositions"
            )
        return cls(found, goal_ns)


def alike(problem: "Problem") -> NDArray[np.int64]:
    """[N] classes of interchangeable devices, with equal distances to all others.

    With these classes, a sequence of compositions is also a sequence of devices of the same cost.
    """
    tables = [step_ns(problem), *(exchange_ns(problem, size) for size in part_sizes(problem)[0])]
    classes = np.full(problem.devices, -1)
    for device in range(problem.devices):
        if classes[device] < 0:
            same = np.ones(problem.devices, bool)
            for table in tables:
                differs = table != table[device]
                # The distances between the two devices and to themselves do not count.
                same &= differs.sum(axis=1) == differs[:, device].astype(int) + differs.diagonal()
            classes[same] = classes.max() + 1
    return classes


def countable(problem: "Problem", classes: NDArray[np.int64]) -> bool:
    """Whether there are few enough compositions of groups to search sequences of them."""
    sizes = np.bincount(classes)
    count = count_compositions(sizes, problem.data)
    return count <= MAX_COMPOSITIONS and count * len(sizes) * MAX_LEVELS <= MAX_TABLE


def part_sizes(problem: "Problem") -> tuple[list[float], NDArray[np.int64]]:
    """The distinct sizes of gradient parts, and [S] the index of each stage's size."""
    sizes, kind = np.unique(problem.part_bytes, return_inverse=True)
    return sizes.tolist(), kind


class Least(NamedTuple):
    """The result of a search."""

    ns: int
    """The minimum cost, or the goal if nothing costs less."""
    devices: NDArray[np.int64] | None
    """[S, D] a sequence of minimum cost, if devices of a class are alike, or None if the goal was
    reached."""


class SequenceSearch:
    """Search over a problem's sequences of groups, by classes of devices."""

    def __init__(self, problem: "Problem", classes: NDArray[np.int64]) -> None:
        self._columns = columns = Columns(problem, classes)
        self._steps = class_steps(step_ns(problem), classes)
        sizes, self._kind = part_sizes(problem)
        exchanges = [exchange_ns(problem, size) for size in sizes]
        self._data_ns = np.stack([data_ns(one, classes, columns.taken) for one in exchanges])
        belongs, self._widths = _components(columns.levels, classes)
        self._parts = np.einsum("cq,lqj->clj", columns.taken, belongs)
        self._part_sizes = np.einsum("q,lqj->lj", columns.sizes, belongs)
        levels = self._parts.swapaxes(0, 1)
        numbers = [np.unique(rows, axis=0, return_inverse=True)[1] for rows in levels]
        self._alike = np.column_stack([*numbers, np.zeros(len(columns.taken), np.int64)])
        self._code = _codes(columns)

    def least(self, goal_ns: int, most: int, stop: Stop = UNLIMITED) -> Least | None:
        """The minimum cost of all sequences, or the goal if that is lower.

        Args:
            goal_ns: sequences that cost at least this much are not sought.
            most: maximum number of prefixes to explore. The maximum number of pairs of groups is
                D²/2 times smaller, since a boundary takes that much longer.
            stop: when to end the search.

        Returns:
            None if there are too many pairs of groups or prefixes, or time is up.
        """
        from gradweave.placement.bound.sequences_kernel import least_sequence

        columns = self._columns
        if columns.groups == 1:
            return self._least(int(columns.data_ns[0]), goal_ns, np.zeros(1, np.int64))
        with stop.watched() as stop:
            rows, chosen = self._rows_below(goal_ns, most, stop), np.empty(columns.groups, np.int64)
            if rows is None:
                return None
            found = least_sequence(
                *(rows.begins, rows.after, rows.between),
                *(columns.taken, self._parts, self._data_ns, self._kind),
                *(columns.sizes.copy(), self._part_sizes.copy(), self._widths),
                *(columns.levels.least, goal_ns, most, stop.flag),
                *(*np.zeros((4, columns.groups), np.int64), chosen, self._code),
                np.full((KNOWN if self._code.any() else 0, 3), -1),
            )
        return None if found < 0 else self._least(int(found), goal_ns, chosen)

    def _least(self, ns: int, goal_ns: int, sequence: NDArray[np.int64]) -> Least:
        """Turns a sequence of compositions into one of devices."""
        if ns >= goal_ns:
            return Least(goal_ns, None)
        taken, members, group = self._columns.taken[sequence], [], []
        for one, count in enumerate(taken.sum(axis=0).tolist()):
            members.append(np.flatnonzero(self._columns.classes == one)[:count])
            group.append(np.repeat(np.arange(len(taken)), taken[:, one]))
        order = np.argsort(np.concatenate(group), kind="stable")
        return Least(ns, np.concatenate(members)[order].reshape(len(taken), -1))

    def _rows_below(self, goal_ns: int, most: int, stop: Stop) -> "_Rows | None":
        """The successors in sequences below a goal, or None if there are too many or time is up."""
        from gradweave.placement.bound.sequences_kernel import followers

        columns, count = self._columns, len(self._columns.taken)
        data = int(columns.taken[0].sum())
        most = min(MAX_PAIRS, 2 * most // data**2, count * (count + 1) // 2)
        pairs = np.empty((3, most), np.int64)
        found = followers(
            *(columns.taken, self._alike, columns.data_ns),
            *(columns.sizes, self._steps, self._widths),
            *(columns.levels.least, (columns.groups - 2) * columns.levels.least, goal_ns),
            *(stop.flag, *pairs),
        )
        if found < 0:
            return None
        one, other, between = pairs[:, :found]
        back = one != other
        before, after = np.append(one, other[back]), np.append(other, one[back])
        between = np.append(between, between[back])
        order = np.lexsort((between, before))
        begins = np.searchsorted(before[order], np.arange(count + 1))
        return _Rows(begins, after[order], between[order])


@dataclasses.dataclass(frozen=True, eq=False)
class _Rows:
    """For each composition, its possible successors in ascending order of boundaries."""

    begins: NDArray[np.int64]
    """[C + 1] start of each composition's successors."""
    after: NDArray[np.int64]
    """[M] the successors."""
    between: NDArray[np.int64]
    """[M] nanoseconds of the boundary."""


def _codes(columns: Columns) -> NDArray[np.int64]:
    """[C] numbers whose sum identifies the devices taken; all 0 if it would exceed 62 bits."""
    digit, code = 1, np.zeros(len(columns.taken), np.int64)
    for place, size in enumerate(columns.sizes.tolist()):
        code += digit * columns.taken[:, place]
        digit *= size + 1
        if digit * len(code) >= 1 << 62:
            return np.zeros(len(code), np.int64)
    return code


def _components(
    levels: Levels, classes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The classes in each component, and the width of each threshold, the widest first.

    Thresholds at which a class belongs to several components are left out.

    Returns:
        [L, Q, J] 1 if a class belongs to a component, by threshold; [L] width of each threshold in
        nanoseconds.
    """
    classings = int(classes.max()) + 1
    first = np.array([np.flatnonzero(classes == one)[0] for one in range(classings)])
    told = [one for one in levels.levels if (one.component == one.component[first][classes]).all()]
    told.sort(key=lambda level: -level.width)
    belongs = np.zeros((len(told), classings, classings), np.int64)
    for place, level in enumerate(told):
        part = np.unique(level.component[first], return_inverse=True)[1]
        belongs[place, np.arange(classings), part] = 1
    return belongs, np.array([level.width for level in told], np.int64)
