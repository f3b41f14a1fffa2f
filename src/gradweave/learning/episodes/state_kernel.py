"""State and feature counts of an episode of the learned policies, compiled.

`learning.features` computes the same counts with matrices; a test compares the two, and another
compares episodes with the environment's. The features computed from the counts are defined once, in
`features`.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.common.compiled import kernel
from gradweave.schedulers.kernels.bitset import (
    WORD,
    Bitset,
    bit,
    count,
    lowest,
    pack,
    without_lowest,
)
from gradweave.schedulers.problem import HopsOver, HopTable, Integers

Booleans = NDArray[np.bool_]


class WorkloadTable(NamedTuple):
    """The possible transfers, the links they use, and how many fit into a round.

    H hops, L link directions, N servers, Q trees.
    """

    sender_link: Integers
    """[H] link of each hop's route at the sender's end."""
    receiver_link: Integers
    """[H] link of each hop's route at the receiver's end."""
    over: HopsOver
    """Hops by link."""
    capacity: Integers
    """[L] transfers that each link direction carries per round."""
    intake: Integers
    """[N] transfers that each server can take per round."""
    allowed: Bitset
    """[A, W] sets of trees that hops may carry, as bits."""
    allowed_row: Integers
    """[H] the row of `allowed` for each hop."""
    by_sender: Booleans
    """[Q] as in `Instance.arrays`."""
    height: Integers
    """[N, Q] as in `Instance.arrays`."""
    grown: bool
    """Whether trees grow."""


class EpisodeArrays(NamedTuple):
    """The progress of an episode; rounds change it."""

    waiting: Integers
    """[N, Q] transfers that a server waits for; changed at the end of a round, not within it."""
    pending: Booleans
    """[N, Q] transfers not sent."""
    arriving: Integers
    """[N, Q] transfers on the way in this round."""
    to_come: NDArray[np.float64]
    """[N] transfers into each server that are still to be made."""
    near: Integers
    """[N, Q] see `enter_stage`."""
    lack: Integers
    """[N, Q] see `enter_stage`."""
    holders: Integers
    """[Q] see `enter_stage`."""
    sent_round: Integers
    """[N, Q] round in which each transfer was sent."""
    sent_hop: Integers
    """[N, Q] hop over which each transfer was sent."""


@kernel(inlined=True)
def key_server(hops: HopTable, workloads: WorkloadTable, hop: int, tree: int) -> int:
    """The server whose row of an [N, Q] array represents a transfer: its sender or receiver."""
    return hops.source[hop] if workloads.by_sender[tree] else hops.target[hop]


@kernel
def enter_stage(
    hops: HopTable,
    there: Booleans,
    under_way: Booleans,
    pending: Booleans,
    near: Integers,
    lack: Integers,
    holders: Integers,
) -> None:
    """Counts, for each server and piece, the neighbours that hold it and those that lack it.

    Args:
        hops: the network.
        there: [H] hops of the stage.
        under_way: [Q] trees of the stage.
        pending: [N, Q] transfers not sent.
        near: [N, Q] output: hops into each server from a server that holds the piece.
        lack: [N, Q] output: hops out of each server to a server that lacks it.
        holders: [Q] output: servers that hold it.
    """
    servers, trees = pending.shape
    near[:] = 0
    lack[:] = 0
    holders[:] = servers
    for hop in range(len(there)):
        if there[hop]:
            sender, receiver = hops.source[hop], hops.target[hop]
            for tree in range(trees):
                near[receiver, tree] += not (under_way[tree] and pending[sender, tree])
                lack[sender, tree] += under_way[tree] and pending[receiver, tree]
    for server in range(servers):
        for tree in range(trees):
            holders[tree] -= under_way[tree] and pending[server, tree]


@kernel
def hop_counts(
    hops: HopTable,
    workloads: WorkloadTable,
    there: Booleans,
    under_way: Booleans,
    waiting: Integers,
    pending: Booleans,
) -> tuple[Integers, Integers, Integers, Booleans, Booleans]:
    """The workloads that each hop can carry, now and later.

    Returns:
        [H] workloads to come, ready workloads, and rounds of the longest chain that a ready
        workload begins; [N, Q] transfers that can be made now; [Q] trees with such a transfer.
    """
    servers, trees = pending.shape
    number = len(there)
    left, ready = np.zeros(number, np.int64), np.zeros(number, np.int64)
    chain = np.zeros(number, np.int64)
    cells, candidates = np.zeros((servers, trees), np.bool_), np.zeros(trees, np.bool_)
    sets, height = begin_sets(workloads, waiting, pending, under_way), workloads.height
    holds, to_send, selected, by_sender = sets.holds, sets.pending, sets.selected, sets.by_sender
    allowed, row, grown = workloads.allowed, workloads.allowed_row, workloads.grown
    senders, receivers = hops.source, hops.target
    now = np.zeros_like(holds)
    for hop in range(number):
        if not there[hop]:
            continue
        sender, receiver = senders[hop], receivers[hop]
        for place in range(len(by_sender)):
            may, by = selected[place] & allowed[row[hop], place], by_sender[place]
            unsent = unsent_trees(to_send[receiver, place], to_send[sender, place], by, may)
            word = unsent & holds[sender, place]
            left[hop] += count(unsent)
            ready[hop] += count(word)
            now[sender, place] |= word & by
            now[receiver, place] |= word & ~by
            while word and not grown:  # grown trees have no chains
                tree = WORD * place + lowest(word)
                key = sender if by & bit(tree) else receiver
                chain[hop] = max(chain[hop], height[key, tree])
                word = without_lowest(word)
    for server in range(servers):
        for place in range(now.shape[1]):
            word = now[server, place]
            while word:
                tree = WORD * place + lowest(word)
                cells[server, tree] = candidates[tree] = True
                word = without_lowest(word)
    return left, ready, chain, cells, candidates


class TreeSets(NamedTuple):
    """Sets of trees, as bits."""

    holds: Bitset
    """[N, W] trees for which a server no longer waits."""
    pending: Bitset
    """[N, W] transfers not sent."""
    selected: Bitset
    """[W] trees that may be sent."""
    by_sender: Bitset
    """[W] as in `Instance.arrays`."""


@kernel(inner=True)
def begin_sets(
    workloads: WorkloadTable, waiting: Integers, pending: Booleans, selected: Booleans
) -> Any:
    """The sets at a round's start."""
    return TreeSets(
        pack(waiting == 0),
        pack(pending),
        pack(selected.reshape(1, -1))[0],
        pack(workloads.by_sender.reshape(1, -1))[0],
    )


