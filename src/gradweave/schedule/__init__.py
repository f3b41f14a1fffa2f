"""What moves when: schedules, flow trees, workloads, and the schedule file."""

from gradweave.schedule.schedule import COLLECTIVES, COPY, OPS, REDUCE, Collective, Provenance, Schedule, StatedBound

__all__ = ["COLLECTIVES", "COPY", "OPS", "REDUCE", "Collective", "Provenance", "Schedule", "StatedBound"]
