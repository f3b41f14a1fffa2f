"""Steps of proofs about time, in the form that a certificate's file carries."""

from fractions import Fraction
from typing import Any

import numpy as np

from gradweave.bounds.bound import Cut, LateEntry
from gradweave.bounds.seconds.duals import Crossing, Duals
from gradweave.bounds.seconds.latency import LatencyBound, MessageTimes, message_times
from gradweave.bounds.seconds.throughput import Bottleneck
from gradweave.topology.groups import nested_groups
from gradweave.topology.topology import Topology
from gradweave.topology.units import ROUNDING

Step = dict[str, Any]


def set_of(one: Cut | LateEntry | Bottleneck | Crossing) -> Step:
    """The nodes inside, as fields of a step."""
    return {"servers": list(one.servers), "switches": list(one.switches)}


def groups_step(stage: str, groups: list[list[int]], leaving: bool) -> Step:
    """Groups of nodes that bytes leave or enter, all groups together."""
    return {"kind": "groups", "stage": stage, "groups": groups, "leaving": leaving}


def bottleneck_step(topology: Topology, stage: str, one: Bottleneck) -> Step:
    """The cut, or the groups of servers, of a bottleneck."""
    if one.kind == "cut":
        return {"kind": "cut", "stage": stage, **set_of(one), "leaving": one.leaving}
    groups = topology.servers[:, None].tolist()
    for level in nested_groups(topology) if one.kind == "groups" else ():
        if level.count == one.groups:
            groups = [np.flatnonzero(level.group == g).tolist() for g in range(level.count)]
    return groups_step(stage, groups, one.leaving)


def reach_step(
    stage: str,
    server: int,
    block: int,
    *,
    leaving: bool = True,
    seconds: float = 0.0,
    beyond: float = 0.0,
) -> Step:
    """A block's bytes that leave or enter a server, and messages beyond some distance."""
    return {
        "kind": "reach",
        "stage": stage,
        "server": server,
        "leaving": leaving,
        "block": block,
        "seconds": str(Fraction(seconds)),
        "beyond_s": str(Fraction(beyond)),
    }


def distance_steps(topology: Topology, stage: str, ready: np.ndarray) -> list[Step]:
    """Steps from the farthest server, or to it, and from the server with the narrowest links."""
    away = message_times(topology) + ready[:, None]
    leaving = stage != "reduce_scatter"
    ends = topology.source if leaving else topology.target
    rate = np.bincount(ends, topology.bandwidth_bytes_per_s, topology.num_nodes)
    farthest = away if leaving else away.T
    ranks = {int(np.argmax(farthest.max(axis=1))), int(np.argmin(rate[topology.servers]))}
    steps = []
    for rank in sorted(ranks):
        pair = (rank, int(np.argmax(farthest[rank])))[:: 1 if leaving else -1]
        far = far_message(topology, *topology.servers[list(pair)].tolist())
        steps.append(_reach_of(topology, stage, rank, leaving))
        steps += [_reach_of(topology, stage, rank, leaving, **far)] if far else []
    return steps


def _reach_of(topology: Topology, stage: str, rank: int, leaving: bool, **found: float) -> Step:
    """A proof step for one server; in a single stage, its block is the one rooted at it."""
    block = 0 if stage == "all_reduce" else rank
    return reach_step(stage, int(topology.servers[rank]), block, leaving=leaving, **found)


def message_steps(topology: Topology, stage: str, bound: LatencyBound) -> list[Step]:
    """Steps that prove a bound on messages without bytes."""
    if bound.kind in ("reach", "gather"):
        rank = int(topology.rank[bound.servers[0]])
        leaving = bound.kind == "reach"
        return [_reach_of(topology, stage, rank, leaving, **reached(topology, rank, bound))]
    if bound.kind == "relay":
        return [{"kind": "relay", "stage": stage, "server": bound.servers[0]}]
    if bound.kind == "meeting":
        beyond = [_beyond(topology, rank, False) for rank in range(topology.num_servers)]
        texts = [[str(Fraction(time)) for time in times] for times in beyond]
        time = str(Fraction(bound.seconds))
        return [{"kind": "meeting", "stage": stage, "seconds": time, "beyond_s": texts}]
    return []


def _beyond(topology: Topology, rank: int, leaving: bool) -> list[float]:
    """Distances around a server beyond which sets of far servers are tried."""
    model = MessageTimes.of(topology)
    times = model.message[rank] if leaving else model.message[:, rank]
    sets = model.sets_around(rank, not leaving)
    return [float(times[chosen].min()) * (1 - ROUNDING) for chosen in sets if not chosen.all()]


def reached(topology: Topology, rank: int, bound: LatencyBound) -> dict[str, float]:
    """The time of a reach without its bytes, and the distance from which its servers count."""
    model, leaving = MessageTimes.of(topology), bound.kind == "reach"
    (alone,) = model.reach(gathering=not leaving, servers=[rank])
    times = model.message[rank] if leaving else model.message[:, rank]
    beyond = [0.0, *_beyond(topology, rank, leaving)]
    far = [time for time in beyond if (np.delete(times, rank) >= time).sum() == alone.others]
    return {"seconds": alone.seconds * (1 - ROUNDING), "beyond": far[0] if far else 0.0}


def priced_step(duals: Duals) -> Step:
    """Sets of nodes with their prices in the linear program; link lengths if no server is late."""
    if not duals.ready_at_s:
        return duals.prices.step("all_reduce")
    sets = [
        {
            "stage": one.stage,
            **set_of(one),
            "price": int(one.dual),
            "since_s": str(Fraction(one.since_s)),
        }
        for one in duals.crossings
    ]
    tolls = [
        {"stage": one.stage, "switch": one.switch, "price": int(one.dual)} for one in duals.tolls
    ]
    return {"kind": "crossings", "stage": "all_reduce", "sets": sets, "tolls": tolls}


def far_message(topology: Topology, source: int, target: int) -> dict[str, Any]:
    """Fields of a step with the minimum message time; empty if all links have the same overhead."""
    if not np.ptp(topology.overhead_s):
        return {}
    ends = topology.rank[source], topology.rank[target]
    message_s = float(message_times(topology)[ends]) * (1 - ROUNDING)
    return {"seconds": message_s, "beyond": message_s}
