"""The learned policies' round, compiled: its features, its message passing, its draws.

The numbers are those of `learning.features` and `learning.networks`, which say what each means;
tests hold the two together. A transfer changes the scores of hops near it alone, and only those are
scored again, so that a draw costs little more on a large network than on a small one.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradweave.compiled import kernel
from gradweave.schedulers.learned import feature_table as table

Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
Numbers = NDArray[np.float32]


class HopTable(NamedTuple):
    """Who can send to whom, over which links. H hops, L link directions, N servers, Q trees."""

    sender: Integers
    """[H] server that each hop leaves."""
    receiver: Integers
    """[H] server that it enters."""
    sender_link: Integers
    """[H] link of its route at the sender's end."""
    receiver_link: Integers
    """[H] link at the receiver's end."""
    links: Integers
    """Of the hops' routes, one route after the other."""
    first_link: Integers
    """[H+1] where each hop's links start."""
    hops_on: Integers
    """HopTable over each link, one link after the other."""
    first_on: Integers
    """[L+1] where each link's hops start."""
    hops_from: Integers
    """HopTable out of each server."""
    first_from: Integers
    """[N+1] where each server's start."""
    hops_into: Integers
    """HopTable into each server."""
    first_into: Integers
    """[N+1] where each server's start."""


class WorkloadTable(NamedTuple):
    """Which transfers there can be, and how many fit into a round."""

    capacity: Integers
    """[L] transfers that a link direction carries in a round."""
    intake: Integers
    """[N] transfers that a server can take in a round."""
    allowed: Booleans
    """[H, Q] workloads that exist."""
    by_sender: Booleans
    """[Q] as in `Instance.arrays`."""
    height: Integers
    """[N, Q] as in `Instance.arrays`."""
    grown: bool
    """Whether trees grow."""


class EpisodeArrays(NamedTuple):
    """How far an episode has got; a round changes it."""

    waiting: Integers
    """[N, Q] transfers that a server waits for; changed at a round's end, not in it."""
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
    held: Integers
    """[Q] see `enter_stage`."""
    sent_round: Integers
    """[N, Q] round in which each transfer was sent."""
    sent_hop: Integers
    """[N, Q] the hop that it was sent over."""


class Scores(NamedTuple):
    """What the policy made of a round's start."""

    hop_weights: Numbers
    """[H, 12] what the features of each hop count for."""
    piece_weights: Numbers
    """[N, 7] what those of a piece count for, by the receiver."""
    match: Numbers
    """[N, Q] added to a tree's score at a receiver."""
    link_slack: Numbers
    """[H] transfers that the tightest link of a route can spare."""
    chain: Integers
    """[H] rounds of the longest chain that a workload of the hop begins."""


@kernel(inlined=True)
def _key(hops: HopTable, workloads: WorkloadTable, hop: int, tree: int) -> int:
    """The server whose row of an [N, Q] array stands for a transfer: its sender or its receiver."""
    return hops.sender[hop] if workloads.by_sender[tree] else hops.receiver[hop]


@kernel
def enter_stage(
    hops: HopTable,
    there: Booleans,
    under_way: Booleans,
    pending: Booleans,
    near: Integers,
    lack: Integers,
    held: Integers,
) -> None:
    """Counts, for each server and piece, the neighbours that hold it and those that lack it.

    Args:
        hops: the network.
        there: [H] hops of the stage.
        under_way: [Q] its trees.
        pending: [N, Q] transfers not sent.
        near: [N, Q] set to the hops into a server from one that holds the piece.
        lack: [N, Q] set to the hops out of a server to one that lacks it.
        held: [Q] set to the servers that hold it.
    """
    servers, trees = pending.shape
    near[:] = 0
    lack[:] = 0
    held[:] = servers
    for hop in range(len(there)):
        if there[hop]:
            sender, receiver = hops.sender[hop], hops.receiver[hop]
            for tree in range(trees):
                near[receiver, tree] += not (under_way[tree] and pending[sender, tree])
                lack[sender, tree] += under_way[tree] and pending[receiver, tree]
    for server in range(servers):
        for tree in range(trees):
            held[tree] -= under_way[tree] and pending[server, tree]


