"""Calibrates a runtime: derives its profile from the times of some schedules on it."""

import dataclasses
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gradweave.common.atomic import atomic_write
from gradweave.common.wording import counted, listed
from gradweave.errors import OptionError
from gradweave.execute.running.trial import NATIVE, RUNTIMES, CalibrationTime, RunReport
from gradweave.probe.nccl_tests import Measurement
from gradweave.schedulers.solving.own import own_algorithms, own_schedule
from gradweave.schedulers.solving.variants import split
from gradweave.schedulers.textbook.binomial import Binomial
from gradweave.schedulers.textbook.halving_doubling import RecursiveDoubling
from gradweave.schedulers.textbook.ring import Ring
from gradweave.schedules.schedule import Collective, Schedule
from gradweave.simulator.runtime import Algorithm, Costs, Runtime
from gradweave.simulator.seconds import event_seconds
from gradweave.simulator.sequential_steps import steps
from gradweave.topology.topology import Topology

_PARTS = 4
"""Parts of the finer ring: different numbers of messages separate their cost from the start's."""
_TREE_PARTS = 16
"""Parts of the finer tree, whose messages are then as small as a tree's with any gradient."""
_FITS = 5
"""Linear programs, after which the larger terms no longer change: two or three were enough."""


_LOOK_S = 0.5
"""Seconds for which the processors are observed before a calibration."""
BUSY_CORES = 0.2
"""Busy cores from which a user is warned; chosen by hand: an idle machine keeps fewer busy."""


def cores_in_use(counts: Path = Path("/proc/stat")) -> float | None:
    """The number of this machine's cores that other processes keep busy, or None if unknown.

    Args:
        counts: the kernel's file with the ticks that processors spent in each state.
    """
    try:
        before = _ticks(counts)
        time.sleep(_LOOK_S)
        spent = _ticks(counts) - before
    except (OSError, ValueError):
        return None
    busy = 1 - spent[_IDLE].sum() / max(spent.sum(), 1)
    return float(busy * (os.cpu_count() or 1))


_IDLE = [3, 4]  # idle, and idle while waiting for a disk


def _ticks(counts: Path) -> NDArray[np.int64]:
    """[8] ticks of all processors: user, nice, system, idle, iowait, irq, softirq, steal."""
    name, *ticks = counts.read_text().split("\n", 1)[0].split()
    if name != "cpu" or len(ticks) < 8:
        raise ValueError(f"{counts}: expected a line of all processors")
    return np.array(ticks[:8], np.int64)


def calibrating(topology: Topology) -> tuple[Schedule, ...]:
    """Schedules with few and with many messages, in sequence and side by side."""
    ring = Ring().schedule(topology)
    doubling = RecursiveDoubling().schedule(topology)
    tree = Binomial().schedule(topology)
    return ring, split(ring, _PARTS), tree, split(tree, _TREE_PARTS), doubling


def calibrated(
    backend: str, topology: Topology, report: RunReport, *, one_machine: bool
) -> Runtime:
    """The profile that predicts a calibration's times best.

    Args:
        backend: backend of the run: ``torch``, ``mpi`` or ``jax``.
        topology: the network.
        report: report of the run, with its calibration.
        one_machine: whether all servers share this machine's cores.
    """
    servers, cores = topology.num_servers, os.cpu_count() or 1
    processors = float(cores) if one_machine else None
    where = f"{counted(cores, 'core')} of one machine" if one_machine else "machines of a launcher"
    source = f"measured by gradweave bench: {servers} servers on {where}, {report.library}"
    name = RUNTIMES[backend]
    without_costs = Runtime(
        name, source, processors, barriers=name == "jax", own=own_algorithms(name, servers)
    )
    return _with_costs(without_costs, topology, calibrating(topology), report.calibration)


_RINGS: tuple[Collective, ...] = ("all_reduce", "all_gather", "reduce_scatter")
"""Collectives that NCCL runs along a ring, with different numbers of messages."""


