"""Gradweave: AllReduce schedules for any network, found, proved and shown.

>>> import gradweave as gw
>>> net = gw.topology.bcube(n=4, k=1)
>>> solution = gw.solve(net)
>>> solution.bound.rounds, solution.schedule.collective
(16, 'all_reduce')
"""

from typing import TYPE_CHECKING

from gradweave import errors, schedules, topology, verifier
from gradweave.common.lazy import lazily
from gradweave.schedules import Schedule
from gradweave.schedules.file import load
from gradweave.topology import Topology
from gradweave.verifier import verify

if TYPE_CHECKING:  # and when first used: they take an extra or a moment to import
    from gradweave import (
        aggregate,
        bounds,
        environment,
        execute,
        export,
        jax,
        lab,
        learning,
        library,
        marl,
        mpi,
        placement,
        ranks,
        report,
        saddle,
        schedulers,
        simulator,
        torch,
    )
    from gradweave.report.bound import bound
    from gradweave.report.notebook import show
    from gradweave.schedulers import Solution, solve
    from gradweave.simulator import simulate

__version__ = "0.1.0"

__all__ = [
    "Schedule",
    "Solution",
    "Topology",
    "__version__",
    "aggregate",
    "bound",
    "bounds",
    "environment",
    "errors",
    "execute",
    "export",
    "jax",
    "lab",
    "learning",
    "library",
    "load",
    "marl",
    "mpi",
    "placement",
    "ranks",
    "report",
    "saddle",
    "schedulers",
    "schedules",
    "show",
    "simulate",
    "simulator",
    "solve",
    "topology",
    "torch",
    "verifier",
    "verify",
]

__getattr__, __dir__ = lazily(__name__)