@kernel
def hop_counts(
    hops: HopTable,
    workloads: WorkloadTable,
    there: Booleans,
    under_way: Booleans,
    waiting: Integers,
    pending: Booleans,
) -> tuple[Integers, Integers, Integers, Booleans, Booleans]:
    """What each hop can carry, now and later.

    Returns:
        [H] workloads to come, those that are ready, the rounds of the longest chain that one of
        them begins; [N, Q] transfers that can be made now; [Q] trees with one.
    """
    servers, trees = pending.shape
    number = len(there)
    left, ready = np.zeros(number, np.int64), np.zeros(number, np.int64)
    chain = np.zeros(number, np.int64)
    cells, candidates = np.zeros((servers, trees), np.bool_), np.zeros(trees, np.bool_)
    allowed, by_sender, height = workloads.allowed, workloads.by_sender, workloads.height
    for hop in range(number):
        if not there[hop]:
            continue
        sender, receiver = hops.sender[hop], hops.receiver[hop]
        for tree in range(trees):
            key = sender if by_sender[tree] else receiver
            if under_way[tree] and allowed[hop, tree] and pending[key, tree]:
                left[hop] += 1
                if waiting[sender, tree] == 0:
                    ready[hop] += 1
                    candidates[tree] = True
                    cells[key, tree] = True
                    chain[hop] = max(chain[hop], height[key, tree])
    return left, ready, chain, cells, candidates


@kernel
def link_features(
    hops: HopTable,
    capacity: Integers,
    there: Booleans,
    wanted: NDArray[np.float64],
    ready: Integers,
    rounds_left: float,
) -> tuple[Numbers, Numbers]:
    """[L, 3] features of the links, and [H] the slack of each route's tightest link.

    Args:
        hops: the network.
        capacity: [L] of each link.
        there: [H] hops of the stage.
        wanted: [H] transfers to come over each hop.
        ready: [H] workloads that are ready on it.
        rounds_left: until the stage's bound.
    """
    links, first_link = hops.links, hops.first_link
    demand, contenders = np.zeros(len(capacity)), np.zeros(len(capacity))
    features = np.zeros((len(capacity), 3), np.float32)
    slack = np.full(len(there), table.PLENTY, np.float32)
    for hop in range(len(there)):
        if there[hop]:
            for i in range(first_link[hop], first_link[hop + 1]):
                demand[links[i]] += wanted[hop]
                contenders[links[i]] += ready[hop]
                features[links[i], 2] = 1.0
    for link in range(len(capacity)):
        if features[link, 2] > 0:
            room = max(capacity[link], 1)
            features[link, 0] = min(demand[link] / (rounds_left * room), table.HIGHEST_LOAD)
            features[link, 1] = np.log1p(contenders[link] / room) / 4.0
    for hop in range(len(there)):
        for i in range(first_link[hop], first_link[hop + 1]):
            if features[links[i], 2] > 0:
                spare = rounds_left * capacity[links[i]] - demand[links[i]]
                slack[hop] = min(slack[hop], spare)
    return features, slack


@kernel
def neighbours_want(hops: HopTable, there: Booleans, lacks: Booleans) -> Booleans:
    """[N, Q] whether a server has a hop to one that lacks the tree."""
    want = np.zeros_like(lacks)
    for hop in range(len(there)):
        if there[hop]:
            for tree in range(lacks.shape[1]):
                want[hops.sender[hop], tree] |= lacks[hops.receiver[hop], tree]
    return want


@kernel(fastmath=True)
def mean_over_hops(
    x: Numbers, source: Integers, target: Integers, there: Booleans, rows: int
) -> Numbers:
    """[rows, D] the mean of the messages to each target from its sources, hop by hop.

    Args:
        x: [., D] the messages.
        source: [H] row of `x` that a hop carries.
        target: [H] row that it carries it to.
        there: [H] hops that count.
        rows: of the result.
    """
    width = x.shape[1]
    out, number = np.zeros((rows, width), np.float32), np.zeros(rows, np.float32)
    for hop in range(len(source)):
        if there[hop]:
            number[target[hop]] += 1
            for j in range(width):
                out[target[hop], j] += x[source[hop], j]
    for row in range(rows):
        scale = np.float32(1) / max(number[row], np.float32(1))
        for j in range(width):
            out[row, j] *= scale
    return out


@kernel(fastmath=True)
def mean_where(mask: Booleans, x: Numbers) -> Numbers:
    """[A, D] the mean of the rows of `x` where each row of the mask says so.

    Args:
        mask: [A, B].
        x: [B, D].
    """
    width = x.shape[1]
    out = np.zeros((mask.shape[0], width), np.float32)
    for row in range(mask.shape[0]):
        number = np.float32(0)
        for other in range(mask.shape[1]):
            if mask[row, other]:
                number += 1
                for j in range(width):
                    out[row, j] += x[other, j]
        for j in range(width):
            out[row, j] /= max(number, np.float32(1))
    return out


