"""OR-Tools' CP-SAT solver, with Ctrl-C left to Python."""

from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from gradweave.common.stop import POLL_S, UNLIMITED, Stop

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


def solve(solver: "cp_model.CpSolver", model: "cp_model.CpModel", stop: Stop = UNLIMITED) -> Any:
    """Runs the solver on a model and returns its status; the stop or Ctrl-C ends it.

    By default the solver catches Ctrl-C, returns as if out of time, and leaves a process that later
    dies of Ctrl-C without cleaning up.
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
