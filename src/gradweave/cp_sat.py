"""OR-Tools' CP-SAT, which leaves Ctrl-C to Python."""

from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from gradweave.stop import POLL_S, UNLIMITED, Stop

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


def solve(solver: "cp_model.CpSolver", model: "cp_model.CpModel", stop: Stop = UNLIMITED) -> Any:
    """What the solver's search of a model came back with by the stop; Ctrl-C ends it.

    The solver would take Ctrl-C for itself, return as if out of time, and leave a process that
    later dies of Ctrl-C, with nothing cleaned up.
    """
    solver.parameters.catch_sigint_signal = False
    solver.parameters.max_time_in_seconds = stop.seconds_left
    with ThreadPoolExecutor(1) as pool:
        search = pool.submit(solver.solve, model)
        try:
            while not search.done():
                wait([search], POLL_S)
                if stop.flag[0]:
                    solver.stop_search()
            return search.result()
        except BaseException:
            solver.stop_search()
            raise