def calibrated_by_nccl_tests(topology: Topology, measured: Sequence[Measurement]) -> Runtime:
    """The profile of NCCL that predicts the times of nccl-tests best.

    A message costs what a step of a ring takes, links included, so that schedules are predicted to
    use a server's links together no better than NCCL's rings do. Times of small sizes, for which
    NCCL may use trees, count as rings too. An all-gather or a reduce-scatter next to the
    all-reduce separates a message's cost from the start's; without one, the start costs nothing.

    Args:
        topology: the network, whose servers are the ranks.
        measured: the times; those of `_RINGS` count.

    Raises:
        OptionError: no all-reduce among the network's servers was measured.
    """
    servers = topology.num_servers
    fitting = [one for one in measured if one.collective in _RINGS and one.ranks == servers]
    kinds: list[Collective] = [
        kind for kind in _RINGS if any(one.collective == kind for one in fitting)
    ]
    if "all_reduce" not in kinds:
        raise OptionError(
            f"write-runtime: expected an all_reduce among {servers} ranks, the servers of "
            f"{topology.name!r:.60}, got none"
        )
    places = {str(kind): place for place, kind in enumerate(kinds)}
    times = []
    for one in fitting:
        for point in one.points:
            times.append(CalibrationTime(places[one.collective], point.bytes, point.seconds))
            if one.collective == "all_reduce":
                times.append(CalibrationTime(NATIVE, point.bytes, point.seconds))
    first = fitting[0]
    on = ", ".join(text for text in (first.device, first.library) if text)
    source = f"fitted to nccl-tests: {listed(kinds)} of {servers} ranks{f', {on}' * bool(on)}"
    without_costs = Runtime("nccl", source, own=own_algorithms("nccl", servers))
    rings = [Ring().schedule(topology, collective=kind) for kind in kinds]
    found = _with_costs(without_costs, topology, rings, times)
    smallest = min(each.gradient_bytes for each in times if each.schedule == NATIVE)
    linked_s = float(event_seconds(rings[0], smallest)[1].max()) / steps(rings[0])
    own = tuple(_from_empty(one, linked_s) for one in found.own)
    return dataclasses.replace(found, executor=_from_empty(found.executor, linked_s), own=own)


_Costs = TypeVar("_Costs", bound=Costs)


def _from_empty(costs: _Costs, linked_s: float) -> _Costs:
    """The costs with those of an empty message, which are without the links' time.

    Args:
        costs: with the links' time, which a simulation counts once more per message in sequence.
        linked_s: the links' time for the smallest message.
    """
    rest = max(costs.seconds[0] - linked_s, 0.0), *costs.seconds
    return dataclasses.replace(costs, bytes=(0.0, *costs.bytes), seconds=rest)


def _with_costs(
    runtime: Runtime,
    topology: Topology,
    schedules: Sequence[Schedule],
    times: Sequence[CalibrationTime],
) -> Runtime:
    """The runtime with costs fitted to the times of schedules and of the runtime's all-reduce."""
    timed = [each for each in times if each.schedule != NATIVE]
    native = [each for each in times if each.schedule == NATIVE]
    return dataclasses.replace(
        runtime,
        executor=_fitted(runtime, schedules, timed),
        own=tuple(_own(runtime, one, topology, native) for one in runtime.own),
    )


def _fitted(
    runtime: Runtime, schedules: Sequence[Schedule], times: Sequence[CalibrationTime]
) -> Costs:
    """The costs of messages and of the start with the minimum sum of relative errors.

    A predicted time is the larger of two terms: the work of the processors, which all messages
    share, and the chain of consecutive messages. The costs found in the previous iteration decide
    which term is larger; in the first iteration, the work is assumed to be.
    """
    sizes = sorted({each.gradient_bytes / schedules[each.schedule].pieces for each in times})
    costs = Costs()
    for _ in range(_FITS):
        costs = _fitted_once(runtime, schedules, times, tuple(sizes), costs)
    return costs