@kernel(fastmath=True)
def times(x: Numbers, y: Numbers) -> Numbers:
    """[A, C] the product of [A, B] and [B, C]. A library's threads would wait for one another."""
    out = np.zeros((x.shape[0], y.shape[1]), np.float32)
    for row in range(x.shape[0]):
        for i in range(x.shape[1]):
            for j in range(y.shape[1]):
                out[row, j] += x[row, i] * y[i, j]
    return out


@kernel(fastmath=True)
def add_messages(
    view: Numbers, messages: Numbers, weights: Numbers, bias: Numbers, mask: Booleans
) -> None:
    """One residual layer: adds to each view the rectified linear map of its messages.

    Args:
        view: [A, D], changed.
        messages: [M, A, D] to each row, by kind.
        weights: [M, D, D].
        bias: [D].
        mask: [A] rows that there are; others are padding.
    """
    width = view.shape[1]
    change = np.empty(width, np.float32)
    for row in range(view.shape[0]):
        if not mask[row]:
            continue
        for j in range(width):
            change[j] = bias[j]
        for kind in range(messages.shape[0]):
            for i in range(width):
                value = messages[kind, row, i]
                for j in range(width):
                    change[j] += value * weights[kind, i, j]
        for j in range(width):
            view[row, j] += max(change[j], np.float32(0))


class _Round(NamedTuple):
    """A round half drawn. Every hop that fits has its score; what a draw changes is kept exact."""

    there: Booleans
    """[H] hops of the stage."""
    selected: Booleans
    """[Q] trees whose workloads may be sent."""
    room: Integers
    """[L] transfers that a link can still carry in this round."""
    contenders: Integers
    """[L] hops that fit and use the link."""
    ready: Integers
    """[H] workloads ready on the hop."""
    fits: Booleans
    """[H] whether a workload is ready and every link has room."""
    into: Integers
    """[N] hops of the stage into the server."""
    out: Integers
    """[N] hops of the stage out of it."""
    taken: NDArray[np.float64]
    """[N] transfers into the server in this round."""
    score: NDArray[np.float64]
    """[H] logarithm of the hop's weight."""
    weight: NDArray[np.float64]
    """[H] unnormalised probability of the hop; 0 where it does not fit."""
    queue: Integers
    """[H] hops to score again, or hops that fit no more: one use at a time."""
    queued: Booleans
    """[H] whether a hop waits to be scored again."""
    changed: Integers
    """[L] links whose room or contenders changed with the last transfer."""
    is_changed: Booleans
    """[L] whether a link is among them."""


@kernel
def draw_round(
    hops: HopTable,
    workloads: WorkloadTable,
    progress: EpisodeArrays,
    scores: Scores,
    there: Booleans,
    selected: Booleans,
    rounds_left: float,
    temperature: float,
    seed: int,
    at: int,
) -> int:
    """Draws and sends a round's workloads, one after the other, until none fits.

    A transfer takes time in the hops that share a link with it or with a hop that it makes unfit,
    plus, for the draws, H and Q.

    Args:
        hops: the network.
        workloads: the problem.
        progress: of the episode; changed.
        scores: by the policy.
        there: [H] hops of the stage.
        selected: [Q] trees whose workloads may be sent.
        rounds_left: until the stage's bound.
        temperature: of the draws; 0 takes the best.
        seed: of every random choice.
        at: the round.

    Returns:
        How many were sent.
    """
    np.random.seed(seed)
    state = _begin_round(hops, workloads, progress, there, selected)
    waits, sent = len(hops.sender), 0
    while True:
        _score_hops(hops, workloads, progress, scores, state, rounds_left, waits)
        hop = _draw_hop(state.fits, state.score, state.weight, temperature)
        if hop < 0:
            return sent
        tree = _draw_tree(hops, workloads, progress, scores, state, hop, rounds_left, temperature)
        _send(hops, workloads, progress, state, hop, tree, at)
        gone = _without_workload(hops, workloads, progress, state, hop, tree)
        changed, gone = _take_room(hops, state, hop, gone)
        changed = _contend_no_more(hops, state, changed, gone)
        waits = _queue_changed(hops, state, hop, changed)
        sent += 1


