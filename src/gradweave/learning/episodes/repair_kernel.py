"""Repair of a round that the policies drew, compiled: replaces workloads by others.

The swaps are those of `trees.growing_kernel`, on hops into servers that could take more. They start
from the policies' draws, and leave hardly any port idle unnecessarily.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.learning.episodes.state_kernel import EpisodeArrays
from gradweave.schedulers.problem import HopTable
from gradweave.schedulers.trees import growing_kernel as growing
from gradweave.schedulers.trees.growing_kernel import GrowingRule, Growth

NEVER = -1
"""Sentinel: in `sent_round` and `sent_hop`, a transfer not sent yet; in tables, no hop."""


class HopSlots(NamedTuple):
    """The problem as arrays for the swaps: a slot for each use of a hop in a round."""

    growth: Growth
    """Its hops are slots."""
    hop: NDArray[np.int64]
    """[G] hop of each slot, ascending."""
    first: NDArray[np.int64]
    """[H+1] index of each hop's first slot."""


@kernel
def begin(slots: HopSlots, sent_hop: NDArray[np.int64]) -> Any:
    """The swaps' state after some rounds.

    Args:
        slots: the problem.
        sent_hop: [N, P] hop over which each server received each piece in these rounds; −1 for
            none.
    """
    state = growing.start(slots.growth)
    _replay(slots, state, sent_hop, np.zeros((1, 3), np.int64))
    return state


@kernel(inner=True, allocates=False)
def _replay(
    slots: HopSlots, state: Any, sent_hop: NDArray[np.int64], row: NDArray[np.int64]
) -> None:
    """Replays the transfers of some rounds; `row` is scratch, [1, 3]."""
    for server in range(sent_hop.shape[0]):
        for piece in range(sent_hop.shape[1]):
            if sent_hop[server, piece] >= 0:
                row[0, 1], row[0, 2] = piece, slots.first[sent_hop[server, piece]]
                growing.assign(slots.growth, state, row[0, 2], piece)
                growing.arrive(slots.growth, state, row)


@kernel
def repair(
    slots: HopSlots,
    state: Any,
    hops: HopTable,
    progress: EpisodeArrays,
    rule: GrowingRule,
    at: int,
    rounds_left: int,
    seed: int,
) -> NDArray[np.int64]:
    """Improves a round by swaps. The state does not contain its transfers yet: see `settle`.

    Args:
        slots: the problem.
        state: from `begin`, with the transfers of earlier rounds; changed.
        hops: the problem's hops.
        progress: the episode with the round drawn; changed.
        rule: how pieces are chosen, and how often the swaps go through all hops.
        at: the round.
        rounds_left: rounds until the bound, including this one.
        seed: the seed of every random choice.

    Returns:
        [transfers, 3] round, piece and slot of the round's transfers.
    """
    np.random.seed(seed)
    _enter(slots, state, progress, at)
    stop = np.zeros(1, np.bool_)
    growing.find_open(slots.growth, state)
    for _ in range(rule.passes):
        if not growing.swap(slots.growth, state, rule, rounds_left, stop):
            break
    sent = _sent(state, at)
    growing.undo(slots.growth, state)
    _write(hops, progress, slots.hop, sent, at)
    return sent


@kernel
def take_back(hops: HopTable, progress: EpisodeArrays, at: int) -> None:
    """Takes all of a round's transfers back.

    Args:
        hops: the problem's hops.
        progress: the episode; changed.
        at: the round.
    """
    _write(hops, progress, np.zeros(0, np.int64), np.zeros((0, 3), np.int64), at)


@kernel
def settle(
    slots: HopSlots,
    state: Any,
    hops: HopTable,
    progress: EpisodeArrays,
    sent: NDArray[np.int64],
    at: int,
) -> None:
    """Makes a round's transfers final, in the episode and in the state.

    Args:
        slots: the problem.
        state: from `begin`; changed.
        hops: the problem's hops.
        progress: the episode; changed.
        sent: [transfers, 3] from `repair`.
        at: the round.
    """
    _write(hops, progress, slots.hop, sent, at)
    _assign_all(slots, state, sent)


