"""Schedules small enough to be built by hand, for the tests of the report."""

import numpy as np

from gradweave.schedules.schedule import COPY, REDUCE, Provenance, Schedule
from gradweave.topology.topology import Topology


def ring_topology(servers: int, name: str = "hand-made ring") -> Topology:
    links = [(i, i + 1) for i in range(servers - 1)] + [(0, servers - 1)] * (servers > 2)
    return Topology.from_links(name, servers=servers, switches=0, links=links)


def star_topology(servers: int) -> Topology:
    return Topology.from_links(
        "hand-made star", servers=servers, switches=1, links=[(i, servers) for i in range(servers)]
    )


def ring_all_reduce(
    servers: int, name: str = "hand-made ring", scheduler: str = "ring"
) -> Schedule:
    """The lecture's ring: N−1 rounds of reduce-scatter, N−1 of all-gather, one direction."""
    rows = []
    for step in range(servers - 1):
        for piece in range(servers):
            reducer, copier = (piece + 1 + step) % servers, (piece + step) % servers
            rows.append((step, piece, REDUCE, (reducer, (reducer + 1) % servers)))
            rows.append((servers - 1 + step, piece, COPY, (copier, (copier + 1) % servers)))
    return Schedule.from_rows(
        ring_topology(servers, name), rows, scheduler=Provenance(scheduler, {"steps": "N-1"}, 0)
    )


def star_all_reduce(servers: int) -> Schedule:
    """In round t server i sends piece i + t + 1 straight to its root; then all is copied."""
    rows = []
    for step in range(servers - 1):
        for i in range(servers):
            j = (i + step + 1) % servers
            rows.append((step, j, REDUCE, (i, servers, j)))
            rows.append((servers - 1 + step, i, COPY, (i, servers, j)))
    return Schedule.from_rows(star_topology(servers), rows, scheduler=Provenance("direct"))


def uneven_star() -> Schedule:
    """Three servers; the first two root a quarter and three quarters, the last roots nothing."""
    rows = []
    for piece, root in enumerate((0, 1)):
        for step, other in enumerate(node for node in range(3) if node != root):
            rows.append((step, piece, REDUCE, (other, 3, root)))
            rows.append((2 + step, piece, COPY, (root, 3, other)))
    return Schedule.from_rows(star_topology(3), rows, root=[0, 1]).replace(shares=np.array([1, 3]))
