"""Checks whether a schedule is valid, independently of the simulator and the schedulers.

Every route must be a path of the network; no link direction may carry more transfers in a round
than its capacity; no copy may share its target with another write. These rules are checked a block
of rounds at a time. Then all contributions are counted (`gradweave.verifier.contributions`).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradweave.schedules.given import ScheduleLike, as_schedule
from gradweave.schedules.implicit import ImplicitSchedule
from gradweave.schedules.schedule import Schedule, inside_rows
from gradweave.verifier.blocks import Block, blocks
from gradweave.verifier.by_orbits import load_violation, symmetry_violation
from gradweave.verifier.contributions import first_wrong_count
from gradweave.verifier.verdict import Verdict, Violation, ViolationKind


def verify(
    schedule: ScheduleLike | ImplicitSchedule,
    *,
    forwarding_servers: bool = True,
    aggregating_switches: bool = False,
    block_bytes: int = 1 << 27,
) -> Verdict:
    """Checks a schedule.

    Args:
        schedule: a schedule, a solution, or the path of a schedule file; or an implicit schedule,
            of which the group, the base and the loads of orbits of links are checked.
        forwarding_servers: accept routes that pass through other servers, as those of the unmerged
            baselines do. The verdict counts them in either case.
        aggregating_switches: accept transfers that start or end at a switch, which then aggregates
            like a server.
        block_bytes: memory for the contribution counts; pieces are checked in blocks that fit.

    Returns:
        The verdict, with the first violation: by the symmetry of an implicit schedule, by route,
        then servers that may not relay, then capacity, then conflicting writes, then result.

    Source: docs/concepts/verifier.md.

    >>> import gradweave as gw
    >>> schedule = gw.schedulers.Ring().schedule(gw.topology.ring(4))
    >>> gw.verify(schedule).valid
    True
    >>> late = schedule.round.copy()
    >>> late[0] += 1
    >>> print(gw.verify(schedule.replace(round=late)).violation.message)
    round 1: link 0→1 carries 2 transfers; expected at most 1
    """
    if isinstance(schedule, ImplicitSchedule):
        violation = symmetry_violation(schedule)
        if violation is not None:
            return Verdict(violation, schedule.num_transfers, 0)
        verdict = verify(
            schedule.base_collective,
            forwarding_servers=forwarding_servers,
            aggregating_switches=aggregating_switches,
            block_bytes=block_bytes,
        )
        return Verdict(
            verdict.violation or load_violation(schedule),
            schedule.num_transfers,
            verdict.forwarded * schedule.symmetry.order,
        )
    schedule = as_schedule(schedule)
    checks: list[Callable[[_Checked], Violation | None]] = [
        _route_violation,
        _repeating_route_violation,
        *([] if aggregating_switches else [_endpoint_violation]),
        *([] if forwarding_servers else [_forwarding_violation]),
        *([] if schedule.demand is None else [_relay_violation]),
        _capacity_violation,
        _conflict_violation,
    ]
    violation, forwarded = None, 0
    for block in blocks(schedule):
        checked = _Checked(schedule, block)
        forwarded += int(checked.forwarded.sum())
        # Once a check has failed, only the checks before it can name an earlier violation.
        for place, check in enumerate(checks):
            if (found := check(checked)) is not None:
                violation, checks = found, checks[:place]
                break
    if violation is None:
        violation = first_wrong_count(
            schedule, aggregating_switches=aggregating_switches, block_bytes=block_bytes
        )
    return Verdict(violation=violation, transfers=schedule.num_transfers, forwarded=forwarded)


def check_valid(schedule: Schedule) -> None:
    """Refuses an invalid schedule; switches may add if its strategy says that they do.

    Raises:
        InvalidScheduleError: the verifier rejects the schedule.
    """
    switches = bool(schedule.scheduler.options.get("aggregating_switches"))
    verify(schedule, aggregating_switches=switches).raise_if_invalid()


@dataclasses.dataclass(frozen=True, eq=False)
class _Checked:
    """A block of a schedule during the check."""

    schedule: Schedule
    block: Block

    @functools.cached_property
    def lengths(self) -> NDArray[np.int64]:
        """[M] number of nodes of each route."""
        return np.diff(self.block.offsets)

    @functools.cached_property
    def links(self) -> NDArray[np.int64]:
        """Link directions of the routes, route by route; −1 if the network has no such link."""
        return self.schedule.topology.links_along(self.block.nodes, self.block.offsets)

    @functools.cached_property
    def transfer(self) -> NDArray[np.int64]:
        """The block's transfer that each of `links` belongs to."""
        return np.repeat(np.arange(len(self.block)), self.lengths - 1)

    @functools.cached_property
    def forwarded(self) -> NDArray[np.bool_]:
        """[M] whether the route passes through servers."""
        block, forwarded = self.block, np.zeros(len(self.block), bool)
        if (self.lengths > 2).any():
            inside = np.flatnonzero(inside_rows(block.offsets))
            passed = inside[self.schedule.topology.is_server[block.nodes[inside]]]
            forwarded[np.searchsorted(block.offsets, passed, "right") - 1] = True
        return forwarded


