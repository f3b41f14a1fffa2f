"""Demands that every backend carries out, with what each server gives and what it is to get."""

import numpy as np
from numpy.typing import NDArray

import gradweave as gw
from gradweave.execute import play
from gradweave.execute.layout import Layout
from gradweave.schedules import Job, Schedule
from tests.execute.cases import as_dtype, contribution


def planned() -> list[Schedule]:
    """Schedules for six servers: several jobs of unequal groups, an all-to-all, one that relays."""
    ring, star = gw.topology.ring(6), gw.topology.star(6)
    together = [
        Job("all_reduce", 48, [0, 2, 4]),
        Job("all_to_all", [[8, 16], [24, 8]], [1, 4]),
        Job("broadcast", 40, root=3),
    ]
    relayed = Job("reduce", 800, [0, 2, 3], root=3, relays=[1])
    return [
        gw.schedulers.Joint().schedule(network, gw.schedules.demand_of(network, jobs))
        for network, jobs in ((star, together), (ring, [Job("all_to_all", 480)]), (ring, [relayed]))
    ]


def ends(schedule: Schedule, dtype: str, reduction: str) -> list[tuple[NDArray, NDArray]]:
    """What each server gives and, by the oracle, gets; by rank."""
    type_, servers = as_dtype(dtype), schedule.topology.num_servers
    elements = schedule.demanded.total_bytes // type_.itemsize
    at = schedule.piece_offsets(elements)
    whole = np.stack([contribution(rank, elements, dtype) for rank in range(servers)])
    played = play(schedule, whole, reduction)  # pyright: ignore[reportArgumentType]

    def of(row: NDArray, which: NDArray[np.bool_]) -> NDArray:
        return row[np.repeat(which, np.diff(at))]

    layouts = [Layout.of(schedule, rank, type_.itemsize) for rank in range(servers)]
    return [
        (of(whole[rank], layout.given), of(played[rank], layout.wanted))
        for rank, layout in enumerate(layouts)
    ]
