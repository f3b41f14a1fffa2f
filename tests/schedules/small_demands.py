"""Schedules of demands, made by hand."""

import gradweave as gw
from gradweave.schedules import COPY, DEMAND, REDUCE, Demand, Schedule, collective, sends

LINE = gw.topology.mesh((1, 4))
"""Servers 0 – 1 – 2 – 3."""


def by_hand(demand: Demand, rows, block, topology=LINE, **given) -> Schedule:
    """A schedule of (round, piece, op, route) for a demand."""
    plain = Schedule.from_rows(topology, rows, root=[0] * len(block))
    return plain.replace(collective=DEMAND, demand=demand, block=block, **given)


def two_jobs() -> Schedule:
    """Servers 0 to 2 sum up at 2 while 3 sends to 2."""
    demand = Demand.together([collective("reduce", [0, 1, 2], 8, root=2), sends([(3, 2, 5)])])
    rows = [(0, 0, REDUCE, (0, 1)), (1, 0, REDUCE, (1, 2)), (0, 1, COPY, (3, 2))]
    return by_hand(demand, rows, [0, 1])