@kernel(inlined=True)
def _ready(
    hops: HopTable, workloads: WorkloadTable, progress: EpisodeArrays, selected: Booleans, hop: int
) -> Booleans:
    """[Q] whether a hop can carry each tree's workload now, as far as data goes."""
    sender, receiver = hops.sender[hop], hops.receiver[hop]
    allowed, waiting = workloads.allowed[hop], progress.waiting[sender]
    by_sender, pending = workloads.by_sender, progress.pending
    ready = np.zeros(len(selected), np.bool_)
    for tree in range(len(selected)):
        if selected[tree] and allowed[tree] and waiting[tree] == 0:
            ready[tree] = pending[sender if by_sender[tree] else receiver, tree]
    return ready


@kernel(inlined=True)
def _begin_round(
    hops: HopTable,
    workloads: WorkloadTable,
    progress: EpisodeArrays,
    there: Booleans,
    selected: Booleans,
) -> Any:
    """A round in which nothing is drawn; all hops wait to be scored."""
    links, number, servers = len(workloads.capacity), len(hops.sender), len(workloads.intake)
    state = _Round(
        there,
        selected,
        workloads.capacity.copy(),
        np.zeros(links, np.int64),
        np.zeros(number, np.int64),
        np.zeros(number, np.bool_),
        np.zeros(servers, np.int64),
        np.zeros(servers, np.int64),
        np.zeros(servers),
        np.zeros(number),
        np.zeros(number),
        np.arange(number),
        np.zeros(number, np.bool_),
        np.zeros(links, np.int64),
        np.zeros(links, np.bool_),
    )
    for hop in range(number):
        if not there[hop]:
            continue
        state.into[hops.receiver[hop]] += 1
        state.out[hops.sender[hop]] += 1
        state.ready[hop] = _ready(hops, workloads, progress, selected, hop).sum()
        state.fits[hop] = state.ready[hop] > 0
        if state.fits[hop]:
            for i in range(hops.first_link[hop], hops.first_link[hop + 1]):
                state.contenders[hops.links[i]] += 1
    return state


@kernel(inlined=True)
def _score_hops(
    hops: HopTable,
    workloads: WorkloadTable,
    progress: EpisodeArrays,
    scores: Scores,
    state: Any,
    rounds_left: float,
    waits: int,
) -> None:
    """Scores the hops at the head of the queue. A score depends on no other hop's score."""
    contenders, room = state.contenders, state.room
    queue, queued, fits = state.queue, state.queued, state.fits
    links, first_link = hops.links, hops.first_link
    receivers, intake = hops.receiver, workloads.intake
    to_come, taken, ready = progress.to_come, state.taken, state.ready
    for place in range(waits):
        hop = queue[place]
        queued[hop] = False
        if not fits[hop]:
            continue
        end, first, last = receivers[hop], first_link[hop], first_link[hop + 1]
        takes = float(max(intake[end], 1))
        slack = rounds_left * intake[end] - to_come[end]
        conflict = 0.0
        for i in range(first, last):
            conflict += _conflict(contenders, room, links[i])
        receiver_conflict = _conflict(contenders, room, hops.receiver_link[hop])
        sender_conflict = _conflict(contenders, room, hops.sender_link[hop])
        weights, tightest = scores.hop_weights[hop], scores.link_slack[hop]
        total = weights[table.SLACK] * _clipped(slack) + weights[table.NO_SLACK] * (slack <= 0)
        total += weights[table.LINK_SLACK] * _clipped(tightest)
        total += weights[table.NO_LINK_SLACK] * (tightest <= table.ROUNDING)
        total += (
            weights[table.CONTENTION] * _log(conflict)
            + weights[table.CONTENTION_AT_RECEIVER] * _log(receiver_conflict)
            + weights[table.CONTENTION_AT_SENDER] * _log(sender_conflict)
        )
        total += (
            weights[table.READY] * _log(float(ready[hop]))
            + weights[table.TAKEN] * taken[end] / takes
        )
        total += weights[table.LOAD] * min(to_come[end] / (rounds_left * takes), table.HIGHEST_LOAD)
        total += weights[table.LENGTH] * ((last - first) / 2.0 - 1.0)
        if not workloads.grown:
            total += weights[table.CHAIN_SLACK] * _clipped(rounds_left - scores.chain[hop])
        state.score[hop] = total
        state.weight[hop] = np.exp(min(max(total, -500.0), 500.0))


