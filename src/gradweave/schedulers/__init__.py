"""Topology in, verified schedule out; one strategy a file."""

from gradweave.schedulers.grown import Grown
from gradweave.schedulers.merged import Merged
from gradweave.schedulers.parameter_server import CentralParameterServer, ParameterServer
from gradweave.schedulers.portfolio import Portfolio
from gradweave.schedulers.ring import Ring
from gradweave.schedulers.scheduler import Scheduler
from gradweave.schedulers.solve import DEFAULT, Attempt, Solution, solve
from gradweave.schedulers.spec import STRATEGIES, from_spec, to_spec
from gradweave.schedulers.symmetric import Symmetric

__all__ = [
    "DEFAULT",
    "STRATEGIES",
    "Attempt",
    "CentralParameterServer",
    "Grown",
    "Merged",
    "ParameterServer",
    "Portfolio",
    "Ring",
    "Scheduler",
    "Solution",
    "Symmetric",
    "from_spec",
    "solve",
    "to_spec",
]
