"""A whole run: iterations, a curve, checkpoints with exact resumption, and the result."""

import contextlib
import dataclasses
import warnings
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from gradweave.aggregate.replicas import consensus
from gradweave.aggregate.rules import Strictness
from gradweave.aggregate.validity import ValidityWarning, enforce
from gradweave.errors import OptionError
from gradweave.execute.jax_mesh.buffers import PyTree
from gradweave.processes.agreement import Processes
from gradweave.saddle.problems import residual
from gradweave.saddle.solver import Solver, SolverState
from gradweave.saddle.validity import Validity, check_solver
from gradweave.training.checkpoint import Format, check_same, differences
from gradweave.training.held import held, lock_of
from gradweave.training.loop import Progress, Training
from gradweave.training.pace import Pace

FORMAT = Format("gradweave-saddle")
POINTS = 100
"""Default number of points of a curve."""

Measure = Callable[[SolverState], jax.Array]
"""State of all workers → [], compiled."""


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """The result of a run."""

    z: PyTree
    """Mean of z over workers."""
    average: PyTree
    """Mean over workers and iterations of the points at which operators were evaluated. For
    problems that are monotone but not strongly so, theory is about this mean."""
    curve: NDArray[np.floating]
    """[points] the measure after every `every` iterations."""
    every: int
    iterations: int
    sent_bytes: NDArray[np.int64]
    """[N] bytes that each worker sent."""
    not_finite: NDArray[np.int32]
    """[N] number of iterations that a worker skipped because its operator was not finite."""
    validity: Validity | None
    """The result of the check before the run, or None if there was no check."""
    state: SolverState
    """State of all workers at the end."""


class _Run(NamedTuple):
    """The content of a checkpoint."""

    state: SolverState
    curve: jax.Array
    """[points], NaN where the run has not arrived yet."""


def find_saddle_point(
    solver: Solver,
    iterations: int,
    *,
    seed: int = 0,
    every: int | None = None,
    measure: Measure | None = None,
    checkpoint: Path | None = None,
    checkpoint_minutes: float = 5.0,
    strictness: Strictness = "warn",
    report: Callable[[int, float], None] | None = None,
) -> Solution:
    """Runs a solver from the start, or from a checkpoint of the same run.

    A run that was killed and resumed gives the same bits as an uninterrupted run.

    Args:
        solver: problem, method and network.
        iterations: total number of iterations; a multiple of `every`.
        seed: seed of all random numbers.
        every: iterations per point of the curve; by default a divisor that gives about 100 points.
        measure: function of the state; by default the squared distance between the workers' mean
            and the solution, or, if the solution is not known, the squared norm of the mean
            operator there.
        checkpoint: file in which the run is saved, also on Ctrl-C.
        checkpoint_minutes: minutes between checkpoints.
        strictness: how to handle doubts of `saddle.check_solver`; ``"ignore"`` skips the check.
        report: called with the number of iterations and the measure.

    Raises:
        OptionError: an argument is out of its range; the choice cannot work; or it is doubtful, and
            strictness is ``"refuse"``.
        FileError: the checkpoint cannot be read, belongs to another run, or is being written by
            another run.
        KeyboardInterrupt: the user pressed Ctrl-C; the checkpoint has been written.
    """
    every = _distance(iterations) if every is None else every
    if iterations < 1 or every < 1 or iterations % every:
        raise OptionError(
            f"iterations: expected a multiple of every, {every}, above 0, got {iterations}"
        )
    validity = None if strictness == "ignore" else check_solver(solver, seed=seed)
    if validity is not None:
        enforce(validity, strictness)
    measured = jax.jit(measure or partial(_measure, solver))
    first = _Run(solver.init(jax.random.key(seed)), jnp.full(iterations // every, jnp.nan))
    metadata = _description(solver, iterations, every, seed)

    def advance(now: Progress[_Run], _: int) -> tuple[_Run, float]:
        state = solver.run(now.state.state, every)
        value = measured(state)
        curve = now.state.curve.at[now.updates].set(value)
        return _Run(state, curve), float(value)

    with contextlib.nullcontext() if checkpoint is None else held(lock_of(checkpoint)):
        progress = _read(checkpoint, metadata, first, every)
        training = Training(progress, partial(_write, checkpoint, metadata), Processes())
        training.run(
            iterations // every,
            advance,
            lambda now, value: report(now.updates * every, value) if report else None,
            log=contextlib.nullcontext(),
            pace=Pace(),
            checkpoint_minutes=checkpoint_minutes,
        )
    return _solution(solver, training.progress.state, every, iterations, validity)


def _distance(iterations: int) -> int:
    """The default distance between a curve's points: a divisor that gives at least `POINTS`."""
    most = max(1, iterations // POINTS)
    return next((each for each in range(most, 1, -1) if iterations % each == 0), 1)


def _measure(solver: Solver, state: SolverState) -> jax.Array:
    mean = consensus(state.z)
    if solver.problem.solution is None:
        return residual(solver.problem, mean)
    return solver.problem.squared_distance(mean)


def _solution(
    solver: Solver, run: _Run, every: int, iterations: int, validity: Validity | None
) -> Solution:
    not_finite = np.asarray(run.state.not_finite)
    for worker in np.flatnonzero(not_finite).tolist():
        warnings.warn(
            f"worker {worker}: its operator was not finite in {not_finite[worker]} of {iterations} "
            "iterations, which it skipped",
            ValidityWarning,
            stacklevel=3,
        )
    return Solution(
        consensus(run.state.z),
        consensus(run.state.average),
        np.asarray(run.curve),
        every,
        iterations,
        solver.sent_bytes(iterations),
        not_finite,
        validity,
        run.state,
    )


def _description(solver: Solver, iterations: int, every: int, seed: int) -> dict[str, Any]:
    """The metadata that identify a run; the problem is represented only by its name."""
    rate = solver.method.rate
    method = solver.method
    if callable(rate):  # represented by a few of its values
        steps = (0, iterations // 3, iterations)
        values = [float(jnp.asarray(rate(jnp.asarray(step, jnp.int32)))) for step in steps]
        method = f"{dataclasses.replace(method, rate=1.0)} times {values}"
    return {
        "problem": solver.problem.name,
        "method": str(method),
        "mixing": f"{solver.mixing.name}, {zlib.crc32(solver.mixing.weights.tobytes()):08x}",
        "rule": str(solver.rule),
        "compressor": str(solver.compressor),
        "local_steps": solver.local_steps,
        "iterations": iterations,
        "every": every,
        "seed": seed,
    }


def _write(path: Path | None, metadata: dict[str, Any], now: Progress[_Run]) -> None:
    if path is not None:
        FORMAT.save(path, now.state, metadata)


def _read(path: Path | None, metadata: dict[str, Any], like: _Run, every: int) -> Progress[_Run]:
    """The checkpoint of the same run, or the start if there is none.

    Raises:
        FileError: it cannot be read.
        OptionError: it belongs to another run; the message names the differences.
    """
    if path is None or not path.exists():
        return Progress(like, 0)
    check_same(path, differences(FORMAT.about(path), metadata), "file")
    run = jax.tree.map(jnp.asarray, FORMAT.load(path, like))
    return Progress(run, int(run.state.step) // every)
