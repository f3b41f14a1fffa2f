"""Schedules of data movements: flow trees, workloads, demands, and the schedule file."""

from gradweave.schedules.compose import at_once, compose, overlap, reverse
from gradweave.schedules.demand import Demand, collective, sends
from gradweave.schedules.file import load_implicit
from gradweave.schedules.flow_tree import FlowTrees, Workloads
from gradweave.schedules.implicit import ImplicitSchedule
from gradweave.schedules.jobs import Job, demand_of, mesh_jobs
from gradweave.schedules.schedule import (
    COLLECTIVES,
    COPY,
    DEMAND,
    OPS,
    REDUCE,
    Provenance,
    Schedule,
    StatedBound,
)
from gradweave.schedules.shares import integers as integer_shares

__all__ = [
    "COLLECTIVES",
    "COPY",
    "DEMAND",
    "OPS",
    "REDUCE",
    "Demand",
    "FlowTrees",
    "ImplicitSchedule",
    "Job",
    "Provenance",
    "Schedule",
    "StatedBound",
    "Workloads",
    "at_once",
    "collective",
    "compose",
    "demand_of",
    "integer_shares",
    "load_implicit",
    "mesh_jobs",
    "overlap",
    "reverse",
    "sends",
]
