"""An asynchronous parameter server: `train` runs it on Ray (extra ``ray``), `simulate` without.

Parameters are divided over servers; workers pull them, compute a gradient and push it. How far
workers may get ahead of each other is one option: `Sync`, `SSP(bound)` or `Async`.
"""

from gradweave.aggregate.asynchronous.consistency import (
    SSP,
    Async,
    Consistency,
    Sync,
    from_spec,
    staleness_bound,
)
from gradweave.aggregate.asynchronous.history import History, Kept, Run, RunTraffic, UpdateReport
from gradweave.aggregate.asynchronous.simulate import Death, simulate
from gradweave.aggregate.asynchronous.stragglers import Stragglers
from gradweave.aggregate.asynchronous.task import Draw, Task
from gradweave.aggregate.asynchronous.train import train

Report, Traffic = UpdateReport, RunTraffic
"""Their earlier names."""

__all__ = [
    "SSP",
    "Async",
    "Consistency",
    "Death",
    "Draw",
    "History",
    "Kept",
    "Report",
    "Run",
    "RunTraffic",
    "Stragglers",
    "Sync",
    "Task",
    "Traffic",
    "UpdateReport",
    "from_spec",
    "simulate",
    "staleness_bound",
    "train",
]