@kernel(inlined=True)
def _conflict(contenders: Integers, room: Integers, link: int) -> float:
    """Hops that want a link, for each transfer that it can still carry."""
    return contenders[link] / max(room[link], 1)


@kernel(inlined=True)
def _draw_hop(fits: Booleans, score: Any, weight: Any, temperature: float) -> int:
    """A hop that fits, by its weight; −1 where none does."""
    chosen, highest = -1, -np.inf
    if temperature == 1.0:  # one random number in place of one for each hop
        goal = np.random.random() * weight.sum()
        for hop in range(len(fits)):
            if fits[hop]:
                chosen = hop
                goal -= weight[hop]
                if goal <= 0:
                    break
        return chosen
    for hop in range(len(fits)):
        if fits[hop]:
            noisy = score[hop] + _noise(temperature)
            if noisy > highest:
                chosen, highest = hop, noisy
    return chosen


@kernel(inlined=True)
def _draw_tree(
    hops: HopTable,
    workloads: WorkloadTable,
    progress: EpisodeArrays,
    scores: Scores,
    state: Any,
    hop: int,
    rounds_left: float,
    temperature: float,
) -> int:
    """A tree whose workload is ready on a hop that fits: there is one."""
    chosen, highest = -1, -np.inf
    sender, receiver = hops.sender[hop], hops.receiver[hop]
    into, out = max(state.into[receiver], 1), max(state.out[receiver], 1)
    out_of_sender, servers = max(state.out[sender], 1), len(workloads.intake)
    ready = _ready(hops, workloads, progress, state.selected, hop)
    weights, match, held = scores.piece_weights[receiver], scores.match[receiver], progress.held
    near, lack = progress.near[receiver], progress.lack[receiver]
    lack_of_sender = progress.lack[sender]
    waiting, arriving = progress.waiting[receiver], progress.arriving[receiver]
    by_sender, height, grown = workloads.by_sender, workloads.height, workloads.grown
    for tree in range(len(ready)):
        if not ready[tree]:
            continue
        total = float(match[tree])
        if grown:
            total += weights[table.NEAR] * table.SHARE * near[tree] / into
            total += weights[table.NEAR_LOGARITHM] * np.log(max(near[tree], 1.0))
            total += weights[table.HELD] * table.SHARE * held[tree] / servers
            total += weights[table.LACK_OF_RECEIVER] * table.SHARE * lack[tree] / out
            total += (
                weights[table.LACK_OF_SENDER] * table.SHARE * lack_of_sender[tree] / out_of_sender
            )
        else:
            total += weights[table.PIECE_CHAIN_SLACK] * _clipped(
                rounds_left - height[sender if by_sender[tree] else receiver, tree]
            )
        total += weights[table.AWAITED] / max(waiting[tree] - arriving[tree], 1)
        noisy = total + _noise(temperature)
        if noisy > highest:
            chosen, highest = tree, noisy
    return chosen


@kernel(inlined=True)
def _send(
    hops: HopTable,
    workloads: WorkloadTable,
    progress: EpisodeArrays,
    state: Any,
    hop: int,
    tree: int,
    at: int,
) -> None:
    """Sends a tree's workload over a hop."""
    key, receiver = _key(hops, workloads, hop, tree), hops.receiver[hop]
    progress.pending[key, tree] = False
    progress.arriving[receiver, tree] += 1
    progress.sent_round[key, tree] = at
    progress.sent_hop[key, tree] = hop
    progress.to_come[receiver] -= 1
    state.taken[receiver] += 1
    if not workloads.grown:
        return
    progress.held[tree] += 1
    receivers, senders, near, lack = hops.receiver, hops.sender, progress.near, progress.lack
    allowed = workloads.allowed
    for other in hops.hops_from[hops.first_from[receiver] : hops.first_from[receiver + 1]]:
        near[receivers[other], tree] += allowed[other, tree]
    for other in hops.hops_into[hops.first_into[receiver] : hops.first_into[receiver + 1]]:
        lack[senders[other], tree] -= allowed[other, tree]