def _of_transfer(
    checked: _Checked,
    place: int,
    kind: ViolationKind,
    problem: str,
    expected: int | str,
    found: int | str,
    **details: Any,
) -> Violation:
    """A violation by one transfer, which is given by its place in the block."""
    schedule, transfer = checked.schedule, checked.block.begin + place
    ends = schedule.source[transfer], schedule.target[transfer]
    source, target = map(schedule.topology.id_name, ends)
    at, piece = int(schedule.round[transfer]), int(schedule.piece[transfer])
    message = f"round {at}: piece {piece} from {source} to {target}: {problem}"
    return Violation(kind, message, at, expected, found, transfer, piece=piece, **details)


def _route_violation(checked: _Checked) -> Violation | None:
    """A route that does not lead from source to target, or not along links."""
    block = checked.block
    first, last = block.nodes[block.offsets[:-1]], block.nodes[block.offsets[1:] - 1]
    wrong_ends = (first != block.source) | (last != block.target)
    wrong = wrong_ends.copy()
    wrong[checked.transfer[checked.links < 0]] = True
    if not wrong.any():
        return None
    t = int(wrong.argmax())
    if not wrong_ends[t]:
        return _missing_link_violation(checked, t)
    expected = f"{block.source[t]} to {block.target[t]}"
    found = f"{first[t]} to {last[t]}"
    problem = f"its route runs {found}; expected {expected}"
    return _of_transfer(checked, t, "route", problem, expected, found)


def _missing_link_violation(checked: _Checked, transfer: int) -> Violation:
    block, topology = checked.block, checked.schedule.topology
    start = int(np.flatnonzero((checked.transfer == transfer) & (checked.links < 0))[0]) + transfer
    link = int(block.nodes[start]), int(block.nodes[start + 1])
    problem = f"its route uses {topology.pair_name(*link)}; expected a link, the network has none"
    return _of_transfer(checked, transfer, "route", problem, "a link", "none", link=link)


def _repeating_route_violation(checked: _Checked) -> Violation | None:
    """A route that passes one node twice: a loop moves nothing."""
    block, lengths, nodes = checked.block, checked.lengths, checked.schedule.topology.num_nodes
    # Routes of up to three nodes with real links can only repeat as a→b→a, so only longer routes
    # need the sort.
    short = (lengths <= 2) | ((lengths == 3) & (block.source != block.target))
    if short.all():
        return None
    owner = np.repeat(np.arange(len(block)), lengths)
    keep = ~short[owner]
    key = np.sort(owner[keep] * nodes + block.nodes[keep])
    repeated = np.flatnonzero(key[1:] == key[:-1])
    if not repeated.size:
        return None
    t, node = divmod(int(key[repeated[0]]), nodes)
    problem = (
        f"its route passes node {checked.schedule.topology.id_name(node)} twice; "
        "expected each node once"
    )
    return _of_transfer(checked, t, "route", problem, 1, 2)


def _endpoint_violation(checked: _Checked) -> Violation | None:
    block, topology = checked.block, checked.schedule.topology
    wrong = np.flatnonzero(~(topology.is_server[block.source] & topology.is_server[block.target]))
    if not wrong.size:
        return None
    t = int(wrong[0])
    switch = block.source[t] if not topology.is_server[block.source[t]] else block.target[t]
    problem = (
        f"ends at {topology.node_name(int(switch))}; expected servers, "
        "since switches do not aggregate"
    )
    return _of_transfer(checked, t, "endpoint", problem, "server", "switch")


