"""Gradweave: AllReduce schedules for any network, found, proved and shown.

>>> import gradweave as gw
>>> net = gw.topology.bcube(n=4, k=1)
>>> solution = gw.solve(net)
>>> solution.bound.rounds, solution.schedule.collective
(16, 'all_reduce')
"""

from gradweave import (
    aggregate,
    bounds,
    errors,
    execute,
    export,
    schedule,
    schedulers,
    simulate,
    topology,
    verify,
)
from gradweave.schedule import Schedule
from gradweave.schedulers import Solution, solve
from gradweave.topology import Topology

__version__ = "0.1.0"

__all__ = [
    "Schedule",
    "Solution",
    "Topology",
    "__version__",
    "aggregate",
    "bounds",
    "errors",
    "execute",
    "export",
    "schedule",
    "schedulers",
    "simulate",
    "solve",
    "topology",
    "verify",
]
