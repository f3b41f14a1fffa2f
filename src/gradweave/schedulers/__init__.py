"""Topology in, verified schedule out; one strategy a file."""

from gradweave.schedulers import spread
from gradweave.schedulers.binomial import Binomial
from gradweave.schedulers.exact import Exact
from gradweave.schedulers.exact_proof import Proof
from gradweave.schedulers.grown import Grown
from gradweave.schedulers.halving_doubling import HalvingDoubling, RecursiveDoubling
from gradweave.schedulers.learned import Learned
from gradweave.schedulers.merged import Merged
from gradweave.schedulers.parameter_server import CentralParameterServer, ParameterServer
from gradweave.schedulers.portfolio import Portfolio
from gradweave.schedulers.repair import Repair
from gradweave.schedulers.ring import Ring
from gradweave.schedulers.scheduler import Scheduler
from gradweave.schedulers.seconds_bound import SecondsBound, Timing
from gradweave.schedulers.solve import DEFAULT, OBJECTIVES, Attempt, Objective, Solution, solve
from gradweave.schedulers.spec import STRATEGIES, from_spec, to_spec
from gradweave.schedulers.symmetric import Symmetric

__all__ = [
    "DEFAULT",
    "OBJECTIVES",
    "STRATEGIES",
    "Attempt",
    "Binomial",
    "CentralParameterServer",
    "Exact",
    "Grown",
    "HalvingDoubling",
    "Learned",
    "Merged",
    "Objective",
    "ParameterServer",
    "Portfolio",
    "Proof",
    "RecursiveDoubling",
    "Repair",
    "Ring",
    "Scheduler",
    "SecondsBound",
    "Solution",
    "Symmetric",
    "Timing",
    "from_spec",
    "solve",
    "spread",
    "to_spec",
]