@kernel(inlined=True)
def unsent_trees(of_receiver: Any, of_sender: Any, by_sender: Any, may: Any) -> Any:
    """A word of the trees whose transfer over a hop has not been made.

    of_receiver: transfers not sent, among those that the receiver represents.
    of_sender: transfers not sent, among those that the sender represents.
    by_sender: trees whose transfers the sender represents.
    may: trees that may be sent over the hop.
    """
    return ((of_receiver & ~by_sender) | (of_sender & by_sender)) & may


@kernel
def wanted_beside(
    hops: HopTable, there: Booleans, holds: Booleans, lacks: Booleans
) -> tuple[Integers, Integers, Integers]:
    """[N] number of trees that each server holds, lacks, and holds while a receiver lacks them."""
    servers, held, lacked = len(holds), pack(holds), pack(lacks)
    want = np.zeros_like(held)
    for hop in range(len(there)):
        if there[hop]:
            sender, receiver = hops.source[hop], hops.target[hop]
            for place in range(held.shape[1]):
                want[sender, place] |= lacked[receiver, place]
    numbers = np.zeros((3, servers), np.int64)
    for server in range(servers):
        for place in range(held.shape[1]):
            numbers[0, server] += count(held[server, place])
            numbers[1, server] += count(lacked[server, place])
            numbers[2, server] += count(held[server, place] & want[server, place])
    return numbers[0], numbers[1], numbers[2]
