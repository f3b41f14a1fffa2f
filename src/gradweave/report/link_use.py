"""A schedule's busiest links, and the shares that its servers root, in words and as JSON."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.common.wording import counted, listed, noun_of
from gradweave.schedules.ready import ReadyAt
from gradweave.schedules.schedule import Schedule
from gradweave.simulator.link_use import LinkUse, busiest_links
from gradweave.topology.names import name_of
from gradweave.topology.units import format_seconds

_MAX_TRANSFERS = 1_000_000
"""Larger schedules are not simulated again to find the use of their links."""
_SHOWN = 3
"""Number of links that are named."""
_GROUPS = 6
"""Number of different shares that are listed."""
_MOST_NAMED = 8
"""Number of servers with one share that are named."""


def use_fields(
    schedule: Schedule, gradient_bytes: float, ready_at_s: ReadyAt | None = None
) -> dict[str, Any]:
    """The busiest link directions, and the share that each server roots, for JSON.

    Nodes are given by id and by name, which is None if the network has no names.
    """
    topology = schedule.topology
    uses = _busiest(schedule, gradient_bytes, ready_at_s)
    fields: dict[str, Any] = {
        "busiest_links": [
            {
                "source": int(topology.source[use.link]),
                "target": int(topology.target[use.link]),
                "source_name": name_of(topology, int(topology.source[use.link])),
                "target_name": name_of(topology, int(topology.target[use.link])),
                "used": use.used,
                **dataclasses.asdict(use.waits),
            }
            for use in uses
        ]
    }
    rooted = rooted_shares(schedule)
    if not _differ(rooted):
        return fields
    shares = zip(topology.servers.tolist(), rooted.tolist(), strict=True)
    return fields | {
        "rooted_shares": [
            {
                "rank": rank,
                "server": server,
                "name": name_of(topology, server),
                "share": share,
            }
            for rank, (server, share) in enumerate(shares)
        ]
    }


def use_lines(
    schedule: Schedule, gradient_bytes: float, ready_at_s: ReadyAt | None = None
) -> list[str]:
    """One line on the busiest links, and one on shares if servers root different ones."""
    uses = _busiest(schedule, gradient_bytes, ready_at_s)
    lines = [_use_line(schedule, uses)] if uses else []
    rooted = rooted_shares(schedule)
    return [*lines, _shares_line(schedule, rooted)] if _differ(rooted) else lines


def rooted_shares(schedule: Schedule) -> NDArray[np.float64]:
    """[N] share of the gradient that each server roots, by rank."""
    topology = schedule.topology
    rank = topology.rank[schedule.root]
    return np.bincount(rank, schedule.share, topology.num_servers).astype(np.float64)


def _busiest(
    schedule: Schedule, gradient_bytes: float, ready_at_s: ReadyAt | None
) -> tuple[LinkUse, ...]:
    if schedule.num_transfers > _MAX_TRANSFERS:
        return ()
    return busiest_links(schedule, gradient_bytes, _SHOWN, ready_at_s=ready_at_s)


def _differ(rooted: NDArray[np.float64]) -> bool:
    return bool(np.ptp(rooted) > 1e-6)


def _use_line(schedule: Schedule, uses: tuple[LinkUse, ...]) -> str:
    name, first, waits = schedule.topology.link_name, uses[0], uses[0].waits
    idle = [
        (waits.before_s, "before its first transfer"),
        (waits.between_s, f"in {counted(waits.gaps, 'gap')}"),
        (waits.after_s, "after its last"),
    ]
    parts = [f"{format_seconds(seconds, 3)} {when}" for seconds, when in idle if seconds]
    line = f"busiest link {name(first.link)}: {first.used:.1%} used"
    line += f", idle {listed(parts)}" if parts else ""
    others = [f"{name(use.link)} {use.used:.1%}" for use in uses[1:]]
    return line + (f"; then {listed(others)}" if others else "")


def _shares_line(schedule: Schedule, rooted: NDArray[np.float64]) -> str:
    topology = schedule.topology
    groups: dict[str, list[int]] = {}
    for rank in np.argsort(-rooted, kind="stable").tolist():
        groups.setdefault(f"{rooted[rank]:.2%}", []).append(int(topology.servers[rank]))
    parts = [
        f"{share} at {_named([topology.id_name(one) for one in servers])}"
        for share, servers in list(groups.items())[:_GROUPS]
    ]
    parts += ["…"] * (len(groups) > _GROUPS)
    return f"roots: {'; '.join(parts)}; equal parts would be {1 / topology.num_servers:.2%}"


def _named(servers: list[str]) -> str:
    if len(servers) > _MOST_NAMED:
        return f"{len(servers)} servers"
    return f"{noun_of(len(servers), 'server')} {listed(servers)}"
