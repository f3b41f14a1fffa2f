"""When two schedules are the same."""

from collections import Counter

import msgspec
import numpy as np

from gradweave.schedules import Schedule
from tests.verifier.oracle import Draft

COLUMNS = ("root", "round", "piece", "source", "target", "op", "route_nodes", "route_offsets")


def same_columns(one: Schedule, other: Schedule) -> bool:
    """Whether both have the same transfers in the same order, for the same network."""
    return (
        one.collective == other.collective
        and one.topology.same_network(other.topology)
        and all(np.array_equal(getattr(one, name), getattr(other, name)) for name in COLUMNS)
    )


def same(one: Schedule, other: Schedule) -> bool:
    """Whether both are the same in everything that a file holds."""
    plain = msgspec.to_builtins
    return (
        same_columns(one, other)
        and one.topology.name == other.topology.name
        and one.topology.labels == other.topology.labels
        and msgspec.json.encode(plain(one.scheduler)) == msgspec.json.encode(plain(other.scheduler))
        and one.bound == other.bound
    )


def transfers(schedule: Schedule) -> Counter:
    """The transfers, in no order."""
    return Counter(Draft.of(schedule).rows)