@kernel(inner=True, allocates=False)
def _assign_all(slots: HopSlots, state: Any, sent: NDArray[np.int64]) -> None:
    for i in range(len(sent)):
        growing.assign(slots.growth, state, sent[i, 2], sent[i, 1])
    growing.arrive(slots.growth, state, sent)


@kernel
def shortfall(to_come: NDArray[np.float64], intake: NDArray[np.int64], rounds: int) -> float:
    """Number of transfers that will be late: beyond what servers can take in the remaining rounds.

    Args:
        to_come: [N] transfers into each server that are still to be made.
        intake: [N] transfers that each server can take per round.
        rounds: remaining rounds until the bound.
    """
    short = 0.0
    for server in range(len(intake)):
        short += max(to_come[server] - rounds * intake[server], 0.0)
    return short


@kernel(inner=True, allocates=False)
def _enter(slots: HopSlots, state: Any, progress: EpisodeArrays, at: int) -> None:
    """Puts the drawn transfers on slots; those that find no slot are dropped."""
    servers, trees = progress.sent_round.shape
    state.slots.used[:] = 0
    state.taken[:] = 0
    for server in range(servers):
        for tree in range(trees):
            if progress.sent_round[server, tree] != at:
                continue
            hop = progress.sent_hop[server, tree]
            for slot in range(slots.first[hop], slots.first[hop + 1]):
                if state.carries[slot] < 0:
                    if growing.claim_route(slots.growth, state, slot):
                        growing.assign(slots.growth, state, slot, tree)
                    break


@kernel(inner=True)
def _sent(state: Any, at: int) -> NDArray[np.int64]:
    """[transfers, 3] round, piece and slot of the round's transfers."""
    sent = np.empty(((state.carries >= 0).sum(), 3), np.int64)
    growing.list_sent(state, at, sent, 0)
    return sent


@kernel(inner=True)
def _write(
    hops: HopTable,
    progress: EpisodeArrays,
    hop_of_slot: NDArray[np.int64],
    sent: NDArray[np.int64],
    at: int,
) -> None:
    """Updates the episode to the changed round."""
    taken = np.full(progress.sent_round.shape, NEVER)
    for i in range(len(sent)):
        hop = hop_of_slot[sent[i, 2]]
        taken[hops.target[hop], sent[i, 1]] = hop
    _change(hops, progress, taken, at)


@kernel(inner=True, allocates=False)
def _change(hops: HopTable, progress: EpisodeArrays, taken: NDArray[np.int64], at: int) -> None:
    """Replaces a round's transfers by those of a table of hops, [N, Q]."""
    servers, trees = taken.shape
    for server in range(servers):
        for tree in range(trees):
            before, now = progress.sent_round[server, tree] == at, taken[server, tree]
            if before and now < 0:
                _count(hops, progress, server, tree, -1)
                progress.sent_round[server, tree] = NEVER
                progress.sent_hop[server, tree] = NEVER
            elif now >= 0:
                if not before:
                    _count(hops, progress, server, tree, 1)
                progress.sent_round[server, tree] = at
                progress.sent_hop[server, tree] = now


@kernel(inner=True, allocates=False)
def _count(hops: HopTable, progress: EpisodeArrays, server: int, tree: int, more: int) -> None:
    """Adds a server to those that a piece is on the way to, or removes it."""
    progress.pending[server, tree] = more < 0
    progress.arriving[server, tree] += more
    progress.to_come[server] -= more
    progress.holders[tree] += more
    for hop in hops.leaving[hops.first_leaving[server] : hops.first_leaving[server + 1]]:
        progress.near[hops.target[hop], tree] += more
    for hop in hops.entering[hops.first_entering[server] : hops.first_entering[server + 1]]:
        progress.lack[hops.source[hop], tree] -= more
