"""An asynchronous parameter server.

`train_on_ray` runs it on Ray (extra ``ray``), `simulate_training` on a virtual clock.

Parameters are divided among servers; workers pull them, compute a gradient and push it. One option
controls how far workers may get ahead of each other: `Sync`, `SSP(bound)` or `Async`.
"""

from gradweave.aggregate.asynchronous.consistency import (
    SSP,
    Async,
    Consistency,
    Sync,
    staleness_bound,
)
from gradweave.aggregate.asynchronous.history import History, Kept, Run, UpdateReport
from gradweave.aggregate.asynchronous.simulate import Death, simulate_training
from gradweave.aggregate.asynchronous.stragglers import Stragglers
from gradweave.aggregate.asynchronous.task import Draw, Task
from gradweave.aggregate.asynchronous.train import train_on_ray

__all__ = [
    "SSP",
    "Async",
    "Consistency",
    "Death",
    "Draw",
    "History",
    "Kept",
    "Run",
    "Stragglers",
    "Sync",
    "Task",
    "UpdateReport",
    "simulate_training",
    "staleness_bound",
    "train_on_ray",
]
