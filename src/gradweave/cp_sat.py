"""OR-Tools' CP-SAT, which leaves Ctrl-C to Python."""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


def solve(solver: "cp_model.CpSolver", model: "cp_model.CpModel") -> Any:
    """What the solver's search of a model came back with; Ctrl-C ends it.

    The solver would take Ctrl-C for itself, return as if out of time, and leave a process that
    later dies of Ctrl-C, with nothing cleaned up.
    """
    solver.parameters.catch_sigint_signal = False
    with ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(solver.solve, model).result()
        except BaseException:
            solver.stop_search()
            raise
