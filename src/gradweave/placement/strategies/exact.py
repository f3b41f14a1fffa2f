"""The optimum in the exchange model, by search over sequences of groups or CP-SAT."""

import dataclasses
import itertools
import math
import sys
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gradweave.common import cp_sat
from gradweave.common.stop import Stop
from gradweave.errors import NoScheduleError, OptionError
from gradweave.placement.bound.duals import MAX_COMPOSITIONS, NS
from gradweave.placement.bound.sequences import SequenceSearch, alike, countable
from gradweave.placement.exchange import exchange_cost
from gradweave.placement.problem import Problem
from gradweave.placement.strategies.annealing import Annealing
from gradweave.placement.strategies.strategy import Placer, check_range

MAX_DEVICES = 16
"""Number of devices up to which constraint programming is tried: the model has S·N² pairs, and
proofs get hard soon after."""
RESTARTS, SHARE = 8, 0.2
"""Restarts of the initial annealing, and its share of the time: the cheaper its placement, the less
remains to search."""
UNIT_S = 1e-9
"""Smallest unit of time in the model."""
MAX_UNITS = 1 << 27
"""Longest time in units, over all devices together; slower networks use coarser units. With 2^36
and more, CP-SAT 9.15 reported feasible models as infeasible and others as optimal too early."""


@dataclasses.dataclass(frozen=True)
class ExactPlacer(Placer):
    """Ends with a proof that no placement costs less.

    If all boundaries carry equally many bytes and stages fit on every device, it searches all
    sequences of groups that cost less than annealing's result, to the nanosecond for each group and
    device (`gradweave.placement.bound.sequences.SequenceSearch`). This works for sixteen devices
    that all differ, or dozens in a few regions. Otherwise it uses CP-SAT over the device at each
    position, with times rounded to a 2^27th of the longest.
    """

    name: ClassVar[str] = "exact"

    workers: int = 1
    """Threads of CP-SAT; with several, another placement of the same cost may be returned."""

    def __post_init__(self) -> None:
        check_range(self, "workers", 1, 1024)

    def assign(self, problem: Problem, seed: int, stop: Stop) -> NDArray[np.int64]:
        """Devices of the stages; see `Placer.assign`."""
        classes, limit_s = alike(problem), stop.seconds_left
        as_much = len(np.unique(problem.activation_bytes)) < 2
        if as_much and problem.fits.all() and countable(problem, classes):
            found = _least(problem, classes, seed, stop)
        elif problem.devices <= MAX_DEVICES:
            found = self._programmed(problem, seed, stop)
        else:
            raise OptionError(
                f"exact: expected at most {MAX_DEVICES} devices, or activations of one size and "
                f"groups of at most {MAX_COMPOSITIONS:,} kinds, got {problem.devices} devices; "
                "annealing finds placements of any size, and states a bound"
            )
        if found is None:
            within = f" within {round(limit_s, 1):g} s" if math.isfinite(limit_s) else ""
            raise NoScheduleError(f"exact: no proof{within}; give more time, or take annealing")
        return found

    def _programmed(self, problem: Problem, seed: int, stop: Stop) -> NDArray[np.int64] | None:
        """The optimum by CP-SAT, or None if it ends without a proof."""
        from ortools.sat.python import cp_model

        model, at = _model(problem)
        solver = cp_model.CpSolver()
        solver.parameters.random_seed = seed
        solver.parameters.num_workers = self.workers
        if cp_sat.solve(solver, model, stop) != cp_model.OPTIMAL:
            return None
        return np.array([np.argmax([solver.value(one) for one in row]) for row in at])


def _least(
    problem: Problem, classes: NDArray[np.int64], seed: int, stop: Stop
) -> NDArray[np.int64] | None:
    """The optimum over sequences of groups, or None if time or memory does not suffice."""
    begun = Annealing(restarts=RESTARTS).assign(problem, seed, stop.part(SHARE))
    cost = exchange_cost(problem, begun)
    # Each term of the sum is rounded down.
    goal = int(cost.seconds * NS) - problem.stages - problem.data - 2
    found = SequenceSearch(problem, classes).least(goal, sys.maxsize, stop)
    if found is None:
        return None
    return begun if found.devices is None else exchange_cost(problem, found.devices).devices


def _model(problem: Problem) -> tuple[Any, list[list[Any]]]:
    """The model, and variables [S·D][N] for the device at each position."""
    from ortools.sat.python import cp_model

    model: Any = cp_model.CpModel()
    stages, data, devices = problem.stages, problem.data, problem.devices
    fits = problem.fits
    at = [
        [
            model.new_bool_var("") if fits[position // data, device] else model.new_constant(0)
            for device in range(devices)
        ]
        for position in range(stages * data)
    ]
    for row in at:
        model.add_exactly_one(row)
    for device in range(devices):
        model.add_at_most_one(row[device] for row in at)
    boundary, exchange = _in_units(problem)
    data_s = _data_parallel(model, at, problem, exchange)
    edges = _boundaries(model, at, problem, boundary)
    # Break symmetries. Pipelines are interchangeable: the first stage's devices ascend. So are the
    # two directions of the path: the first device of both ends is in the first stage.
    for p in range(data - 1):
        model.add(_rank(at[p]) < _rank(at[p + 1]))
    if problem.alike and stages > 1:
        for p in range(data):
            model.add(_rank(at[0]) < _rank(at[(stages - 1) * data + p]))
    model.minimize(data_s + sum(edges))
    return model, at


def _rank(row: list[Any]) -> Any:
    return sum(device * one for device, one in enumerate(row))


def _in_units(problem: Problem) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[S−1, N, N] times of boundaries and [S, N, N] of exchanges, in units."""
    pairs = problem.pairs
    delay, per_byte = pairs.there_and_back_s, pairs.there_and_back_s_per_byte
    boundary = delay + problem.activation_bytes[:, None, None] * per_byte
    exchange = delay + problem.part_bytes[:, None, None] * per_byte
    longest = max(float(boundary.max(initial=0.0)), float(exchange.max())) * problem.devices
    unit = max(UNIT_S, longest / MAX_UNITS)
    return np.rint(boundary / unit).astype(np.int64), np.rint(exchange / unit).astype(np.int64)


def _data_parallel(
    model: Any, at: list[list[Any]], problem: Problem, exchange: NDArray[np.int64]
) -> Any:
    """The longest exchange: at least that of each device in each group that it may be in."""
    data = problem.data
    longest = model.new_int_var(0, int(exchange.sum(axis=2).max()), "")
    for stage in range(problem.stages):
        member = []
        for device in range(problem.devices):
            here = model.new_bool_var("")
            rows = at[stage * data : (stage + 1) * data]
            model.add(sum(row[device] for row in rows) == here)
            member.append(here)
        for device in range(problem.devices):
            cost = sum(int(exchange[stage, device, e]) * one for e, one in enumerate(member))
            model.add(longest >= cost).only_enforce_if(member[device])
    return longest


def _boundaries(
    model: Any, at: list[list[Any]], problem: Problem, boundary: NDArray[np.int64]
) -> list[Any]:
    """Each boundary's time: at least that of each of its pipelines."""
    data, edges = problem.data, []
    for stage in range(problem.stages - 1):
        edge = model.new_int_var(0, int(boundary[stage].max()), "")
        for p in range(data):
            here, there = at[stage * data + p], at[(stage + 1) * data + p]
            for one, other in itertools.permutations(range(problem.devices), 2):
                both = model.add(edge >= int(boundary[stage, one, other]))
                both.only_enforce_if([here[one], there[other]])
        edges.append(edge)
    return edges
