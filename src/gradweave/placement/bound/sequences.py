"""Exhaustive search of sequences of groups, and the certificate that none costs less."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
from gradweave.stop import UNLIMITED, Stop

if TYPE_CHECKING:
    from gradweave.placement.problem import Problem

MAX_LOOKED = 500_000_000
"""Beginnings of sequences that are looked at: half a minute or so."""
MAX_PAIRS = 10_000_000
"""Pairs of compositions whose boundary is looked for: half a gigabyte, and ten seconds or so."""
KNOWN = 1 << 21
"""Beginnings that are remembered: 50 MB."""
MAX_TABLE = 20_000_000
"""Compositions times classes times thresholds: tables of so many numbers, 160 MB."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sequences:
    """No sequence of groups costs less than a goal, which an exhaustive search confirms.

    A group's composition, how many devices of each class it has, bounds its DataP in each stage. A
    boundary is at least the bottleneck matching of its two compositions. A placement is a sequence
    of groups that together take no more of a class than there is; it costs the longest DataP of
    them and all boundaries. How the search prunes, says
    `gradweave.placement.bound.sequences_kernel.least_sequence`.
    """

    classes: NDArray[np.int64]
    """[N] class of each device."""
    goal_ns: int
    """Nanoseconds that no sequence costs less than."""

    def __str__(self) -> str:
        count = int(self.classes.max()) + 1
        return f"exhaustive search of sequences of groups, by {count} classes of devices"

    def nanoseconds(self, problem: "Problem") -> int:
        """What they prove: `goal_ns`, or less if there is a sequence that costs less.

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
        """As a placement's file has them: whole nanoseconds."""
        return {"classes": self.classes.tolist(), "goal_ns": self.goal_ns}

    @classmethod
    def from_object(cls, problem: "Problem", classes: Sequence[int], goal_ns: int) -> "Sequences":
        """What was read, not trusted, for a problem: such as `nanoseconds` can search.

        Args:
            problem: that they are of.
            classes: [N] class of each device, from 0 on.
            goal_ns: as the field.

        Raises:
            InvalidCertificateError: they do not fit the problem.
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
    """[N] classes of devices that are as far from all others, so that they can be exchanged.

    By these classes a sequence of compositions is one of devices, and costs as much.
    """
    tables = [step_ns(problem), *(exchange_ns(problem, size) for size in part_sizes(problem)[0])]
    classes = np.full(problem.devices, -1)
    for device in range(problem.devices):
        if classes[device] < 0:
            same = np.ones(problem.devices, bool)
            for table in tables:
                differs = table != table[device]
                # What two devices are from each other and from themselves does not count.
                same &= differs.sum(axis=1) == differs[:, device].astype(int) + differs.diagonal()
            classes[same] = classes.max() + 1
    return classes


def countable(problem: "Problem", classes: NDArray[np.int64]) -> bool:
    """Whether groups have so few compositions that sequences of them can be searched."""
    sizes = np.bincount(classes)
    count = count_compositions(sizes, problem.data)
    return count <= MAX_COMPOSITIONS and count * len(sizes) * MAX_LEVELS <= MAX_TABLE


def part_sizes(problem: "Problem") -> tuple[list[float], NDArray[np.int64]]:
    """Sizes of gradients' parts that differ, and [S] which each stage has."""
    sizes, kind = np.unique(problem.part_bytes, return_inverse=True)
    return sizes.tolist(), kind


class Least(NamedTuple):
    """The result of a search."""

    ns: int
    """None costs less: the least cost, or the goal."""
    devices: NDArray[np.int64] | None
    """[S, D] a sequence that costs so much, if devices of a class are alike; None where that is the
    goal."""


class SequenceSearch:
    """Searches the sequences of groups of a problem, by classes of devices."""

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
        """The least cost of all sequences, at most the goal.

        Args:
            goal_ns: costs from which on nothing is looked for.
            most: beginnings of sequences that are looked at; pairs of groups, D²/2 times fewer,
                since a boundary takes as much longer.
            stop: after which the search ends.

        Returns:
            None where there are too many pairs of groups or beginnings, or time is up.
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
        """A sequence of compositions as one of devices."""
        if ns >= goal_ns:
            return Least(goal_ns, None)
        taken, members, group = self._columns.taken[sequence], [], []
        for one, count in enumerate(taken.sum(axis=0).tolist()):
            members.append(np.flatnonzero(self._columns.classes == one)[:count])
            group.append(np.repeat(np.arange(len(taken)), taken[:, one]))
        order = np.argsort(np.concatenate(group), kind="stable")
        return Least(ns, np.concatenate(members)[order].reshape(len(taken), -1))

    def _rows_below(self, goal_ns: int, most: int, stop: Stop) -> "_Rows | None":
        """Of sequences that cost less than a goal; None where they are too many or time is up."""
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
    """For each composition those that may follow it, in ascending order of boundaries."""

    begins: NDArray[np.int64]
    """[C + 1] where each one's begin."""
    after: NDArray[np.int64]
    """[M] which follow."""
    between: NDArray[np.int64]
    """[M] nanoseconds of the boundary."""


def _codes(columns: Columns) -> NDArray[np.int64]:
    """[C] numbers whose sum tells which devices are taken; all 0 where it would exceed 62 bits."""
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
    """Which classes make up which components, and what each threshold adds, the widest first.

    Thresholds at which a class is of several components are left out.

    Returns:
        [L, Q, J] 1 where a class is of a component; [L] nanoseconds.
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
