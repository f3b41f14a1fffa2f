"""Is this schedule valid? Checked from first principles, independently of simulator and schedulers.

Three checks, each vectorised over all transfers: every route is a path of the network; no link
direction carries more transfers in a round than its capacity; and all contribution counts are right
at the end (`gradweave.verify.contributions`).
"""

import itertools
from typing import Any

import numpy as np

from gradweave.schedule.schedule import Schedule, inside_rows
from gradweave.verify.contributions import first_wrong_count
from gradweave.verify.verdict import Verdict, Violation, ViolationKind


def verify(
    schedule: Schedule,
    *,
    forwarding_servers: bool = True,
    aggregating_switches: bool = False,
    block_bytes: int = 1 << 27,
) -> Verdict:
    """Checks a schedule.

    Args:
        schedule: the schedule.
        forwarding_servers: accept routes that pass through other servers, as the unmerged
            baselines' do. The verdict counts them either way.
        aggregating_switches: accept transfers that begin or end at a switch, which then aggregates
            like a server.
        block_bytes: memory for the contribution counts; pieces are checked in blocks that fit.

    Returns:
        The verdict, with the first violation: by route, then capacity, then conflicting writes,
        then result.

    Source: docs/concepts/verifier.md.

    >>> import gradweave as gw
    >>> schedule = gw.schedulers.Ring().schedule(gw.topology.ring(4))
    >>> gw.verify.verify(schedule).valid
    True
    >>> late = schedule.round.copy()
    >>> late[0] += 1
    >>> print(gw.verify.verify(schedule.replace(round=late)).violation.message)
    round 1: link 0→1 carries 2 transfers; expected at most 1
    """
    forwarded = _forwarded(schedule)
    violation = (
        _route_violation(schedule)
        or _endpoint_violation(schedule, aggregating_switches)
        or (None if forwarding_servers else _forwarding_violation(schedule, forwarded))
        or _capacity_violation(schedule)
        or _conflict_violation(schedule)
        or first_wrong_count(
            schedule, aggregating_switches=aggregating_switches, block_bytes=block_bytes
        )
    )
    return Verdict(
        violation=violation, transfers=schedule.num_transfers, forwarded=int(forwarded.sum())
    )


def _of_transfer(
    schedule: Schedule,
    transfer: int,
    kind: ViolationKind,
    problem: str,
    expected: int | str,
    found: int | str,
    **details: Any,
) -> Violation:
    """A violation by one transfer, which the message names."""
    ends = schedule.source[transfer], schedule.target[transfer]
    source, target = map(schedule.topology.id_name, ends)
    at, piece = int(schedule.round[transfer]), int(schedule.piece[transfer])
    message = f"round {at}: piece {piece} from {source} to {target}: {problem}"
    return Violation(kind, message, at, expected, found, transfer, piece=piece, **details)


def _route_violation(schedule: Schedule) -> Violation | None:
    """A route that does not lead from source to target, or not along links."""
    if not schedule.num_transfers:
        return None
    first = schedule.route_nodes[schedule.route_offsets[:-1]]
    last = schedule.route_nodes[schedule.route_offsets[1:] - 1]
    wrong_ends = (first != schedule.source) | (last != schedule.target)
    links, transfer = schedule.route_links
    broken = np.zeros(schedule.num_transfers, bool)
    broken[transfer[links < 0]] = True
    wrong = np.flatnonzero(wrong_ends | broken)
    if not wrong.size:
        return _repeating_route_violation(schedule)
    t = int(wrong[0])
    if not wrong_ends[t]:
        return _missing_link_violation(schedule, t)
    expected = f"{schedule.source[t]} to {schedule.target[t]}"
    found = f"{first[t]} to {last[t]}"
    problem = f"its route runs {found}; expected {expected}"
    return _of_transfer(schedule, t, "route", problem, expected, found)


def _missing_link_violation(schedule: Schedule, transfer: int) -> Violation:
    topology = schedule.topology
    link = next(
        pair
        for pair in itertools.pairwise(schedule.route(transfer))
        if topology.find_links(np.array([pair[0]]), np.array([pair[1]]))[0] < 0
    )
    problem = f"its route uses {topology.pair_name(*link)}; expected a link, the network has none"
    return _of_transfer(schedule, transfer, "route", problem, "a link", "none", link=link)


