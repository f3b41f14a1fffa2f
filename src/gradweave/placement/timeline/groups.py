"""All-reduce schedules of the data-parallel groups, one for the links of each."""

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gradweave.schedulers.solving.solve import solve
from gradweave.schedules.schedule import Schedule
from gradweave.topology.routes import server_routes
from gradweave.topology.subnetwork import subnetwork
from gradweave.topology.topology import Topology


@dataclasses.dataclass(frozen=True, eq=False)
class GroupSchedule:
    """An all-reduce schedule of one group, and the position of its nodes in the whole network."""

    schedule: Schedule
    nodes: NDArray[np.int32]
    """[V of the schedule's network] node ids in the whole network."""
    gradient_bytes: float
    seconds: float
    """Duration of the all-reduce alone, on its part of the links' bandwidth, by events."""
    bound_s: float
    """Lower bound on the duration of any schedule of the group under the same conditions."""


def group_schedules(
    topology: Topology,
    groups: NDArray[np.integer],
    gradient_bytes: list[float],
    *,
    seed: int = 0,
    time_limit: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[GroupSchedule | None]:
    """Finds a schedule for each group's servers, links and gradient; a group of one gets None.

    If routes of several groups cross a link direction, each group gets an equal part of its
    bandwidth. Groups with identical networks share a schedule. One plan with all groups as jobs was
    not faster in general, and needs servers that relay (docs/experiments/runtimes.md).

    Args:
        topology: the whole network.
        groups: [S, D] node ids of servers.
        gradient_bytes: [S] gradient bytes of each group.
        seed: seed of every search.
        time_limit: seconds for each search.
        progress: called with each step under way.
    """
    users = np.maximum(_users(topology, groups), 1)
    known: dict[bytes, GroupSchedule] = {}
    found: list[GroupSchedule | None] = []
    for stage, (members, size) in enumerate(zip(groups, gradient_bytes, strict=True)):
        if len(members) < 2 or size <= 0:
            found.append(None)
            continue
        network, nodes = subnetwork(topology, np.sort(members), users)
        key = b"".join(
            np.ascontiguousarray(column).tobytes()
            for column in (
                network.source, network.target, network.bandwidth_bytes_per_s, network.latency_s,
                network.overhead_s, network.is_server, np.array([size]),
            )
        )  # fmt: skip
        if key not in known:
            progress(f"scheduling the group of stage {stage}")
            known[key] = _solved(network, nodes, float(size), seed, time_limit)
        found.append(dataclasses.replace(known[key], nodes=nodes))
    return found


def _solved(
    network: Topology, nodes: NDArray[np.int32], size: float, seed: int, time_limit: float | None
) -> GroupSchedule:
    solution = solve(
        network, objective="seconds", gradient_bytes=size, seed=seed, time_limit=time_limit
    )
    timing = solution.timing
    assert timing is not None
    return GroupSchedule(solution.schedule, nodes, size, timing.seconds, timing.bound.seconds)


def _users(topology: Topology, groups: NDArray[np.integer]) -> NDArray[np.int64]:
    """[L] number of groups whose members' routes cross each link direction."""
    users = np.zeros(len(topology.source), np.int64)
    data = groups.shape[1]
    if data < 2:
        return users
    one, other = np.nonzero(~np.eye(data, dtype=bool))
    for members in topology.rank[groups]:
        *_, nodes, offsets = server_routes(topology, members[one], members[other])
        users[np.unique(topology.links_along(nodes, offsets))] += 1
    return users
