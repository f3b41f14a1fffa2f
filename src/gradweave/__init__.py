"""Gradweave: AllReduce schedules for any network, found, proved and shown.

>>> import gradweave as gw
>>> net = gw.topology.bcube(n=4, k=1)
>>> solution = gw.solve(net)
>>> solution.bound.rounds, solution.schedule.collective
(16, 'all_reduce')
"""

from typing import TYPE_CHECKING

from gradweave import errors, schedule, topology, verify
from gradweave.lazy import lazily
from gradweave.schedule import Schedule
from gradweave.topology import Topology

if TYPE_CHECKING:  # and when first used: they take an extra or a moment to import
    from gradweave import (
        aggregate,
        bounds,
        environment,
        execute,
        export,
        lab,
        learning,
        library,
        marl,
        ordering,
        placement,
        report,
        saddle,
        schedulers,
        simulate,
    )
    from gradweave.ordering import order
    from gradweave.report.notebook import show
    from gradweave.schedulers import Solution, solve
    from gradweave.verify.calling import verify

__version__ = "0.1.0"

__all__ = [
    "Schedule",
    "Solution",
    "Topology",
    "__version__",
    "aggregate",
    "bounds",
    "environment",
    "errors",
    "execute",
    "export",
    "lab",
    "learning",
    "library",
    "marl",
    "order",
    "ordering",
    "placement",
    "report",
    "saddle",
    "schedule",
    "schedulers",
    "show",
    "simulate",
    "solve",
    "topology",
    "verify",
]

__getattr__, __dir__ = lazily(__name__)