def _repeating_route_violation(schedule: Schedule) -> Violation | None:
    """A route that passes one node twice: a loop moves nothing."""
    nodes = schedule.topology.num_nodes
    owner = np.repeat(
        np.arange(schedule.num_transfers, dtype=np.int64), np.diff(schedule.route_offsets)
    )
    lengths = np.diff(schedule.route_offsets)
    # Routes of up to three nodes with real links can only repeat as a→b→a, so the sort is for
    # longer ones alone.
    short = (lengths <= 2) | ((lengths == 3) & (schedule.source != schedule.target))
    keep = ~short[owner]
    key = np.sort(owner[keep] * nodes + schedule.route_nodes[keep])
    repeated = np.flatnonzero(key[1:] == key[:-1])
    if not repeated.size:
        return None
    t, node = divmod(int(key[repeated[0]]), nodes)
    problem = (
        f"its route passes node {schedule.topology.id_name(node)} twice; expected each node once"
    )
    return _of_transfer(schedule, t, "route", problem, 1, 2)


def _endpoint_violation(schedule: Schedule, aggregating_switches: bool) -> Violation | None:
    if aggregating_switches:
        return None
    is_server = schedule.topology.is_server
    wrong = np.flatnonzero(~(is_server[schedule.source] & is_server[schedule.target]))
    if not wrong.size:
        return None
    t = int(wrong[0])
    switch = schedule.source[t] if not is_server[schedule.source[t]] else schedule.target[t]
    problem = (
        f"ends at {schedule.topology.node_name(switch)}; expected servers, "
        "since switches do not aggregate"
    )
    return _of_transfer(schedule, t, "endpoint", problem, "server", "switch")


def _forwarded(schedule: Schedule) -> np.ndarray:
    inside = inside_rows(schedule.route_offsets)
    passed = np.flatnonzero(inside & schedule.topology.is_server[schedule.route_nodes])
    forwarded = np.zeros(schedule.num_transfers, bool)
    forwarded[np.searchsorted(schedule.route_offsets, passed, "right") - 1] = True
    return forwarded


def _forwarding_violation(schedule: Schedule, forwarded: np.ndarray) -> Violation | None:
    if not forwarded.any():
        return None
    t = int(forwarded.argmax())
    server = next(node for node in schedule.route(t)[1:-1] if schedule.topology.is_server[node])
    problem = (
        f"its route passes through {schedule.topology.node_name(server)}; "
        "expected only switches inside"
    )
    return _of_transfer(schedule, t, "forwarding", problem, "switch", "server", server=server)


def _capacity_violation(schedule: Schedule) -> Violation | None:
    links, transfer = schedule.route_links
    count = np.int64(len(schedule.topology.source))
    key = schedule.round[transfer].astype(np.int64) * count + links
    if schedule.rounds * int(count) <= max(1 << 24, 4 * len(key)):
        load = np.bincount(key)
        used = np.flatnonzero(load)
        load = load[used]
    else:
        used, load = np.unique(key, return_counts=True)
    over = np.flatnonzero(load > schedule.topology.capacity[used % count])
    if not over.size:
        return None
    at, link = divmod(int(used[over[0]]), int(count))
    capacity, found = int(schedule.topology.capacity[link]), int(load[over[0]])
    rows = transfer[key == used[over[0]]]
    pair = (int(schedule.topology.source[link]), int(schedule.topology.target[link]))
    link_name = schedule.topology.link_name(link)
    message = f"round {at}: link {link_name} carries {found} transfers; expected at most {capacity}"
    return Violation(
        "capacity",
        message,
        at,
        capacity,
        found,
        int(rows[-1]),
        pair,
        piece=int(schedule.piece[rows[-1]]),
    )


def _conflict_violation(schedule: Schedule) -> Violation | None:
    """A copy that shares target, piece and round with another write: their order is undefined."""
    pieces = np.int64(schedule.pieces)
    cell = schedule.target.astype(np.int64) * pieces + schedule.piece
    order = np.lexsort((cell, schedule.round))
    same = (cell[order][1:] == cell[order][:-1]) & (
        schedule.round[order][1:] == schedule.round[order][:-1]
    )
    copies = schedule.op[order] == 1
    wrong = np.flatnonzero(same & (copies[1:] | copies[:-1]))
    if not wrong.size:
        return None
    t = int(order[wrong[0] + 1])
    at, server, piece = int(schedule.round[t]), int(schedule.target[t]), int(schedule.piece[t])
    message = (
        f"round {at}: {schedule.topology.node_name(server)} gets piece {piece} by a copy and by "
        "another transfer; expected one copy alone"
    )
    return Violation("conflict", message, at, 1, 2, t, server=server, piece=piece)