def _fitted_once(
    runtime: Runtime,
    schedules: Sequence[Schedule],
    times: Sequence[CalibrationTime],
    sizes: tuple[float, ...],
    before: Costs,
) -> Costs:
    """Costs from a linear program, in which the previous costs decide which term is larger."""
    from ortools.math_opt.python import mathopt

    model = mathopt.Model()
    separable = len(schedules) > 1  # one schedule alone cannot separate the start from messages
    start = model.add_variable(lb=0.0, ub=math.inf if separable else 0.0)
    rises = [model.add_variable(lb=0.0) for _ in sizes]
    errors = []
    for each in times:
        schedule = schedules[each.schedule]
        size = each.gradient_bytes / schedule.pieces
        work, chain = _work_of_units(runtime, schedule), steps(schedule)
        work_s = work * float(before.of(np.array([size]))[0])
        of_chain = chain * before.message_s > work_s
        upto, times_it = (1, chain) if of_chain else (sizes.index(size) + 1, work)
        begin = runtime.time_for_all(schedule.topology.num_servers, 1.0) / each.seconds
        predicted = begin * start + times_it / each.seconds * mathopt.LinearSum(rises[:upto])
        error = model.add_variable(lb=0.0)
        model.add_linear_constraint(predicted - error <= 1.0)
        model.add_linear_constraint(predicted + error >= 1.0)
        errors.append(error)
    model.minimize(mathopt.LinearSum(errors))
    found = mathopt.solve(model, mathopt.SolverType.GLOP).variable_values()
    seconds = np.cumsum([max(found[rise], 0.0) for rise in rises])
    return Costs(sizes, tuple(seconds.tolist()), max(found[start], 0.0))


def _own(
    runtime: Runtime, algorithm: Algorithm, topology: Topology, times: Sequence[CalibrationTime]
) -> Algorithm:
    """A runtime's algorithm with its costs: each time is divided among its messages."""
    costs: dict[float, list[float]] = {}
    for each in times:
        schedule = own_schedule(topology, runtime, each.gradient_bytes)
        if schedule is not None and runtime.algorithm(each.gradient_bytes) is algorithm:
            size = each.gradient_bytes / schedule.pieces
            costs.setdefault(size, []).append(each.seconds / _work_of_units(runtime, schedule))
    if not costs:
        return algorithm
    sizes = sorted(costs)
    measured = np.array([float(np.median(costs[size])) for size in sizes])
    below, above = np.maximum.accumulate(measured), np.minimum.accumulate(measured[::-1])[::-1]
    seconds = (below + above) / 2  # larger messages cannot cost less; the rest is noise
    return dataclasses.replace(algorithm, bytes=tuple(sizes), seconds=tuple(seconds.tolist()))


def _work_of_units(runtime: Runtime, schedule: Schedule) -> float:
    """Seconds of processor time needed if each message takes one second of it."""
    return runtime.work_s(schedule, np.ones(schedule.pieces))


def write(runtime: Runtime, path: Path) -> None:
    """Writes a profile as TOML, atomically."""
    atomic_write(path, as_toml(runtime).encode())


def as_toml(runtime: Runtime) -> str:
    """The text of a profile's file, which `gradweave.simulator.runtime.runtime_of` reads."""
    lines = [f"name = {_quoted(runtime.name)}", f"source = {_quoted(runtime.source)}"]
    if runtime.processors is not None:
        lines.append(f"processors = {runtime.processors:g}")
    lines.append(f"at_once = {runtime.at_once}")
    if runtime.barriers:
        lines += ["barriers = true", f"round_s = {runtime.round_s:.4g}"]
    lines += ["", "[executor]", *_costs_lines(runtime.executor)]
    for one in runtime.own:
        lines += ["", "[[own]]", f"scheduler = {_quoted(one.scheduler)}", f"parts = {one.parts}"]
        if np.isfinite(one.below_bytes):
            lines.append(f"below_bytes = {one.below_bytes:g}")
        lines += _costs_lines(one)
    return "\n".join(lines) + "\n"


def _costs_lines(costs: Costs) -> list[str]:
    numbers = f"bytes = {_numbers(costs.bytes)}", f"seconds = {_numbers(costs.seconds)}"
    return [f"start_s = {costs.start_s:.4g}", *numbers]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _numbers(values: Sequence[float] | NDArray[np.float64]) -> str:
    return "[" + ", ".join(f"{value:.6g}" for value in values) + "]"
