"""Checks the servers' results, and finds the first error."""

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gradweave.errors import RunError
from gradweave.execute.pattern import contribution, expected
from gradweave.execute.reference import play
from gradweave.execute.running.trial import Trial
from gradweave.schedules.schedule import Schedule

_HOLDS = {"bfloat16": 1 << 8, "float16": 1 << 11}
"""These types hold all integers up to these limits; the limits of the other types are far
higher."""
_LARGEST = 4
"""The largest number that `contribution` makes."""


@dataclasses.dataclass(frozen=True)
class ResultCheck:
    """Contributions of all servers, and a check of the results against the expected ones."""

    schedule: Schedule
    trial: Trial
    elements: int
    kind: str
    """``oracle``: random numbers, reduced in the schedule's order, rounding included;
    ``pattern``: integers, whose sum is the same in every order."""

    def contribution(self, rank: int) -> NDArray:
        """[elements] The contribution of a server."""
        if self.kind == "pattern":
            return contribution(rank, self.elements, self.trial.numpy_dtype)
        rng = np.random.default_rng((20, rank))
        if "int" in self.trial.dtype:
            return rng.integers(0, 100, self.elements).astype(self.trial.numpy_dtype)
        return rng.standard_normal(self.elements).astype(self.trial.numpy_dtype)

    def first_error(self, results: dict[int, NDArray]) -> NDArray[np.float64]:
        """[4] The first error: rank, element, expected value, actual value; the rank is −1 if none.

        Args:
            results: results of some servers, by rank.
        """
        expected = self._expected()
        for rank, result in results.items():
            for start, end in self._meaningful(rank):
                actual, right = result[start:end], expected[rank, start:end]
                different = np.flatnonzero(_bits(actual) != _bits(right))
                if len(different):
                    i = int(different[0])
                    values = (float(right[i]), float(actual[i]))
                    return np.array([rank, start + i, *values], np.float64)
        return np.array([-1, 0, 0, 0], np.float64)

    def explained(self, error: NDArray[np.float64]) -> RunError:
        """The error to raise for a `first_error`."""
        rank, element = int(error[0]), int(error[1])
        at = self.schedule.piece_offsets(self.elements)
        piece = int(np.searchsorted(at, element, side="right")) - 1
        topology = self.schedule.topology
        server = topology.node_name(int(topology.servers[rank]))
        return RunError(
            f"wrong result at {server} (rank {rank}), piece {piece}, element {element}: "
            f"expected {error[2]:.17g}, got {error[3]:.17g}; the schedule is valid, so the backend "
            "or the machine is at fault"
        )

    def _meaningful(self, rank: int) -> Iterator[tuple[int, int]]:
        """Start and end of each part of the buffer that is meaningful at a server at the end."""
        at = self.schedule.piece_offsets(self.elements).tolist()
        server = self.schedule.topology.servers[rank]
        for piece, root in enumerate(self.schedule.root):
            if self.schedule.collective != "reduce_scatter" or root == server:
                yield at[piece], at[piece + 1]

    def _expected(self) -> NDArray:
        """[N, elements] The expected results; only meaningful parts are compared."""
        servers, dtype = self.schedule.topology.num_servers, self.trial.numpy_dtype
        if self.kind == "oracle":
            contributions = np.stack([self.contribution(rank) for rank in range(servers)])
            return play(self.schedule, contributions, self.trial.reduction)
        if self.schedule.collective == "all_gather":
            whole = self._gathered()
        else:
            whole = expected(servers, self.elements, self.trial.reduction, dtype)
        return np.broadcast_to(whole, (servers, self.elements))

    def _gathered(self) -> NDArray:
        """[elements] Each piece as its root contributes it."""
        schedule = self.schedule
        at = schedule.piece_offsets(self.elements)
        roots = schedule.topology.rank[schedule.root]
        whole = np.empty(self.elements, self.trial.numpy_dtype)
        for rank in np.unique(roots).tolist():
            contribution = self.contribution(rank)
            for piece in np.flatnonzero(roots == rank):
                whole[at[piece] : at[piece + 1]] = contribution[at[piece] : at[piece + 1]]
        return whole


def sums_are_exact(schedule: Schedule, trial: Trial) -> bool:
    """Whether the type holds every sum of the pattern; integers wrap around the same everywhere."""
    largest = _LARGEST * schedule.topology.num_servers
    return trial.reduction in ("max", "min") or largest <= _HOLDS.get(trial.dtype, largest)


def _bits(numbers: NDArray) -> NDArray:
    """The numbers as unsigned integers with the same bits."""
    return np.ascontiguousarray(numbers).view(f"u{numbers.dtype.itemsize}")