def _forwarding_violation(checked: _Checked) -> Violation | None:
    if not checked.forwarded.any():
        return None
    block, topology = checked.block, checked.schedule.topology
    t = int(checked.forwarded.argmax())
    inside = block.nodes[block.offsets[t] + 1 : block.offsets[t + 1] - 1]
    server = int(inside[topology.is_server[inside]][0])
    problem = (
        f"its route passes through {topology.node_name(server)}; expected only switches inside"
    )
    return _of_transfer(checked, t, "forwarding", problem, "switch", "server", server=server)


def _relay_violation(checked: _Checked) -> Violation | None:
    """A transfer of a demand through a server that does not take part in its job."""
    schedule, block, demand = checked.schedule, checked.block, checked.schedule.demand
    assert demand is not None and schedule.block is not None
    allowed = np.tile(~schedule.topology.is_server, (len(demand.jobs), 1))
    allowed[:, demand.relays] = True
    allowed[demand.groups.owner, demand.groups.servers] = True
    job = demand.job[schedule.block[block.piece]]
    transfer = np.repeat(np.arange(len(block)), checked.lengths)
    wrong = np.flatnonzero(~allowed[job[transfer], block.nodes])
    if not wrong.size:
        return None
    t, server = int(transfer[wrong[0]]), int(block.nodes[wrong[0]])
    problem = (
        f"{schedule.topology.node_name(server)} has no part in it; expected servers of "
        f"{demand.jobs[job[t]]}, or relays that the demand names"
    )
    return _of_transfer(checked, t, "relay", problem, "a relay", server, server=server)


def _capacity_violation(checked: _Checked) -> Violation | None:
    schedule, block, links, transfer = (
        checked.schedule, checked.block, checked.links, checked.transfer,
    )  # fmt: skip
    count, first_round = len(schedule.topology.source), int(block.round[0])
    key = (block.round[transfer] - first_round) * count + links
    cells = (int(block.round[-1]) - first_round + 1) * count
    # A table of all links and rounds, unless nearly all of it would be empty.
    if cells <= max(1 << 24, 4 * len(key)):
        load = np.bincount(key, minlength=cells)
        used = np.flatnonzero((load.reshape(-1, count) > schedule.topology.capacity).ravel())
        load = load[used]
    else:
        used, load = np.unique(key, return_counts=True)
    over = np.flatnonzero(load > schedule.topology.capacity[used % count])
    if not over.size:
        return None
    at, link = divmod(int(used[over[0]]), count)
    at += first_round
    capacity, found = int(schedule.topology.capacity[link]), int(load[over[0]])
    t = int(transfer[key == used[over[0]]][-1])
    pair = (int(schedule.topology.source[link]), int(schedule.topology.target[link]))
    link_name = schedule.topology.link_name(link)
    message = f"round {at}: link {link_name} carries {found} transfers; expected at most {capacity}"
    return Violation(
        "capacity",
        message,
        at,
        capacity,
        found,
        block.begin + t,
        pair,
        piece=int(block.piece[t]),
    )


def _conflict_violation(checked: _Checked) -> Violation | None:
    """A copy with the same target, piece and round as another write, so the order is undefined."""
    block = checked.block
    if not block.copied.any():
        return None
    cell = block.target * checked.schedule.pieces + block.piece
    if _all_differ(cell, block.round):
        return None
    order = np.lexsort((cell, block.round))
    cell, rounds, copied = cell[order], block.round[order], block.copied[order]
    same = (cell[1:] == cell[:-1]) & (rounds[1:] == rounds[:-1])
    wrong = np.flatnonzero(same & (copied[1:] | copied[:-1]))
    if not wrong.size:
        return None
    t = int(order[wrong[0] + 1])
    at, server, piece = int(block.round[t]), int(block.target[t]), int(block.piece[t])
    message = (
        f"round {at}: {checked.schedule.topology.node_name(server)} gets piece {piece} by a copy "
        "and by another transfer; expected one copy alone"
    )
    return Violation("conflict", message, at, 1, 2, block.begin + t, server=server, piece=piece)


def _all_differ(cell: NDArray[np.int64], rounds: NDArray[np.int64]) -> bool:
    """Whether no two entries agree in both; False if in doubt."""
    span = int(cell.max()) + 1
    if (int(rounds[-1] - rounds[0]) + 1) * span >= 1 << 62:
        return False
    key = np.sort((rounds - rounds[0]) * span + cell)
    return bool((key[1:] != key[:-1]).all())
