"""Ordered messages of another tool's result, turned into a schedule on a network."""

import dataclasses
import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradweave.errors import FileError
from gradweave.schedulers.flows.even_routes import EvenRoutes
from gradweave.schedules.demand import Demand
from gradweave.schedules.schedule import COPY, DEMAND, MAX_ROUNDS, Provenance, Schedule
from gradweave.topology.topology import Topology

MAX_MESSAGES = 500_000
"""Maximum number of messages that are read from a file."""


@dataclasses.dataclass(frozen=True)
class Message:
    """A part of the data that moves from one server to another."""

    source: int
    target: int
    """Node ids of servers."""
    piece: int
    op: int = COPY
    after: tuple[int, ...] = ()
    """Indices of messages that must end in an earlier round."""
    beside: tuple[int, ...] = ()
    """Indices of messages that must be in the same round or an earlier one."""
    through: tuple[int, ...] | None = None
    """Switches on its route, or None if the file does not say."""
    order: int = 0
    """Priority among messages that can go; lower values go first."""


@dataclasses.dataclass(frozen=True)
class Asked:
    """The task of a schedule of messages."""

    collective: Any
    root: Sequence[int]
    """Server of each piece."""
    shares: Sequence[int] | None = None
    demand: Demand | None = None
    block: Sequence[int] | None = None


def as_schedule(
    topology: Topology,
    messages: Sequence[Message],
    asked: Asked,
    made_by: str,
    options: Mapping[str, Any],
) -> Schedule:
    """Schedules messages on routes and in rounds, each as early as its order and its links allow.

    Files of other tools specify neither our rounds nor the route if several are equally short.
    Among equal routes, the route whose links carry least so far is chosen.

    Args:
        topology: the network.
        messages: any number up to `MAX_MESSAGES`.
        asked: the collective or demand, and the pieces.
        made_by: name of the tool.
        options: its options, for the provenance.

    Raises:
        FileError: for a message that cannot be routed, or that waits for itself.
    """
    routes = _routes(topology, messages)
    link = {
        ends: number
        for number, ends in enumerate(
            zip(topology.source.tolist(), topology.target.tolist(), strict=True)
        )
    }
    capacity = topology.capacity.tolist()
    load: Counter[tuple[int, int]] = Counter()
    rounds = np.zeros(len(messages), np.int64)
    for number in _in_order(messages):
        one, route = messages[number], routes[number]
        used = [link.get(pair, -1) for pair in itertools.pairwise(route)]
        if -1 in used:
            ends = route[used.index(-1)], route[used.index(-1) + 1]
            raise FileError(f"a message goes from node {ends[0]} to {ends[1]}, which no link joins")
        at = max((int(rounds[k]) + 1 for k in one.after), default=0)
        at = max([at, *(int(rounds[k]) for k in one.beside)])
        while any(load[at, k] >= capacity[k] for k in used):
            at += 1
        if at >= MAX_ROUNDS:
            raise FileError(f"more than {MAX_ROUNDS:,} rounds, the most accepted")
        load.update((at, k) for k in used)
        rounds[number] = at
    order = np.argsort(rounds, kind="stable").tolist()
    rows = [messages[k] for k in order]
    taken = [routes[k] for k in order]
    return Schedule(
        topology=topology,
        collective=DEMAND if asked.demand is not None else asked.collective,
        root=np.asarray(asked.root, np.int64),
        round=rounds[order],
        piece=np.array([one.piece for one in rows], np.int64),
        source=np.array([one.source for one in rows], np.int64),
        target=np.array([one.target for one in rows], np.int64),
        op=np.array([one.op for one in rows], np.int64),
        route_nodes=np.array([node for route in taken for node in route], np.int64),
        route_offsets=np.cumsum([0, *map(len, taken)]),  # pyright: ignore[reportArgumentType]
        scheduler=Provenance(made_by, dict(options)),
        shares=None if asked.shares is None else np.asarray(asked.shares, np.int64),
        demand=asked.demand,
        block=None if asked.block is None else np.asarray(asked.block, np.int64),
    )


def _routes(topology: Topology, messages: Sequence[Message]) -> list[tuple[int, ...]]:
    """The nodes on each message's route."""
    even: EvenRoutes | None = None
    joined = set(zip(topology.source.tolist(), topology.target.tolist(), strict=True))
    found = []
    for one in messages:
        if one.through is not None or (one.source, one.target) in joined:
            found.append((one.source, *(one.through or ()), one.target))
            continue
        even = even or EvenRoutes(topology)
        ends = int(topology.rank[one.source]), int(topology.rank[one.target])
        if not np.isfinite(even.cost[ends]):
            names = topology.node_name(one.source), topology.node_name(one.target)
            raise FileError(
                f"a message goes from {names[0]} to {names[1]}; no route without others"
            )
        links = even.route(1.0, *ends)
        found.append((one.source, *(int(topology.target[k]) for k in links)))
    return found


def _in_order(messages: Sequence[Message]) -> list[int]:
    """The messages in an order in which each follows those that it waits for."""
    waiting = [len(one.after) + len(one.beside) for one in messages]
    follow = defaultdict(list)
    for number, one in enumerate(messages):
        for before in (*one.after, *one.beside):
            follow[before].append(number)
    ready = [(one.order, k) for k, one in enumerate(messages) if not waiting[k]]
    heapq.heapify(ready)
    found = []
    while ready:
        _, number = heapq.heappop(ready)
        found.append(number)
        for later in follow[number]:
            waiting[later] -= 1
            if not waiting[later]:
                heapq.heappush(ready, (messages[later].order, later))
    if len(found) < len(messages):
        raise FileError("messages that wait for each other in a circle")
    return found