@kernel(inlined=True)
def _without_workload(
    hops: HopTable,
    workloads: WorkloadTable,
    progress: EpisodeArrays,
    state: Any,
    hop: int,
    tree: int,
) -> int:
    """HopTable that could have made the same transfer have one workload less.

    Returns:
        How many of them fit no more; they are at the head of the queue.
    """
    key, gone = _key(hops, workloads, hop, tree), 0
    by_sender = workloads.by_sender[tree]
    first = hops.first_from if by_sender else hops.first_into
    rows = hops.hops_from if by_sender else hops.hops_into
    allowed, waiting, senders = workloads.allowed, progress.waiting, hops.sender
    there, ready, fits, queue = state.there, state.ready, state.fits, state.queue
    for other in rows[first[key] : first[key + 1]]:
        if there[other] and allowed[other, tree] and waiting[senders[other], tree] == 0:
            ready[other] -= 1
            if ready[other] == 0 and fits[other]:
                fits[other] = False
                queue[gone] = other
                gone += 1
    return gone


@kernel(inlined=True)
def _take_room(hops: HopTable, state: Any, hop: int, gone: int) -> tuple[int, int]:
    """A transfer over a hop leaves less room on its links, and on a full one no hop fits.

    Returns:
        How many links have changed; how many hops at the head of the queue fit no more.
    """
    room, fits, queue, changed_links = state.room, state.fits, state.queue, state.changed
    links, first_on, hops_on, is_changed = hops.links, hops.first_on, hops.hops_on, state.is_changed
    changed = 0
    for i in range(hops.first_link[hop], hops.first_link[hop + 1]):
        link = links[i]
        room[link] -= 1
        changed = _note(changed_links, is_changed, link, changed)
        if room[link] == 0:
            for j in range(first_on[link], first_on[link + 1]):
                other = hops_on[j]
                if fits[other]:
                    fits[other] = False
                    queue[gone] = other
                    gone += 1
    return changed, gone


@kernel(inlined=True)
def _contend_no_more(hops: HopTable, state: Any, changed: int, gone: int) -> int:
    """HopTable that fit no more leave their links to others; how many links have changed."""
    queue, weight, contenders = state.queue, state.weight, state.contenders
    links, first_link = hops.links, hops.first_link
    changed_links, is_changed = state.changed, state.is_changed
    for place in range(gone):
        other = queue[place]
        weight[other] = 0.0
        for i in range(first_link[other], first_link[other + 1]):
            contenders[links[i]] -= 1
            changed = _note(changed_links, is_changed, links[i], changed)
    return changed


@kernel(inlined=True)
def _note(links: Integers, is_changed: Booleans, link: int, changed: int) -> int:
    """Counts a link among those that have changed, once."""
    if not is_changed[link]:
        is_changed[link] = True
        links[changed] = link
        changed += 1
    return changed


@kernel(inlined=True)
def _queue_changed(hops: HopTable, state: Any, hop: int, changed: int) -> int:
    """Queues what must be scored again: hops over changed links, and over either server.

    A hop's score depends on its links' room and contenders, on its own workloads, and on what its
    receiver still takes; nothing else of it changes within a round.

    Returns:
        How many wait.
    """
    fits, queued, queue = state.fits, state.queued, state.queue
    links, is_changed = state.changed, state.is_changed
    hops_on, first_on = hops.hops_on, hops.first_on
    waits = 0
    for place in range(changed):
        link = links[place]
        is_changed[link] = False
        rows = hops_on[first_on[link] : first_on[link + 1]]
        waits = _queue_up(rows, fits, queued, queue, waits)
    sender, receiver = hops.sender[hop], hops.receiver[hop]
    rows = hops.hops_into[hops.first_into[receiver] : hops.first_into[receiver + 1]]
    waits = _queue_up(rows, fits, queued, queue, waits)
    rows = hops.hops_from[hops.first_from[sender] : hops.first_from[sender + 1]]
    return _queue_up(rows, fits, queued, queue, waits)


@kernel(inlined=True)
def _queue_up(rows: Integers, fits: Booleans, queued: Booleans, queue: Integers, waits: int) -> int:
    """Queues the hops that fit and do not wait already; how many wait then."""
    for hop in rows:
        if fits[hop] and not queued[hop]:
            queued[hop] = True
            queue[waits] = hop
            waits += 1
    return waits


@kernel(inlined=True)
def _clipped(slack: Any) -> Any:
    return min(max(slack, table.LOWEST), table.HIGHEST) / table.UNIT


@kernel(inlined=True)
def _log(number: Any) -> Any:
    return np.log(max(number, table.LEAST))


@kernel(inlined=True)
def _noise(temperature: float) -> float:
    """Gumbel noise: the highest of noisy scores is a draw by their softmax."""
    if temperature == 0:
        return table.TIE * np.random.random()
    return -temperature * np.log(-np.log(np.random.random() + 1e-300) + 1e-300)
