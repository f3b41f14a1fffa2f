"""What moves when: schedules, flow trees, workloads, and the schedule file."""

from gradweave.schedule.compose import at_once, compose, overlap, reverse
from gradweave.schedule.demand import Demand, Sets, collective, sends
from gradweave.schedule.file import load, save
from gradweave.schedule.flow_tree import FlowTrees, Workloads
from gradweave.schedule.jobs import Job, demand_of, mesh_jobs
from gradweave.schedule.schedule import (
    COLLECTIVES,
    COPY,
    DEMAND,
    OPS,
    REDUCE,
    Collective,
    Provenance,
    Schedule,
    StatedBound,
)
from gradweave.schedule.shares import integers as integer_shares

__all__ = [
    "COLLECTIVES",
    "COPY",
    "DEMAND",
    "OPS",
    "REDUCE",
    "Collective",
    "Demand",
    "FlowTrees",
    "Job",
    "Provenance",
    "Schedule",
    "Sets",
    "StatedBound",
    "Workloads",
    "at_once",
    "collective",
    "compose",
    "demand_of",
    "integer_shares",
    "load",
    "mesh_jobs",
    "overlap",
    "reverse",
    "save",
    "sends",
]
