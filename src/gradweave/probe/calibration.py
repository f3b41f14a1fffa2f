"""A runtime, calibrated: its profile from the times of some schedules on it."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gradweave.atomic import atomic_write
from gradweave.execute.running.trial import NATIVE, RUNTIMES, CalibrationTime, RunReport
from gradweave.schedule.schedule import Schedule
from gradweave.schedulers.solve.own import own_algorithms, own_schedule
from gradweave.schedulers.solve.variants import split
from gradweave.schedulers.textbook.binomial import Binomial
from gradweave.schedulers.textbook.halving_doubling import RecursiveDoubling
from gradweave.schedulers.textbook.ring import Ring
from gradweave.simulate.runtime import Costs, Own, Runtime
from gradweave.topology.topology import Topology

_PARTS = 4
"""Of the finer ring: messages are told from the start by more and fewer of them."""


def calibrating(topology: Topology) -> tuple[Schedule, ...]:
    """Schedules with few and with many messages, in a row and side by side."""
    ring = Ring().schedule(topology)
    doubling = RecursiveDoubling().schedule(topology)
    return ring, split(ring, _PARTS), Binomial().schedule(topology), doubling


def calibrated(
    backend: str, topology: Topology, report: RunReport, *, one_machine: bool
) -> Runtime:
    """The profile with which a calibration's times are predicted best.

    Args:
        backend: of the run: ``torch``, ``mpi`` or ``jax``.
        topology: the network.
        report: of the run, with its calibration.
        one_machine: whether all servers share this machine's cores.
    """
    servers, cores = topology.num_servers, os.cpu_count() or 1
    processors = float(cores) if one_machine else None
    where = f"{cores} cores of one machine" if one_machine else "machines of a launcher"
    source = f"measured by gradweave run: {servers} servers on {where}, {report.library}"
    name, schedules = RUNTIMES[backend], calibrating(topology)
    empty = Runtime(name, source, processors, barriers=backend == "jax")
    timed = [each for each in report.calibration if each.schedule != NATIVE]
    native = [each for each in report.calibration if each.schedule == NATIVE]
    own = Own(algorithms=own_algorithms(name, servers))
    return Runtime(
        name,
        source,
        processors,
        barriers=empty.barriers,
        executor=_fitted(empty, schedules, timed),
        own=_own(empty, topology, own, native),
    )


def _fitted(
    runtime: Runtime, schedules: Sequence[Schedule], times: Sequence[CalibrationTime]
) -> Costs:
    """The costs of messages and of the start with the least sum of relative errors.

    Times are taken for those of processors, which all messages together need; where paths take
    longer, as of few messages in a row, the start has the rest.
    """
    from ortools.math_opt.python import mathopt

    sizes = sorted({each.gradient_bytes / schedules[each.schedule].pieces for each in times})
    model = mathopt.Model()
    start = model.add_variable(lb=0.0)
    steps = [model.add_variable(lb=0.0) for _ in sizes]
    errors = []
    for each in times:
        schedule = schedules[each.schedule]
        upto = sizes.index(each.gradient_bytes / schedule.pieces) + 1
        message = _shared(runtime, schedule) / each.seconds
        begin = runtime.each(schedule.topology.num_servers, 1.0) / each.seconds
        predicted = begin * start + message * mathopt.LinearSum(steps[:upto])
        error = model.add_variable(lb=0.0)
        model.add_linear_constraint(predicted - error <= 1.0)
        model.add_linear_constraint(predicted + error >= 1.0)
        errors.append(error)
    model.minimize(mathopt.LinearSum(errors))
    found = mathopt.solve(model, mathopt.SolverType.GLOP).variable_values()
    seconds = np.cumsum([max(found[step], 0.0) for step in steps])
    return Costs(tuple(sizes), tuple(seconds.tolist()), max(found[start], 0.0))


def _own(runtime: Runtime, topology: Topology, own: Own, times: Sequence[CalibrationTime]) -> Own:
    """The runtime's own all-reduce: each time divided among the messages of its algorithm."""
    costs: dict[float, list[float]] = {}
    for each in times:
        schedule = own_schedule(topology, own, each.gradient_bytes)
        if schedule is not None:
            size = each.gradient_bytes / schedule.pieces
            costs.setdefault(size, []).append(each.seconds / _shared(runtime, schedule))
    if not costs:
        return Own()
    sizes = sorted(costs)
    measured = np.array([float(np.median(costs[size])) for size in sizes])
    below, above = np.maximum.accumulate(measured), np.minimum.accumulate(measured[::-1])[::-1]
    seconds = (below + above) / 2  # larger messages cost no less, whatever noise says
    return Own(tuple(sizes), tuple(seconds.tolist()), algorithms=own.algorithms)


def _shared(runtime: Runtime, schedule: Schedule) -> float:
    """Seconds that processors need for messages of one second each, all of them equal."""
    work = runtime.work_s(schedule, np.ones(schedule.pieces))
    return float(work)


def write(runtime: Runtime, path: Path) -> None:
    """Writes a profile as TOML, whole or not at all."""
    atomic_write(path, as_toml(runtime).encode())


def as_toml(runtime: Runtime) -> str:
    """The text of a profile's file, as `gradweave.simulate.runtime.runtime_of` reads it."""
    lines = [f"name = {_quoted(runtime.name)}", f"source = {_quoted(runtime.source)}"]
    if runtime.processors is not None:
        lines.append(f"processors = {runtime.processors:g}")
    lines.append(f"at_once = {runtime.at_once}")
    if runtime.barriers:
        lines += ["barriers = true", f"round_s = {runtime.round_s:.4g}"]
    for table, costs in (("executor", runtime.executor), ("own", runtime.own)):
        lines += ["", f"[{table}]", f"start_s = {costs.start_s:.4g}"]
        lines += [f"bytes = {_numbers(costs.bytes)}", f"seconds = {_numbers(costs.seconds)}"]
    for one in runtime.own.algorithms:
        lines += ["", "[[own.algorithms]]", f"scheduler = {_quoted(one.scheduler)}"]
        lines += [f"parts = {one.parts}"]
        if np.isfinite(one.below_bytes):
            lines.append(f"below_bytes = {one.below_bytes:g}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _numbers(values: Sequence[float] | NDArray[np.float64]) -> str:
    return "[" + ", ".join(f"{value:.4g}" for value in values) + "]"
